// Atomics on global and shared memory, for the types CUDA has them for.
//
// All fibers of a launch share one OS thread, so a plain read and write is atomic. An atomic that changes memory counts as
// progress for threads that poll.
#pragma once

#include "thread.hpp"

#include <cstring>
#include <type_traits>

namespace simt {

template <class T, class... Allowed> constexpr bool one_of = (std::is_same<T, Allowed>::value || ...);

// Keeps a template parameter from being deduced from the operands, so that `atomicAdd(unsigned*, 1)` works as in CUDA.
template <class T> struct Same {
    using type = T;
};
template <class T> using same = typename Same<T>::type;

template <class T, class Update>
__attribute__((no_sanitize("thread"))) T atomically(T* address, Update update) {
    preemption_point();
    const T before = *address;
    const T after = update(before);
    if (std::memcmp(&before, &after, sizeof(T)) != 0) {
        *address = after;
        note_progress();
    }
    preemption_point();
    return before;
}

template <class T> T sum(T a, T b) {
    if constexpr (std::is_integral<T>::value) {
        using Unsigned = typename std::make_unsigned<T>::type;
        return T(Unsigned(a) + Unsigned(b));
    } else {
        return a + b;
    }
}

} // namespace simt

using simt_u64 = unsigned long long;

template <class T> T atomicAdd(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64, float, double>, "atomicAdd of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return simt::sum<T>(old, value); });
}
template <class T> T atomicSub(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned>, "atomicSub of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return T(unsigned(old) - unsigned(value)); });
}
template <class T> T atomicExch(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64, float>, "atomicExch of a type that CUDA lacks");
    return simt::atomically(address, [value](T) { return value; });
}
template <class T> T atomicCAS(T* address, simt::same<T> compare, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64, unsigned short>, "atomicCAS of a type that CUDA lacks");
    return simt::atomically(address, [compare, value](T old) { return old == compare ? value : old; });
}
template <class T> T atomicMax(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64, long long>, "atomicMax of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return value > old ? value : old; });
}
template <class T> T atomicMin(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64, long long>, "atomicMin of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return value < old ? value : old; });
}
template <class T> T atomicAnd(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64>, "atomicAnd of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return T(old & value); });
}
template <class T> T atomicOr(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64>, "atomicOr of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return T(old | value); });
}
template <class T> T atomicXor(T* address, simt::same<T> value) {
    static_assert(simt::one_of<T, int, unsigned, simt_u64>, "atomicXor of a type that CUDA lacks");
    return simt::atomically(address, [value](T old) { return T(old ^ value); });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
    return simt::atomically(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned limit) {
    return simt::atomically(address, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
