// Warp collectives with partial masks.
//
// Threads that name the same mask and the same collective meet in a Gathering; each lane leaves its input there. A thread
// that waits for a lane which has exited, or which came to another collective with the same mask, ends the launch.
#pragma once

#include "thread.hpp"

#include <cstddef>
#include <type_traits>

namespace simt {

constexpr unsigned lanes_of_warp = 32;
constexpr unsigned all_lanes = 0xffffffffu;
constexpr unsigned lane_bytes = 64;

enum class Collective : unsigned char {
    sync_warp,
    shuffle,
    shuffle_xor,
    shuffle_up,
    shuffle_down,
    ballot,
    any,
    all,
    reduce_add,
    reduce_min,
    reduce_max,
    reduce_and,
    reduce_or,
    reduce_xor,
    match_any,
    exchange,
    compute,
    matrix_multiply,
};

struct Gathering {
    unsigned mask;
    unsigned arrived;
    unsigned inside; // lanes that have yet to leave
    unsigned shape; // of its collective
    Gathering* next;
    alignas(64) unsigned char inputs[lanes_of_warp * lane_bytes];
    alignas(64) unsigned char outputs[lanes_of_warp * lane_bytes];

    template <class T> T* input() { return reinterpret_cast<T*>(inputs); }
    template <class T> T* output() { return reinterpret_cast<T*>(outputs); }
};

// All that the lanes of one collective must agree in: which it is, and the bytes of a lane's input and output.
constexpr unsigned shape_of(Collective collective, size_t input_bytes, size_t output_bytes) {
    return unsigned(collective) | unsigned(input_bytes) << 8 | unsigned(output_bytes) << 16;
}

// The steps of a collective: join, write the input, arrive; the last to arrive releases the others, which wait; leave.
Gathering& join_or_open(unsigned mask, unsigned shape);
void release(Gathering& gathering);
void wait(Gathering& gathering);
void give_back(Gathering& gathering);
[[noreturn]] void lane_not_in_mask(const Gathering& gathering, unsigned lane);

inline Gathering& join(unsigned mask, unsigned shape) {
    Gathering* const open = thread->warp->open;
    if (open != nullptr && open->mask == mask && open->shape == shape && (mask >> thread->lane & 1)) return *open;
    return join_or_open(mask, shape);
}

inline bool arrive(Gathering& gathering) {
    gathering.arrived |= 1u << thread->lane;
    return gathering.arrived == gathering.mask;
}

inline void leave(Gathering& gathering) {
    gathering.inside &= ~(1u << thread->lane);
    if (gathering.inside == 0) give_back(gathering);
}

// Each lane gives an In and gets an Out. `compute(mask, inputs, outputs)`, both indexed by lane, runs once, when all
// lanes of the mask have arrived. This is the twin of an instruction that a whole warp executes, such as mma.sync.
template <class Out, class In, class Compute>
Out warp_compute(unsigned mask, const In& value, Compute compute, Collective collective = Collective::compute) {
    static_assert(std::is_trivially_copyable<In>::value && sizeof(In) <= lane_bytes && alignof(In) <= 64);
    static_assert(std::is_trivially_copyable<Out>::value && sizeof(Out) <= lane_bytes && alignof(Out) <= 64);
    Gathering& gathering = join(mask, shape_of(collective, sizeof(In), sizeof(Out)));
    gathering.input<In>()[thread->lane] = value;
    if (arrive(gathering)) {
        compute(gathering.mask, const_cast<const In*>(gathering.input<In>()), gathering.output<Out>());
        release(gathering);
    } else {
        wait(gathering);
    }
    Out result = gathering.output<Out>()[thread->lane];
    leave(gathering);
    return result;
}

// What all lanes of a mask left in an exchange, readable until this value goes out of scope.
template <class T>
class WarpValues {
public:
    explicit WarpValues(Gathering& gathering) : gathering_(gathering) {}
    WarpValues(const WarpValues&) = delete;
    WarpValues& operator=(const WarpValues&) = delete;
    ~WarpValues() { leave(gathering_); }

    const T& operator[](unsigned lane) const {
        if (lane >= lanes_of_warp || !(gathering_.mask >> lane & 1)) lane_not_in_mask(gathering_, lane);
        return gathering_.input<T>()[lane];
    }

private:
    Gathering& gathering_;
};

// Every lane of the mask leaves a value of at most 64 bytes, then may read every lane's.
template <class T>
WarpValues<T> warp_exchange(unsigned mask, const T& value, Collective collective = Collective::exchange) {
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= lane_bytes && alignof(T) <= 64);
    Gathering& gathering = join(mask, shape_of(collective, sizeof(T), 0));
    gathering.input<T>()[thread->lane] = value;
    if (arrive(gathering)) release(gathering);
    else wait(gathering);
    return WarpValues<T>(gathering);
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Collective collective) {
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "CUDA shuffles 4 or 8 bytes");
    const WarpValues<T> values = warp_exchange(mask, value, collective);
    return values[source];
}

