// CUDA's qualifiers, and KERNEL as the host sees it.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// Static shared memory has no twin: all kernels take theirs with SHARED(type, name).
#define __shared__ simt_has_no_static_shared_memory_use_SHARED

// A kernel with one by-value argument structure. The structure is a grid constant on the device: one copy, here too.
// The table of kernels is made from the lines of kernel files that begin with this macro.
#define KERNEL(name, Arguments, maximum_threads, minimum_blocks) void name(const Arguments& args)
