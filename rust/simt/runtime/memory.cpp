// Fiber stacks, blocks' shared memory, and buffers between inaccessible pages.
#include "memory.hpp"
#include "interface.hpp"

#include <cstring>
#include <cstdint>
#include <mutex>
#include <sys/mman.h>

namespace simt {
namespace {

constexpr size_t page = 4096;
constexpr size_t slab_bytes = page + stacks_of_slab * stack_bytes;
constexpr size_t slabs_kept = 512;  // 32,768 stacks
constexpr size_t shared_alignment = 128;
constexpr unsigned char poison = 0xff;

struct SlabCache {
    std::mutex mutex;
    std::vector<unsigned char*> slabs;
};

// Never destroyed: a launch may outlive the statics of the thread that ends the process.
SlabCache& slab_cache() {
    static SlabCache* const cache = new SlabCache;
    return *cache;
}

unsigned char* map(size_t bytes, int protection) {
    void* const pages = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : static_cast<unsigned char*>(pages);
}

unsigned char* map_slab() {
    unsigned char* const slab = map(slab_bytes, PROT_READ | PROT_WRITE);
    if (slab == nullptr) return nullptr;
    // A huge page would commit the untouched part of 32 stacks.
    madvise(slab, slab_bytes, MADV_NOHUGEPAGE);
    mprotect(slab, page, PROT_NONE);
    return slab;
}

}  // namespace

unsigned char* StackPool::take() {
    if (free_.empty()) {
        unsigned char* slab = nullptr;
        {
            SlabCache& cache = slab_cache();
            const std::lock_guard<std::mutex> lock(cache.mutex);
            if (!cache.slabs.empty()) {
                slab = cache.slabs.back();
                cache.slabs.pop_back();
            }
        }
        if (slab == nullptr) slab = map_slab();
        if (slab == nullptr) return nullptr;
        slabs_.push_back(slab);
        for (size_t i = stacks_of_slab; i-- > 0;) free_.push_back(slab + page + i * stack_bytes);
    }
    unsigned char* const stack = free_.back();
    free_.pop_back();
    return stack;
}

StackPool::~StackPool() {
    SlabCache& cache = slab_cache();
    const std::lock_guard<std::mutex> lock(cache.mutex);
    for (unsigned char* slab : slabs_) {
        if (cache.slabs.size() < slabs_kept) cache.slabs.push_back(slab);
        else munmap(slab, slab_bytes);
    }
}

unsigned char* stack_top(unsigned char* stack) {
    const size_t place = reinterpret_cast<uintptr_t>(stack) / stack_bytes % 32;
    return stack + stack_bytes - place * 128;
}

SharedPool::SharedPool(size_t bytes)
    : bytes_(bytes), page_bytes_((bytes + shared_alignment - 1 + page - 1) / page * page) {}

SharedPool::~SharedPool() {
    for (const SharedRegion& region : all_) munmap(region.pages, page_bytes_ + page);
}

SharedRegion SharedPool::take() {
    if (free_.empty()) {
        unsigned char* const pages = map(page_bytes_ + page, PROT_NONE);
        if (pages == nullptr) return {};
        if (page_bytes_ > 0 && mprotect(pages, page_bytes_, PROT_READ | PROT_WRITE) != 0) {
            munmap(pages, page_bytes_ + page);
            return {};
        }
        const size_t rounded = (bytes_ + shared_alignment - 1) / shared_alignment * shared_alignment;
        free_.push_back({pages, pages + page_bytes_ - rounded});
        all_.push_back(free_.back());
    }
    const SharedRegion region = free_.back();
    free_.pop_back();
    std::memset(region.pages, poison, page_bytes_);
    return region;
}

ptrdiff_t SharedPool::written_outside(const SharedRegion& region) const {
    const unsigned char* const end = region.pages + page_bytes_;
    for (const unsigned char* at = region.base + bytes_; at < end; ++at)
        if (*at != poison) return at - region.base;
    for (const unsigned char* at = region.base; at-- > region.pages;)
        if (*at != poison) return at - region.base;
    return 0;
}

bool SharedPool::in_guard(const SharedRegion& region, const void* address, ptrdiff_t& offset) const {
    offset = static_cast<const unsigned char*>(address) - region.base;
    const ptrdiff_t from_pages = static_cast<const unsigned char*>(address) - region.pages;
    return from_pages >= ptrdiff_t(page_bytes_) && from_pages < ptrdiff_t(page_bytes_ + page);
}

}  // namespace simt

extern "C" void* simt_guarded_allocate(size_t bytes) {
    using namespace simt;
    if (bytes > SIZE_MAX / 2) return nullptr;
    const size_t rounded = (bytes + 15) / 16 * 16, inside = (rounded + page - 1) / page * page;
    unsigned char* const pages = map(inside + 2 * page, PROT_NONE);
    if (pages == nullptr) return nullptr;
    if (inside > 0 && mprotect(pages + page, inside, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages, inside + 2 * page);
        return nullptr;
    }
    return pages + page + inside - rounded;
}

extern "C" void simt_guarded_free(void* base, size_t bytes) {
    using namespace simt;
    const size_t rounded = (bytes + 15) / 16 * 16, inside = (rounded + page - 1) / page * page;
    munmap(static_cast<unsigned char*>(base) + rounded - inside - page, inside + 2 * page);
}
