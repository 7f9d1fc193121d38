// Barriers of a block and of the grid.
//
// Threads that have exited don't count at a barrier of the whole block, as on the device. A barrier with a thread count
// waits for that many arrivals whoever exits. The grid barrier needs all threads that have not exited, and every block.
#pragma once

namespace simt {

enum class BlockReduction : unsigned char { none, any, all, count };

// `barrier id, threads`; 0 threads means the whole block. Returns the reduction over the arriving predicates.
int block_barrier(unsigned id, unsigned threads = 0, BlockReduction reduction = BlockReduction::none,
                  bool predicate = false);

// `barrier.arrive id, threads`: counts as an arrival and doesn't wait.
void block_barrier_arrive(unsigned id, unsigned threads);

// The barrier of a cooperative launch.
void grid_barrier();

} // namespace simt

inline void __syncthreads() { simt::block_barrier(0); }
inline int __syncthreads_or(int predicate) {
    return simt::block_barrier(0, 0, simt::BlockReduction::any, predicate != 0);
}
inline int __syncthreads_and(int predicate) {
    return simt::block_barrier(0, 0, simt::BlockReduction::all, predicate != 0);
}
inline int __syncthreads_count(int predicate) {
    return simt::block_barrier(0, 0, simt::BlockReduction::count, predicate != 0);
}
