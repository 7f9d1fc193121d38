// Fiber stacks and blocks' shared memory.
#pragma once

#include <cstddef>
#include <vector>

namespace simt {

// Virtual size of a fiber's stack; untouched pages cost nothing.
constexpr size_t stack_bytes = 64 * 1024;
constexpr size_t stacks_of_slab = 64;

// Stacks for one launch, in slabs that launches of all threads pass on to each other.
class StackPool {
public:
    ~StackPool();
    unsigned char* take();  // the lowest address; null when there is no memory
    void give(unsigned char* stack) { free_.push_back(stack); }

private:
    std::vector<unsigned char*> free_;
    std::vector<unsigned char*> slabs_;
};

// Where a fiber's frames begin. Stacks begin at differing offsets, or all would share a few sets of the cache.
unsigned char* stack_top(unsigned char* stack);

// A block's shared memory: pages that end at an inaccessible page.
struct SharedRegion {
    unsigned char* pages;
    unsigned char* base;  // 128-byte aligned
};

class SharedPool {
public:
    explicit SharedPool(size_t bytes);
    ~SharedPool();
    SharedRegion take();  // filled with 0xFF, slack included; null pages when there is no memory
    void give(const SharedRegion& region) { free_.push_back(region); }

    // The offset from `base` of a byte outside the requested ones that was written; 0 when there is none.
    ptrdiff_t written_outside(const SharedRegion& region) const;

    // Whether an address lies in a region's guard page, and at which offset from its base.
    bool in_guard(const SharedRegion& region, const void* address, ptrdiff_t& offset) const;

private:
    size_t bytes_, page_bytes_;
    std::vector<SharedRegion> free_, all_;
};

}  // namespace simt
