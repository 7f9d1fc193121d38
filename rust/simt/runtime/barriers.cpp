// Barriers of block and grid, and the gatherings of warp collectives.
#include "launch.hpp"

namespace simt {
namespace {

Block& block_of(const Fiber& fiber) { return *fiber.block; }

std::string hexadecimal(unsigned value) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", value);
    return text;
}

Barrier& arrive_at_barrier(unsigned id, unsigned threads) {
    Fiber& self = *launch->current;
    if (id >= barriers_of_block) misuse("barrier " + std::to_string(id) + ": a block has barriers 0 to 15");
    if (threads % lanes_of_warp != 0 || threads > launch->threads_of_block)
        misuse("barrier " + std::to_string(id) + " for " + std::to_string(threads) +
               " threads: must be a multiple of 32, and no more than the block has");
    Barrier& barrier = block_of(self).barriers[id];
    if (barrier.arrived == 0) {
        barrier = {};
        barrier.threads = threads;
    } else if (barrier.threads != threads) {
        misuse("barrier " + std::to_string(id) + " for " + std::to_string(threads) +
               " threads, which others entered for " + std::to_string(barrier.threads) + " (0: the whole block)");
    }
    ++barrier.arrived;
    ++launch->progress;
    return barrier;
}

bool is_complete(const Barrier& barrier, const Block& block) {
    return barrier.arrived == (barrier.threads == 0 ? block.live : barrier.threads);
}

}  // namespace

int block_barrier(unsigned id, unsigned threads, BlockReduction reduction, bool predicate) {
    Fiber& self = *launch->current;
    Block& block = block_of(self);
    Barrier& barrier = arrive_at_barrier(id, threads);
    barrier.predicates_true += predicate;
    self.barrier = static_cast<unsigned char>(id);
    self.state = State::at_barrier;
    if (is_complete(barrier, block)) launch->release_barrier(block, id);
    launch->suspend();
    switch (reduction) {
    case BlockReduction::any: return self.predicates_true > 0;
    case BlockReduction::all: return self.predicates_true == self.predicates_seen;
    case BlockReduction::count: return int(self.predicates_true);
    case BlockReduction::none: break;
    }
    return 0;
}

void block_barrier_arrive(unsigned id, unsigned threads) {
    if (threads == 0) misuse("barrier.arrive needs a thread count");
    Barrier& barrier = arrive_at_barrier(id, threads);
    Block& block = block_of(*launch->current);
    if (is_complete(barrier, block)) launch->release_barrier(block, id);
    preemption_point();
}

void Launch::release_barrier(Block& block, unsigned id) {
    Barrier& barrier = block.barriers[id];
    for (unsigned t = threads_of_block; t-- > 0;) {
        Fiber& fiber = block.fibers[t];
        if (fiber.state != State::at_barrier || fiber.barrier != id) continue;
        fiber.predicates_true = barrier.predicates_true;
        fiber.predicates_seen = barrier.arrived;
        make_ready(fiber);
    }
    barrier = {};
}

void grid_barrier() {
    Fiber& self = *launch->current;
    self.state = State::at_grid_barrier;
    ++launch->at_grid_barrier;
    ++launch->progress;
    launch->grid_barrier_may_complete();
    launch->suspend();
}

void Launch::grid_barrier_may_complete() {
    // A block that has left keeps the others waiting, as on the device.
    if (at_grid_barrier == 0 || at_grid_barrier != live || finished_blocks > 0) return;
    at_grid_barrier = 0;
    for (size_t i = fibers.size(); i-- > 0;)
        if (fibers[i].state == State::at_grid_barrier) make_ready(fibers[i]);
}

Gathering& join_or_open(unsigned mask, unsigned shape) {
    Fiber& self = *launch->current;
    Warp& warp = *self.warp;
    // Lanes beyond the block's last thread never were.
    mask &= warp.lanes;
    if (!(mask >> self.lane & 1))
        misuse(name_of(shape) + " with mask " + hexadecimal(mask) + ", which doesn't name the calling lane");
    if (mask & warp.exited)
        misuse(name_of(shape) + " with mask " + hexadecimal(mask) + ", of which lanes " +
               hexadecimal(mask & warp.exited) + " have exited");
    Gathering* found = warp.open;
    while (found != nullptr && found->mask != mask) found = found->next;
    if (found == nullptr) {
        found = &launch->take_gathering();
        found->mask = mask;
        found->arrived = 0;
        found->shape = shape;
        found->next = warp.open;
        warp.open = found;
    } else if (found->shape != shape) {
        misuse(name_of(shape) + " of " + std::to_string(shape >> 8 & 0xff) + " bytes with mask " + hexadecimal(mask) +
               ", at which lanes " + hexadecimal(found->arrived) + " wait at " + name_of(found->shape) + " of " +
               std::to_string(found->shape >> 8 & 0xff) + " bytes");
    }
    return *found;
}

void release(Gathering& gathering) {
    Fiber& self = *launch->current;
    Gathering** link = &self.warp->open;
    while (*link != &gathering) link = &(*link)->next;
    *link = gathering.next;
    gathering.inside = gathering.mask;
    ++launch->progress;
    Fiber* const warp = &self - self.lane;
    for (unsigned others = gathering.mask & ~(1u << self.lane); others != 0;) {
        const unsigned lane = lanes_of_warp - 1 - unsigned(__builtin_clz(others));
        others &= ~(1u << lane);
        launch->make_ready(warp[lane]);
    }
    preemption_point();
}

void wait(Gathering& gathering) {
    Fiber& self = *launch->current;
    self.gathering = &gathering;
    self.state = State::at_gathering;
    launch->suspend();
}

void give_back(Gathering& gathering) { launch->give_gathering(gathering); }

}  // namespace simt
