// The heads of a round: a small product for each stream and head, with the matrices that the stream has come to.
//
// The rows of a stream have a tile of columns for themselves, so a block reads its part of one matrix for all of them, whether
// each has a use for it or not: the columns of a tile cost what one does. The arithmetic is that of any other head.

#include "product.cuh"
#include "rounds.cuh"

namespace overtone {

static_assert(MOST_VERIFY_ROWS <= TILE_COLUMNS, "a stream's rows are one tile");

struct HeadsArguments {
    uint64_t rounds; // RoundState [streams]
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t activations; // of T, a tile of columns for each stream
    uint64_t output; // [streams, heads, rows of the tree, V] float32
    uint32_t codebook_count; // R
    uint32_t outputs; // V
    uint32_t row_tiles;
    uint32_t pairs;
    uint32_t rows; // of the tree
    uint32_t columns; // rows of each stream that are there
    RoundHeads heads;
};

/// Block (tile of outputs, -, (stream, head)).
template <typename T> DEVICE void heads(const HeadsArguments& arguments) {
    const RoundHeads& heads = arguments.heads;
    const uint32_t stream = blockIdx.z / heads.count(), head = blockIdx.z % heads.count();
    const bool fitted = head >= heads.shared;
    // The round before wrote this, and has ended.
    const RoundState& round = reinterpret_cast<const RoundState*>(arguments.rounds)[stream];
    const uint32_t entry = round.committed + (fitted ? head - heads.shared + 1 : head);
    // No row follows the last codebook: it is drafted for nobody.
    if (entry + fitted >= arguments.codebook_count) {
        // A kernel that ended before the one before it would let the next one start too early.
        wait_for_earlier_kernels();
        return;
    }
    const CodebookAddresses& codebook = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[entry];
    const uint64_t rows = static_cast<uint64_t>(blockIdx.z) * arguments.rows;
    ProductArguments product = {};
    product.weights = fitted ? codebook.draft_head : codebook.head;
    product.activations = arguments.activations + stream * activation_tile_elements(arguments.pairs) * sizeof(T);
    product.output = arguments.output + rows * arguments.outputs * sizeof(float);
    product.outputs = arguments.outputs;
    product.row_tiles = arguments.row_tiles;
    product.pairs = arguments.pairs;
    product.splits = 1;
    product.columns = arguments.columns;
    product.output_columns = arguments.columns;
    Product<T, 1, sizeof(T) == 2 ? 4 : 2, Source::Memory, Sink::Sums>(product).run();
}

} // namespace overtone

using overtone::HeadsArguments;

KERNEL(heads_f32, HeadsArguments, 256, 2) { overtone::heads<float>(args); }
KERNEL(heads_f16, HeadsArguments, 256, 2) { overtone::heads<overtone::Float16>(args); }
KERNEL(heads_bf16, HeadsArguments, 256, 2) { overtone::heads<overtone::BFloat16>(args); }
