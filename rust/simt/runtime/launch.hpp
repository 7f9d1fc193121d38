// The state of one launch, private to the runtime: fibers, warps, blocks, and what is ready to run.
#pragma once

#include "simt.hpp"
#include "interface.hpp"
#include "memory.hpp"

#include <memory>
#include <string>
#include <vector>

namespace simt {

constexpr unsigned barriers_of_block = 16;
constexpr unsigned maximum_threads_of_block = 1024;

enum class State : unsigned char { ready, running, polling, at_gathering, at_barrier, at_grid_barrier, exited };

struct Block;

struct Copy {
    void* destination;
    const void* source;
    unsigned bytes, source_bytes;
    unsigned group;
};

struct Copies {
    std::vector<Copy> in_flight;
    unsigned open_group = 0;
};

struct Fiber : Thread {
    Block* block;
    void* stack_pointer;
    unsigned char* stack;  // null until the fiber first runs, and once it has exited
    Gathering* gathering;
    unsigned predicates_true, predicates_seen;  // of the block barrier that released the fiber
    unsigned short index;  // within the block
    unsigned char barrier;
    State state;
    std::unique_ptr<Copies> copies;
};

struct Barrier {
    unsigned arrived;
    unsigned threads;  // 0: the whole block
    unsigned predicates_true;
};

struct Block {
    BlockView view;
    Fiber* fibers;
    Warp* warps;
    Barrier barriers[barriers_of_block];
    SharedRegion shared;
    unsigned linear_index;
    unsigned live;
    bool started;
};

class Launch {
public:
    Launch(const Request& request, Report& report);
    ~Launch();

    void run();

    // Called on fibers.
    void suspend();
    void poll();
    void make_ready(Fiber& fiber) {
        fiber.state = State::ready;
        ready_[ready_count_++] = &fiber;
    }
    void fail(Outcome outcome, const std::string& text);
    [[noreturn]] void leave_failed();
    [[noreturn]] void fiber_main();
    bool draw(unsigned one_in) { return random() % one_in == 0; }

    Gathering& take_gathering();
    void give_gathering(Gathering& gathering);
    void release_barrier(Block& block, unsigned id);
    void release_grid_barrier();
    void grid_barrier_may_complete();

    // What a fault handler found, to be told once the launching thread runs again.
    struct Fault {
        bool happened;
        int signal;
        uintptr_t address;
    };

    Request request;
    Report& report;
    unsigned threads_of_block, warps_of_block, blocks_of_grid;
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    StackPool stacks;
    SharedPool shared;

    Fiber* current = nullptr;
    void* scheduler_stack_pointer = nullptr;
    Fault fault{};
    uint64_t progress = 0;
    uint64_t nanoseconds = 0;
    size_t at_grid_barrier = 0;
    size_t live = 0;
    unsigned finished_blocks = 0;

private:
    Fiber* pick();
    bool start_more();
    void start_block(Block& block);
    bool start_round_of_polls();
    void switch_from(void** save, Fiber* next);  // null: the launching thread
    void prepare(Fiber*& next);
    void finish(Fiber& fiber);
    void finish_block(Block& block);
    uint64_t random();

    bool seeded_;
    unsigned depth_first_of_16_;  // how many picks in 16 prefer the threads that became ready last
    uint64_t random_state_;
    std::unique_ptr<Fiber*[]> ready_;  // room for all; the natural schedule takes the last
    size_t ready_count_ = 0;
    std::vector<Fiber*> polling_;
    std::vector<unsigned> order_of_blocks_;
    size_t next_to_start_ = 0;  // in blocks when seeded, in warps when natural
    size_t resident_ = 0;
    uint64_t progress_at_round_ = 0;
    uint64_t idle_rounds_ = 0, rounds_ = 0;
    std::vector<std::unique_ptr<Gathering>> gatherings_;
    Gathering* free_gatherings_ = nullptr;
};

extern __thread Launch* launch __attribute__((tls_model("initial-exec")));

// Switches stacks: keeps the callee-saved registers on the old stack, its pointer in `*save`, and continues at `to`.
extern "C" void simt_switch(void** save, void* to);
extern "C" void simt_restore();

// Makes SIGSEGV, SIGBUS, SIGFPE and SIGILL on a fiber end its launch. Other faults go where they went before.
void install_fault_handler();

std::string describe_thread(const Fiber& fiber);
std::string describe_waiting(const Launch& launch);
std::string describe_fault(const Launch& launch, const Fiber& fiber);
std::string name_of(unsigned shape);  // of a gathering
[[noreturn]] void misuse(const std::string& what);

}  // namespace simt
