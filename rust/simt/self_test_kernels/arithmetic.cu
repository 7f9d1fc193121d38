// The arithmetic that the kernels share with overtone-core, and their conversions: one function over many inputs.

#include "float_types.cuh"
#include "noise.cuh"

struct ArithmeticArguments {
    uint64_t input;  // [count] uint32
    uint64_t output;  // [count] uint32
    uint32_t count;
    uint32_t function;
};

struct PhiloxArguments {
    uint64_t input;  // [count][6] uint32: seed, frame, codebook, entry
    uint64_t output;  // [count] uint32
    uint32_t count;
    uint32_t reserved;
};

static uint32_t arithmetic_of(uint32_t bits, uint32_t function) {
    const float x = overtone::float_of(bits);
    switch (function) {
    case 0: return overtone::bits_of(overtone::noise_of_word(bits << 9));
    case 1: return overtone::bits_of(overtone::natural_logarithm(x));
    case 2: return overtone::bits_of(overtone::exponential(x));
    case 3: return overtone::from_float<overtone::Float16>(x).bits;
    case 4: return overtone::from_float<overtone::BFloat16>(x).bits;
    default: return overtone::bits_of(overtone::to_float(overtone::Float16{static_cast<uint16_t>(bits)}));
    }
}

KERNEL(simt_test_arithmetic, ArithmeticArguments, 256, 1) {
    const uint32_t* const input = reinterpret_cast<const uint32_t*>(args.input);
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output);
    for (uint32_t index = blockIdx.x * blockDim.x + threadIdx.x; index < args.count; index += gridDim.x * blockDim.x)
        output[index] = arithmetic_of(input[index], args.function);
}

KERNEL(simt_test_philox, PhiloxArguments, 256, 1) {
    const uint32_t* const input = reinterpret_cast<const uint32_t*>(args.input);
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output);
    for (uint32_t index = blockIdx.x * blockDim.x + threadIdx.x; index < args.count; index += gridDim.x * blockDim.x) {
        const uint32_t* const words = input + 6 * index;
        const uint64_t seed = uint64_t(words[1]) << 32 | words[0], frame = uint64_t(words[3]) << 32 | words[2];
        output[index] = overtone::philox_word({seed, frame, words[4]}, words[5]);
    }
}
