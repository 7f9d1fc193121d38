// What the Rust side calls, and the table of kernels that the build script generates. Mirrored in src/ffi.rs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt {

struct Kernel {
    const char* name;
    void (*call)(const void* arguments);
    size_t arguments_bytes;
    size_t arguments_alignment;
    unsigned maximum_threads;
};

enum class Outcome : int32_t { done, deadlock, misuse, shared_overrun, memory_fault, stack_overflow, trap, no_memory };

struct Request {
    const Kernel* kernel;
    const void* arguments;  // aligned as the kernel's arguments
    uint64_t shared_bytes;
    uint64_t seed;
    uint32_t grid[3];
    uint32_t block;
    uint32_t seeded;
};

struct Report {
    int32_t outcome;
    char text[8192];  // UTF-8, ends with 0
};

}  // namespace simt

extern "C" {
// Calls `visit` with the table of each kernel file; a table ends with an entry that has no name.
void simt_kernel_files(void (*visit)(void* visitor, const simt::Kernel* table), void* visitor);

void simt_launch(const simt::Request* request, simt::Report* report);

// Zeroed memory that ends, rounded up to 16 bytes, at an inaccessible page, with another before its first. Null without memory.
void* simt_guarded_allocate(size_t bytes);
void simt_guarded_free(void* base, size_t bytes);
}
