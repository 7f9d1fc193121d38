// One thread's intrinsics over given inputs; the tests know what CUDA documents for each.

struct ScalarArguments {
    uint64_t integers;  // [count][3] uint32: a, b, c
    uint64_t floats;    // [count][3] float
    uint64_t outputs;   // [count][24] uint32
    uint32_t count;
    uint32_t reserved;
};

KERNEL(simt_test_scalars, ScalarArguments, 128, 1) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.count) return;
    const uint32_t* const integers = reinterpret_cast<const uint32_t*>(args.integers) + 3 * i;
    const float* const floats = reinterpret_cast<const float*>(args.floats) + 3 * i;
    uint32_t* out = reinterpret_cast<uint32_t*>(args.outputs) + 24 * i;
    const uint32_t a = __ldg(&integers[0]), b = __ldcg(&integers[1]), c = integers[2];
    const float x = floats[0], y = floats[1], z = floats[2];
    *out++ = uint32_t(__clz(int(a)));
    *out++ = uint32_t(__popc(a));
    *out++ = uint32_t(__ffs(int(a)));
    *out++ = __brev(a);
    *out++ = __umulhi(a, b);
    *out++ = uint32_t(__mulhi(int(a), int(b)));
    *out++ = __funnelshift_l(a, b, c);
    *out++ = __funnelshift_r(a, b, c);
    *out++ = __byte_perm(a, b, c);
    *out++ = min(a, b);
    *out++ = uint32_t(max(int(a), int(b)));
    *out++ = __float_as_uint(__fmaf_rn(x, y, z));
    *out++ = __float_as_uint(x * y + z);
    *out++ = __float_as_uint(__fdiv_rn(x, y));
    *out++ = __float_as_uint(__fsqrt_rn(x));
    *out++ = __float_as_uint(__frcp_rn(x));
    *out++ = uint32_t(__float2int_rz(x));
    *out++ = uint32_t(__float2int_rn(x));
    *out++ = __float2uint_rz(x);
    *out++ = __float_as_uint(__uint2float_rn(a));
    *out++ = __float_as_uint(fminf(x, y));
    *out++ = __float_as_uint(fmaxf(x, y));
    *out++ = uint32_t(__umul64hi(uint64_t(a) << 32 | b, uint64_t(b) << 32 | c));
    __stcg(out, uint32_t(__clzll(static_cast<long long>(a))));
}
