// CUDA C++ as host C++: the header that every kernel file is compiled under (`-include simt.hpp`).
//
// One fiber runs for each CUDA thread, all fibers of a launch on one OS thread; the runtime/ folder holds the scheduler.
// Kernels see here the CUDA names they use: qualifiers, built-in variables, vector types, intrinsics, barriers, warp
// collectives and atomics. What CUDA does by inline PTX has its host twin next to the PTX, in the kernels' own ptx.cuh,
// built on the `simt::` primitives of this folder.
//
// Memory is sequentially consistent here, and fibers switch only at barriers, collectives, atomics, fences and yields:
// memory-order faults between blocks don't show.
#pragma once

#if !defined(__x86_64__) || !defined(__linux__)
#error "simt runs on x86-64 Linux only: its context switch is written for the System V calling convention"
#endif

// Kernel files are included inside a namespace, where a first `#include <...>` would go wrong: the standard headers that
// device code may name are all included here.
#include <algorithm>
#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <math.h>
#include <type_traits>
#include <utility>

#include "simt/qualifiers.hpp"
#include "simt/vector_types.hpp"
#include "simt/thread.hpp"
#include "simt/barriers.hpp"
#include "simt/warp.hpp"
#include "simt/atomics.hpp"
#include "simt/copies.hpp"
#include "simt/matrix.hpp"
#include "simt/scalars.hpp"
