// Asynchronous copies from global to shared memory, for the host twins of cp.async.
//
// A copy lands when its thread waits for it, not when it is issued: what reads the destination before that sees 0xFF.
#pragma once

#include "thread.hpp"

namespace simt {

// cp.async: `bytes` is 4, 8 or 16, and both addresses are aligned to it. The first `source_bytes` are copied, the rest is zero.
void copy_async(void* destination, const void* source, unsigned bytes, unsigned source_bytes);
inline void copy_async(void* destination, const void* source, unsigned bytes) {
    copy_async(destination, source, bytes, bytes);
}

// cp.async.commit_group: closes the group of the copies issued since the last one.
void copy_async_commit();

// cp.async.wait_group: all but the newest `pending` groups have landed.
void copy_async_wait(unsigned pending);

// cp.async.wait_all: everything has landed, committed or not.
void copy_async_wait_all();

}  // namespace simt
