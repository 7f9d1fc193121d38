// Attention by itself: a block a key head and stream, a warp a query.

#include "attention.cuh"

namespace overtone {

template <typename T> DEVICE void attention(const AttentionArguments& arguments) {
    SHARED(unsigned char, memory);
    const int warp = threadIdx.x / WARP, queries = arguments.query_heads / arguments.key_value_heads;
    const int query_head = blockIdx.x * queries + warp, stream = blockIdx.y;
    Attention<T> head(arguments, query_head, stream, memory + warp * Attention<T>::shared_bytes(arguments));
    head.read_ahead();
    let_next_kernel_start();
    wait_for_earlier_kernels();
    T* const attended = reinterpret_cast<T*>(arguments.attended);
    for (int row = 0; row < static_cast<int>(arguments.rows); ++row)
        head.attend(row, head.keeps_cache(), [&](int element, float value, float next) {
            const int column = row * arguments.streams + stream;
            store_activations<T>(attended, arguments.pairs, column, query_head * head.size + element, value, next);
        });
}

} // namespace overtone

using overtone::AttentionArguments;

KERNEL(attention_f32, AttentionArguments, 512, 1) { overtone::attention<float>(args); }
KERNEL(attention_f16, AttentionArguments, 512, 1) { overtone::attention<overtone::Float16>(args); }
KERNEL(attention_bf16, AttentionArguments, 512, 1) { overtone::attention<overtone::BFloat16>(args); }
