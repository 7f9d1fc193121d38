// The heads of a round: a small product for each stream and depth, with the matrix that the stream has come to.
//
// Rows of one depth share a head, and have a tile of columns for themselves, so a block reads its part of one matrix for up to
// seven rows. The arithmetic is that of any other head.

#include "product.cuh"
#include "rounds.cuh"

namespace overtone {

/// Which heads, and of what.
enum HeadsKind : uint32_t {
    /// Of every row of the round, at its own depth.
    HEADS_VERIFY = 0,
    /// Of each stream's seed, for every depth from 1 on.
    HEADS_DRAFT = 1,
};

struct HeadsArguments {
    uint64_t rounds; // RoundState [streams]
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t activations; // of T, a tile of columns for each stream and depth; of drafts one for each stream
    uint64_t output; // [streams, rows of the tree, V] float32; of drafts [streams, depth of the tree, V]
    uint32_t kind; // HeadsKind
    uint32_t codebook_count; // R
    uint32_t outputs; // V
    uint32_t row_tiles;
    uint32_t pairs;
    uint32_t depths; // handled for each stream: all, or 1 at the prefill
    DraftTree tree;
};

template <typename T> DEVICE void heads(const HeadsArguments& arguments) {
    const DraftTree& tree = arguments.tree;
    const bool drafts = arguments.kind == HEADS_DRAFT;
    const uint32_t stream = blockIdx.z / arguments.depths, depth = blockIdx.z % arguments.depths + drafts;
    // The round before wrote this, and kernels that waited for it have let this one start.
    const RoundState& round = reinterpret_cast<const RoundState*>(arguments.rounds)[stream];
    const uint32_t entry = round.committed + depth - drafts;
    // No row follows the last codebook: it is drafted for nobody.
    if (entry + drafts >= arguments.codebook_count || round.is_done(arguments.codebook_count)) {
        // A kernel that ended before the one before it would let the next one start too early.
        wait_for_earlier_kernels();
        return;
    }
    const CodebookAddresses& codebook = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[entry];
    const uint32_t first = drafts ? depth - 1 : tree.first[depth];
    const uint32_t tile = drafts ? stream : stream * (tree.depth + 1) + depth;
    const uint32_t rows = drafts ? tree.depth : tree.rows;
    ProductArguments product = {};
    product.weights = drafts && depth == 1 && codebook.draft_head != 0 ? codebook.draft_head : codebook.head;
    product.activations = arguments.activations + tile * activation_tile_elements(arguments.pairs) * sizeof(T);
    product.output = arguments.output + static_cast<uint64_t>(stream * rows + first) * arguments.outputs * sizeof(float);
    product.outputs = arguments.outputs;
    product.row_tiles = arguments.row_tiles;
    product.pairs = arguments.pairs;
    product.splits = 1;
    product.columns = drafts ? 1 : tree.first[depth + 1] - first;
    product.output_columns = product.columns;
    Product<T, 1, sizeof(T) == 2 ? 4 : 2, Source::Memory, Sink::Sums>(product).run();
}

} // namespace overtone

using overtone::HeadsArguments;

KERNEL(heads_f32, HeadsArguments, 256, 2) { overtone::heads<float>(args); }
KERNEL(heads_f16, HeadsArguments, 256, 2) { overtone::heads<overtone::Float16>(args); }
KERNEL(heads_bf16, HeadsArguments, 256, 2) { overtone::heads<overtone::BFloat16>(args); }
