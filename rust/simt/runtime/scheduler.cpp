// Which fiber runs next, and switching to it.
//
// A fiber that must wait picks the next one and switches straight to it; the launching thread's own stack runs again when
// all threads have exited or the launch has failed. Blocks start only when nothing that has started can run (natural
// schedule), or while fewer than `resident_threads` have started (seeded), so big grids of independent blocks need few stacks.
#include "launch.hpp"

#include <cstdlib>
#include <numeric>

asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
.globl simt_restore
simt_restore:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");

namespace simt {

__thread Thread* thread = nullptr;
__thread bool preemptive = false;
__thread Launch* launch = nullptr;

namespace {

constexpr size_t resident_threads = 32768;
constexpr uint64_t idle_rounds_allowed = 4096;
constexpr uint64_t rounds_allowed = uint64_t(1) << 22;
constexpr uint64_t nanoseconds_of_round = 1000, nanoseconds_of_idle_round = 10'000'000;
constexpr size_t registers_saved = 6;
constexpr size_t stack_reserve = 2048; // what the runtime itself may need below a kernel's frame

void enter_fiber() { launch->fiber_main(); }

void prepare_stack(Fiber& fiber) {
    void** top = reinterpret_cast<void**>(stack_top(fiber.stack));
    *--top = nullptr; // where enter_fiber would return to
    *--top = reinterpret_cast<void*>(enter_fiber);
    for (size_t i = 0; i < registers_saved; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
}

} // namespace

Launch::Launch(const Request& request, Report& report)
    : request(request), report(report), threads_of_block(request.block),
      warps_of_block((request.block + lanes_of_warp - 1) / lanes_of_warp),
      blocks_of_grid(request.grid[0] * request.grid[1] * request.grid[2]), blocks(blocks_of_grid),
      fibers(size_t(blocks_of_grid) * threads_of_block), warps(size_t(blocks_of_grid) * warps_of_block),
      shared(request.shared_bytes), live(fibers.size()), seeded_(request.seeded != 0),
      random_state_(request.seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u), ready_(new Fiber*[fibers.size()]),
      order_of_blocks_(blocks_of_grid) {
    // Seeds differ in how far they let some threads run ahead of the others.
    constexpr unsigned depths[] = {0, 8, 15};
    depth_first_of_16_ = depths[request.seed % 3];
    std::iota(order_of_blocks_.begin(), order_of_blocks_.end(), 0u);
    if (seeded_)
        for (size_t i = order_of_blocks_.size(); i > 1; --i)
            std::swap(order_of_blocks_[i - 1], order_of_blocks_[random() % i]);
    for (unsigned b = 0; b < blocks_of_grid; ++b) {
        Block& block = blocks[b];
        block.view.block_dimensions = dim3(threads_of_block);
        block.view.grid_dimensions = dim3(request.grid[0], request.grid[1], request.grid[2]);
        block.view.block_index = {b % request.grid[0], b / request.grid[0] % request.grid[1],
                                  b / request.grid[0] / request.grid[1]};
        block.fibers = &fibers[size_t(b) * threads_of_block];
        block.warps = &warps[size_t(b) * warps_of_block];
        block.linear_index = b;
        block.live = threads_of_block;
        for (unsigned t = 0; t < threads_of_block; ++t) {
            Fiber& fiber = block.fibers[t];
            fiber.block = &block;
            fiber.view = &block.view;
            fiber.thread_index = {t, 0, 0};
            fiber.lane = t % lanes_of_warp;
            fiber.index = static_cast<unsigned short>(t);
            fiber.warp = &block.warps[t / lanes_of_warp];
            fiber.warp->lanes |= 1u << fiber.lane;
        }
    }
}

Launch::~Launch() = default;

uint64_t Launch::random() {
    random_state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void Launch::run() {
    launch = this;
    preemptive = seeded_;
    if (Fiber* first = pick()) switch_from(&scheduler_stack_pointer, first);
    if (fault.happened) {
        ptrdiff_t offset = 0;
        const bool shared_guard =
            shared.in_guard(current->block->shared, reinterpret_cast<void*>(fault.address), offset);
        fail(shared_guard ? Outcome::shared_overrun : Outcome::memory_fault, describe_fault(*this, *current));
    }
    thread = nullptr;
    preemptive = false;
    launch = nullptr;
}

Fiber* Launch::pick() {
    for (;;) {
        if (report.outcome != int32_t(Outcome::done)) return nullptr;
        if (ready_count_ > 0) {
            const size_t last = --ready_count_;
            if (seeded_) {
                const uint64_t draw = random();
                size_t choices = last + 1;
                if ((draw & 15) < depth_first_of_16_ && choices > lanes_of_warp) choices = lanes_of_warp;
                std::swap(ready_[last - (draw >> 8) % choices], ready_[last]);
            }
            return ready_[last];
        }
        if (start_more() || start_round_of_polls()) continue;
        if (live > 0) fail(Outcome::deadlock, describe_waiting(*this));
        return nullptr;
    }
}

void Launch::start_block(Block& block) {
    if (block.started) return;
    block.started = true;
    block.shared = shared.take();
    if (block.shared.pages == nullptr) fail(Outcome::no_memory, "no memory for the shared memory of the grid's blocks");
    block.view.shared = block.shared.base;
    block.view.shared_bytes = request.shared_bytes;
}

bool Launch::start_more() {
    if (!seeded_) {
        if (next_to_start_ == warps.size()) return false;
        Block& block = blocks[next_to_start_ / warps_of_block];
        const unsigned first = unsigned(next_to_start_ % warps_of_block) * lanes_of_warp;
        ++next_to_start_;
        start_block(block);
        for (unsigned t = std::min(first + lanes_of_warp, threads_of_block); t-- > first;) make_ready(block.fibers[t]);
        return true;
    }
    bool any = false;
    while (next_to_start_ < blocks.size() && (!any || resident_ < resident_threads)) {
        Block& block = blocks[order_of_blocks_[next_to_start_++]];
        start_block(block);
        resident_ += threads_of_block;
        for (unsigned t = 0; t < threads_of_block; ++t) make_ready(block.fibers[t]);
        any = true;
    }
    return any;
}

bool Launch::start_round_of_polls() {
    if (polling_.empty()) return false;
    const bool idle = progress == progress_at_round_;
    progress_at_round_ = progress;
    idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
    nanoseconds += idle ? nanoseconds_of_idle_round : nanoseconds_of_round;
    if (idle_rounds_ > idle_rounds_allowed || ++rounds_ > rounds_allowed) return false;
    for (size_t i = polling_.size(); i-- > 0;) make_ready(*polling_[i]);
    polling_.clear();
    return true;
}

// Gives a fiber that starts its stack; null in its place when there is no memory.
void Launch::prepare(Fiber*& next) {
    next->stack = stacks.take();
    if (next->stack != nullptr) return prepare_stack(*next);
    fail(Outcome::no_memory, "no memory for the stacks of the grid's threads");
    next = nullptr;
}

void Launch::switch_from(void** save, Fiber* next) {
    if (next != nullptr && next->stack == nullptr) prepare(next);
    if (next == nullptr) {
        thread = nullptr;
        if (save != &scheduler_stack_pointer) simt_switch(save, scheduler_stack_pointer);
        return;
    }
    next->state = State::running;
    current = next;
    thread = next;
    simt_switch(save, next->stack_pointer);
}

void Launch::suspend() {
    Fiber& self = *current;
    if (static_cast<unsigned char*>(__builtin_frame_address(0)) < self.stack + stack_reserve) {
        fail(Outcome::stack_overflow,
             describe_thread(self) + " has used its stack of " + std::to_string(stack_bytes) + " bytes");
        leave_failed();
    }
    // The natural schedule takes the last; a fiber runs only while the launch hasn't failed.
    Fiber* const next = seeded_ || ready_count_ == 0 ? pick() : ready_[--ready_count_];
    if (next == &self) {
        self.state = State::running;
        return;
    }
    switch_from(&self.stack_pointer, next);
}

void Launch::leave_failed() {
    switch_from(&current->stack_pointer, nullptr);
    std::abort(); // nothing resumes a fiber of a failed launch
}

void Launch::fiber_main() {
    for (;;) {
        request.kernel->call(request.arguments);
        Fiber& self = *current;
        finish(self);
        Fiber* const next = pick();
        unsigned char* const stack = self.stack;
        self.stack = nullptr;
        if (next != nullptr && next->stack == nullptr) {
            // The next thread starts where this one ended.
            next->stack = stack;
            next->state = State::running;
            current = next;
            thread = next;
            continue;
        }
        // Nothing takes the stack before the switch below has left it.
        stacks.give(stack);
        switch_from(&self.stack_pointer, next);
        std::abort();
    }
}

void Launch::finish(Fiber& fiber) {
    Block& block = *fiber.block;
    Warp& warp = *fiber.warp;
    fiber.state = State::exited;
    fiber.copies.reset();
    warp.exited |= 1u << fiber.lane;
    ++progress;
    --live;
    --block.live;
    for (Gathering* gathering = warp.open; gathering != nullptr; gathering = gathering->next)
        if (gathering->mask >> fiber.lane & 1) {
            fail(Outcome::misuse, describe_thread(fiber) + " exited while others wait for it at " +
                                      name_of(gathering->shape) + ":\n" + describe_waiting(*this));
            return;
        }
    if (block.live == 0) finish_block(block);
    else
        for (unsigned id = 0; id < barriers_of_block; ++id)
            if (block.barriers[id].arrived > 0 && block.barriers[id].threads == 0 &&
                block.barriers[id].arrived == block.live)
                release_barrier(block, id);
    grid_barrier_may_complete();
}

void Launch::finish_block(Block& block) {
    ++finished_blocks;
    if (const ptrdiff_t offset = shared.written_outside(block.shared)) {
        fail(Outcome::shared_overrun, "block " + std::to_string(block.linear_index) +
                                          " wrote its shared memory at offset " + std::to_string(offset) + " of " +
                                          std::to_string(request.shared_bytes) + " requested bytes");
        return;
    }
    shared.give(block.shared);
    block.shared = {};
    if (seeded_) {
        resident_ -= threads_of_block;
        if (resident_ < resident_threads) start_more();
    }
}

Gathering& Launch::take_gathering() {
    if (free_gatherings_ == nullptr) {
        gatherings_.push_back(std::make_unique<Gathering>());
        return *gatherings_.back();
    }
    Gathering& gathering = *free_gatherings_;
    free_gatherings_ = gathering.next;
    return gathering;
}

void Launch::give_gathering(Gathering& gathering) {
    gathering.next = free_gatherings_;
    free_gatherings_ = &gathering;
}

void Launch::poll() {
    // In a seeded schedule a poller sometimes competes with the threads it waits for.
    if (seeded_ && draw(2)) {
        make_ready(*current);
    } else {
        current->state = State::polling;
        polling_.push_back(current);
    }
    suspend();
}

void yield() { launch->poll(); }

void preempt() {
    if (!launch->draw(4)) return;
    launch->make_ready(*launch->current);
    launch->suspend();
}

void note_progress() { ++launch->progress; }

uint64_t nanoseconds() { return launch->nanoseconds; }

} // namespace simt
