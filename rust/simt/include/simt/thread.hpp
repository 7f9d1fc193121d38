// Who runs: the built-in variables, the block's shared memory, and giving way to other threads.
#pragma once

#include "vector_types.hpp"

#include <cstddef>
#include <cstdint>

namespace simt {

// What all threads of a block see.
struct BlockView {
    uint3 block_index;
    dim3 block_dimensions;
    dim3 grid_dimensions;
    unsigned char* shared;
    size_t shared_bytes;
};

struct Gathering;

// What the lanes of a warp share.
struct Warp {
    Gathering* open;  // gatherings that some lanes have yet to reach
    unsigned lanes;
    unsigned exited;
};

// What a thread sees of itself.
struct Thread {
    const BlockView* view;
    Warp* warp;
    uint3 thread_index;
    unsigned lane;
};

// Initial-exec storage: one load, and safe to read in a signal handler.
extern __thread Thread* thread __attribute__((tls_model("initial-exec")));
extern __thread bool preemptive __attribute__((tls_model("initial-exec")));

// The block's dynamic shared memory, 128-byte aligned, filled with 0xFF when the block starts.
inline void* shared_memory() { return thread->view->shared; }
inline size_t shared_bytes() { return thread->view->shared_bytes; }

// A shared-space address as PTX takes it, and back.
inline uint32_t shared_offset(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - thread->view->shared);
}
inline void* shared_pointer(uint32_t offset) { return thread->view->shared + offset; }

// Gives way to every other thread that can run. Each loop that polls memory must call it (or __nanosleep), since nothing
// interrupts a fiber. When all threads only poll, round after round, the launch ends as a deadlock.
void yield();

// Gives way now and then in a seeded schedule.
void preempt();
inline void preemption_point() {
    if (__builtin_expect(preemptive, false)) preempt();
}

// Tells the scheduler that memory changed for pollers: host twins of releasing stores call it.
void note_progress();

// The launch's own clock in nanoseconds. It advances when threads poll: 1 µs a round of polls, and 10 ms a round in which
// nothing else happened, so a bounded wait reaches its bound in few rounds.
uint64_t nanoseconds();

// Ends the launch with an error.
[[noreturn]] void misuse(const char* what);
[[noreturn]] void trap(const char* what);
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace simt

#define threadIdx (simt::thread->thread_index)
#define blockIdx (simt::thread->view->block_index)
#define blockDim (simt::thread->view->block_dimensions)
#define gridDim (simt::thread->view->grid_dimensions)
constexpr int warpSize = 32;

inline void __nanosleep(unsigned) { simt::yield(); }
[[noreturn]] inline void __trap() { simt::trap("__trap"); }
inline void __threadfence() { simt::preemption_point(); }
inline void __threadfence_block() { simt::preemption_point(); }
inline void __threadfence_system() { simt::preemption_point(); }
inline long long clock64() { return static_cast<long long>(simt::nanoseconds()); }
inline size_t __cvta_generic_to_shared(const void* pointer) { return simt::shared_offset(pointer); }

#undef assert
#define assert(condition)                                                                                              \
    (static_cast<bool>(condition) ? void(0) : simt::assertion_failed(#condition, __FILE__, __LINE__))
