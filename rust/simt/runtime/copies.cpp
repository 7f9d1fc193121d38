// Copies that land when they are waited for.
#include "launch.hpp"

namespace simt {
namespace {

Copies& copies_of_thread() {
    Fiber& self = *launch->current;
    if (self.copies == nullptr) self.copies = std::make_unique<Copies>();
    return *self.copies;
}

void land(const Copy& copy) {
    std::memcpy(copy.destination, copy.source, copy.source_bytes);
    std::memset(static_cast<unsigned char*>(copy.destination) + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    note_progress();
}

// Lands the copies of all groups up to `last`, in order.
void land_until(Copies& copies, int64_t last) {
    size_t kept = 0;
    for (const Copy& copy : copies.in_flight) {
        if (int64_t(copy.group) <= last) land(copy);
        else copies.in_flight[kept++] = copy;
    }
    copies.in_flight.resize(kept);
}

}  // namespace

void copy_async(void* destination, const void* source, unsigned bytes, unsigned source_bytes) {
    if (bytes != 4 && bytes != 8 && bytes != 16) misuse("cp.async copies 4, 8 or 16 bytes");
    if (source_bytes > bytes) misuse("cp.async has more source bytes than bytes");
    if (reinterpret_cast<uintptr_t>(destination) % bytes != 0 ||
        (source_bytes > 0 && reinterpret_cast<uintptr_t>(source) % bytes != 0))
        misuse("cp.async of addresses that are not aligned to its size");
    const int64_t offset = static_cast<unsigned char*>(destination) - thread->view->shared;
    if (offset < 0 || offset + bytes > int64_t(shared_bytes()))
        misuse("cp.async to what is not the block's shared memory");
    std::memset(destination, 0xff, bytes);
    Copies& copies = copies_of_thread();
    copies.in_flight.push_back({destination, source, bytes, source_bytes, copies.open_group});
}

void copy_async_commit() { ++copies_of_thread().open_group; }

void copy_async_wait(unsigned pending) {
    Copies& copies = copies_of_thread();
    land_until(copies, int64_t(copies.open_group) - 1 - pending);
}

void copy_async_wait_all() {
    Copies& copies = copies_of_thread();
    land_until(copies, copies.open_group);
}

}  // namespace simt
