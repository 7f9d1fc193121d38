// Attention by itself: a block a key head and stream, a warp a query.

#include "attention.cuh"
#include "rounds.cuh"

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

struct TreeAttentionArguments {
    AttentionArguments attention; // `first_position` and `rows` are not looked at
    uint64_t rounds; // RoundState [streams]
    DraftTree tree;
};

/// The same for the rows of a round, a block for each of them: a row sees the positions before the pending code, the rows it
/// hangs under, and itself, in the order of positions, as a step by itself would.
template <typename T> DEVICE void attention_tree(const TreeAttentionArguments& arguments) {
    SHARED(unsigned char, memory);
    const AttentionArguments& attention = arguments.attention;
    const DraftTree& tree = arguments.tree;
    const int warp = threadIdx.x / WARP, queries = attention.query_heads / attention.key_value_heads;
    const int query_head = blockIdx.x * queries + warp, stream = blockIdx.y, row = blockIdx.z;
    Attention<T> head(attention, query_head, stream, memory + warp * Attention<T>::shared_bytes(attention));
    // The round before wrote this, and has ended.
    const RoundState& round = reinterpret_cast<const RoundState*>(arguments.rounds)[stream];
    const int pending = round.committed + 1; // position
    const bool takes_part = pending < static_cast<int>(attention.positions) && round.drafts[row] != NO_DRAFT;
    if (takes_part) head.read_ahead(pending, [&](int position) { return static_cast<int>(round.slots[position]); });
    let_next_kernel_start();
    wait_for_earlier_kernels();
    if (!takes_part) return;
    wait_for_copies();
    const int depth = tree.depths[row], own_slot = head.keeps_cache() ? round.row_slots[row] : -1;
    for (int above = 0; above <= depth; ++above) {
        if (above > 0) head.load_turns(pending + above);
        head.take_in(tree.ancestor(row, above), pending + above, above == depth ? own_slot : -1);
    }
    T* const attended = reinterpret_cast<T*>(attention.attended);
    head.attend_from(pending + depth, [&](int element, float value, float next) {
        const int column = row * attention.streams + stream;
        store_activations<T>(attended, attention.pairs, column, query_head * head.size + element, value, next);
    });
}

} // namespace overtone

using overtone::AttentionArguments;
using overtone::TreeAttentionArguments;

KERNEL(attention_f32, AttentionArguments, 512, 1) { overtone::attention<float>(args); }
KERNEL(attention_f16, AttentionArguments, 512, 1) { overtone::attention<overtone::Float16>(args); }
KERNEL(attention_bf16, AttentionArguments, 512, 1) { overtone::attention<overtone::BFloat16>(args); }

KERNEL(attention_tree_f32, TreeAttentionArguments, 512, 1) { overtone::attention_tree<float>(args); }
KERNEL(attention_tree_f16, TreeAttentionArguments, 512, 1) { overtone::attention_tree<overtone::Float16>(args); }
KERNEL(attention_tree_bf16, TreeAttentionArguments, 512, 1) { overtone::attention_tree<overtone::BFloat16>(args); }