template <class T, class Combine>
T reduce(unsigned mask, T value, Collective collective, Combine combine) {
    static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "CUDA reduces int and unsigned");
    return warp_compute<T>(
        mask, value,
        [combine](unsigned members, const T* inputs, T* outputs) {
            unsigned lane = __builtin_ctz(members);
            T total = inputs[lane];
            while (++lane < lanes_of_warp)
                if (members >> lane & 1) total = combine(total, inputs[lane]);
            for (lane = 0; lane < lanes_of_warp; ++lane) outputs[lane] = total;
        },
        collective);
}

inline unsigned ballot(unsigned mask, bool predicate, Collective collective) {
    return warp_compute<unsigned>(
        mask, predicate,
        [](unsigned members, const bool* inputs, unsigned* outputs) {
            unsigned bits = 0;
            for (unsigned lane = 0; lane < lanes_of_warp; ++lane)
                if (members >> lane & 1) bits |= unsigned(inputs[lane]) << lane;
            for (unsigned lane = 0; lane < lanes_of_warp; ++lane) outputs[lane] = bits;
        },
        collective);
}

} // namespace simt

inline void __syncwarp(unsigned mask = simt::all_lanes) {
    simt::Gathering& gathering = simt::join(mask, simt::shape_of(simt::Collective::sync_warp, 0, 0));
    if (simt::arrive(gathering)) simt::release(gathering);
    else simt::wait(gathering);
    simt::leave(gathering);
}

// In segments of `width` lanes, as CUDA does: a source outside the segment gives the lane's own value.
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
    const unsigned lane = simt::thread->lane, inside = unsigned(width) - 1;
    return simt::shuffle(mask, value, (lane & ~inside) | (unsigned(source) & inside), simt::Collective::shuffle);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize) {
    const unsigned lane = simt::thread->lane, source = lane ^ unsigned(bits), last = lane | (unsigned(width) - 1);
    return simt::shuffle(mask, value, source <= last ? source : lane, simt::Collective::shuffle_xor);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    const unsigned lane = simt::thread->lane, inside = lane & (unsigned(width) - 1);
    return simt::shuffle(mask, value, inside >= delta ? lane - delta : lane, simt::Collective::shuffle_up);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    const unsigned lane = simt::thread->lane, inside = lane & (unsigned(width) - 1);
    return simt::shuffle(mask, value, delta < unsigned(width) - inside ? lane + delta : lane,
                         simt::Collective::shuffle_down);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return simt::ballot(mask, predicate != 0, simt::Collective::ballot);
}
inline int __any_sync(unsigned mask, int predicate) {
    return simt::ballot(mask, predicate != 0, simt::Collective::any) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return simt::ballot(mask, predicate == 0, simt::Collective::all) == 0;
}

template <class T> T __reduce_add_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, simt::Collective::reduce_add,
                        [](T a, T b) { return T(unsigned(a) + unsigned(b)); });
}
template <class T> T __reduce_min_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, simt::Collective::reduce_min, [](T a, T b) { return b < a ? b : a; });
}
template <class T> T __reduce_max_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, simt::Collective::reduce_max, [](T a, T b) { return b > a ? b : a; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
    return simt::reduce(mask, value, simt::Collective::reduce_and, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
    return simt::reduce(mask, value, simt::Collective::reduce_or, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
    return simt::reduce(mask, value, simt::Collective::reduce_xor, [](unsigned a, unsigned b) { return a ^ b; });
}

template <class T> unsigned __match_any_sync(unsigned mask, T value) {
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "CUDA matches 4 or 8 bytes");
    return simt::warp_compute<unsigned>(
        mask, value,
        [](unsigned members, const T* inputs, unsigned* outputs) {
            for (unsigned a = 0; a < simt::lanes_of_warp; ++a) {
                outputs[a] = 0;
                for (unsigned b = 0; b < simt::lanes_of_warp; ++b)
                    if ((members >> a & members >> b & 1) && std::memcmp(&inputs[a], &inputs[b], sizeof(T)) == 0)
                        outputs[a] |= 1u << b;
            }
        },
        simt::Collective::match_any);
}
