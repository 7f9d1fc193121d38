// Intrinsics on one thread's values: bit casts, integer bits, rounded float operations, conversions, cached loads.
//
// Kernels are compiled with -ffp-contract=off and -mfma: each operation below rounds once, as on the device with
// -fmad=false. expf, logf and the fast approximations differ from the device's in the last bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simt {
template <class To, class From> To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// Float to integer as CUDA converts: NaN is 0, and values beyond the range end at its ends.
template <class Integer, class Float> Integer saturating(Float value) {
    constexpr auto lowest = std::numeric_limits<Integer>::min(), highest = std::numeric_limits<Integer>::max();
    if (value != value) return 0;
    if (value <= Float(lowest)) return lowest;
    if (value >= Float(highest)) return highest;
    return Integer(value);
}
}  // namespace simt

inline unsigned __float_as_uint(float value) { return simt::bits<unsigned>(value); }
inline int __float_as_int(float value) { return simt::bits<int>(value); }
inline float __uint_as_float(unsigned value) { return simt::bits<float>(value); }
inline float __int_as_float(int value) { return simt::bits<float>(value); }
inline long long __double_as_longlong(double value) { return simt::bits<long long>(value); }
inline double __longlong_as_double(long long value) { return simt::bits<double>(value); }

inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(unsigned(value)); }
inline int __clzll(long long value) {
    return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value));
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline unsigned __brev(unsigned value) {
    unsigned result = 0;
    for (int bit = 0; bit < 32; ++bit) result |= (value >> bit & 1) << (31 - bit);
    return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned pick = selector >> (4 * i) & 15;
        unsigned byte = unsigned(bytes >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrtf(float value) { return float(1.0 / std::sqrt(double(value))); }
inline float __frsqrt_rn(float value) { return float(1.0 / std::sqrt(double(value))); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float value) { return value >= 0.0f ? (value <= 1.0f ? value : 1.0f) : 0.0f; }

inline int __float2int_rz(float value) { return simt::saturating<int>(value); }
inline int __float2int_rn(float value) { return simt::saturating<int>(std::nearbyint(value)); }
inline int __float2int_rd(float value) { return simt::saturating<int>(std::floor(value)); }
inline int __float2int_ru(float value) { return simt::saturating<int>(std::ceil(value)); }
inline unsigned __float2uint_rz(float value) { return simt::saturating<unsigned>(value); }
inline unsigned __float2uint_rn(float value) { return simt::saturating<unsigned>(std::nearbyint(value)); }
inline long long __float2ll_rz(float value) { return simt::saturating<long long>(value); }
inline long long __float2ll_rn(float value) { return simt::saturating<long long>(std::nearbyint(value)); }
inline unsigned long long __float2ull_rz(float value) { return simt::saturating<unsigned long long>(value); }
inline unsigned long long __float2ull_rn(float value) {
    return simt::saturating<unsigned long long>(std::nearbyint(value));
}
inline unsigned long long __double2ull_rz(double value) { return simt::saturating<unsigned long long>(value); }
inline unsigned long long __double2ull_rn(double value) {
    return simt::saturating<unsigned long long>(std::nearbyint(value));
}
inline float __int2float_rn(int value) { return float(value); }
inline float __uint2float_rn(unsigned value) { return float(value); }
inline float __ll2float_rn(long long value) { return float(value); }
inline float __ull2float_rn(unsigned long long value) { return float(value); }
inline double __ull2double_rn(unsigned long long value) { return double(value); }
inline float __double2float_rn(double value) { return float(value); }

// Cache hints say nothing here.
template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldca(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> T __ldlu(const T* address) { return *address; }
template <class T> T __ldcv(const T* address) { return *const_cast<const volatile T*>(address); }
template <class T> void __stcg(T* address, T value) { *address = value; }
template <class T> void __stcs(T* address, T value) { *address = value; }
template <class T> void __stwb(T* address, T value) { *address = value; }
template <class T> void __stwt(T* address, T value) { *address = value; }

// CUDA has these at global scope, for mixed integer types too.
template <class A, class B> constexpr auto min(A a, B b) -> typename std::common_type<A, B>::type {
    using T = typename std::common_type<A, B>::type;
    if constexpr (std::is_floating_point<T>::value) return T(a) != T(a) ? T(b) : T(b) < T(a) ? T(b) : T(a);
    else return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> constexpr auto max(A a, B b) -> typename std::common_type<A, B>::type {
    using T = typename std::common_type<A, B>::type;
    if constexpr (std::is_floating_point<T>::value) return T(a) != T(a) ? T(b) : T(b) > T(a) ? T(b) : T(a);
    else return T(b) > T(a) ? T(b) : T(a);
}
