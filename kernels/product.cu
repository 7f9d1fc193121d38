// The products of a frame, by what they read and what they leave.
//
// Tiles a block owns and pairs of steps its lanes hold are chosen for the true architecture (1024 wide, MLP 3072) and a card
// of about 130 multiprocessors: every matrix makes 128 to 192 blocks. Any other size works, with more trips to memory.
//
// wide: many outputs of few inputs (q, k, v). gated: gate and up. narrow: few outputs (o; heads; the projection). deep: few
// outputs of many inputs (down). Each is there for few columns and for many; `norm` makes its activations by itself, and so
// does attended: o, with the attention before it.

#include "product.cuh"

namespace overtone {

template <typename T> constexpr int FEW_PAIRS = sizeof(T) == 2 ? 4 : 2;
template <typename T> constexpr int MANY_PAIRS = sizeof(T) == 2 ? 6 : 3;

template <typename T> using WideNorm = Product<T, 2, FEW_PAIRS<T>, Source::Norm, Sink::Sums>;
template <typename T, Columns COLUMNS> using Wide = Product<T, 2, FEW_PAIRS<T>, Source::Memory, Sink::Sums, COLUMNS>;
template <typename T, Sink SINK> using GatedNorm = Product<T, 3, FEW_PAIRS<T>, Source::Norm, SINK>;
template <typename T, Sink SINK, Columns COLUMNS> using Gated =
    Product<T, 2, FEW_PAIRS<T>, Source::Memory, SINK, COLUMNS>;
template <typename T> using NarrowNorm = Product<T, 1, FEW_PAIRS<T>, Source::Norm, Sink::Sums>;
template <typename T, Columns COLUMNS> using Narrow = Product<T, 1, FEW_PAIRS<T>, Source::Memory, Sink::Sums, COLUMNS>;
template <typename T> using Attended = Product<T, 1, FEW_PAIRS<T>, Source::Attention, Sink::Sums>;
template <typename T, Source SOURCE, Columns COLUMNS> using Deep =
    Product<T, 1, MANY_PAIRS<T>, SOURCE, Sink::Sums, COLUMNS>;

} // namespace overtone

using namespace overtone;

KERNEL(product_wide_norm_f32, ProductArguments, 256, 2) { WideNorm<float>(args).run(); }
KERNEL(product_gated_norm_f32, ProductArguments, 256, 1) { GatedNorm<float, Sink::Gated>(args).run(); }
KERNEL(product_narrow_norm_f32, ProductArguments, 256, 2) { NarrowNorm<float>(args).run(); }
KERNEL(product_attended_f32, ProductArguments, 256, 2) { Attended<float>(args).run(); }
KERNEL(product_wide_few_f32, ProductArguments, 256, 2) { Wide<float, Columns::Few>(args).run(); }
KERNEL(product_gated_few_f32, ProductArguments, 256, 2) { Gated<float, Sink::Gated, Columns::Few>(args).run(); }
KERNEL(product_narrow_few_f32, ProductArguments, 256, 2) { Narrow<float, Columns::Few>(args).run(); }
KERNEL(product_deep_few_f32, ProductArguments, 256, 2) { Deep<float, Source::Memory, Columns::Few>(args).run(); }
KERNEL(product_wide_many_f32, ProductArguments, 256, 2) { Wide<float, Columns::Many>(args).run(); }
KERNEL(product_gated_many_f32, ProductArguments, 256, 2) { Gated<float, Sink::Gated, Columns::Many>(args).run(); }
KERNEL(product_narrow_many_f32, ProductArguments, 256, 2) { Narrow<float, Columns::Many>(args).run(); }
KERNEL(product_deep_many_f32, ProductArguments, 256, 2) { Deep<float, Source::Memory, Columns::Many>(args).run(); }

// silu(gate) * up reaches values that float16 rounds audibly: it goes on in two parts.
KERNEL(product_wide_norm_f16, ProductArguments, 256, 2) { WideNorm<Float16>(args).run(); }
KERNEL(product_gated_norm_f16, ProductArguments, 256, 1) { GatedNorm<Float16, Sink::GatedHighAndLow>(args).run(); }
KERNEL(product_narrow_norm_f16, ProductArguments, 256, 2) { NarrowNorm<Float16>(args).run(); }
KERNEL(product_attended_f16, ProductArguments, 256, 2) { Attended<Float16>(args).run(); }
KERNEL(product_wide_few_f16, ProductArguments, 256, 2) { Wide<Float16, Columns::Few>(args).run(); }
KERNEL(product_gated_few_f16, ProductArguments, 256, 2) {
    Gated<Float16, Sink::GatedHighAndLow, Columns::Few>(args).run();
}
KERNEL(product_narrow_few_f16, ProductArguments, 256, 2) { Narrow<Float16, Columns::Few>(args).run(); }
KERNEL(product_deep_few_f16, ProductArguments, 256, 2) {
    Deep<Float16, Source::MemoryHighAndLow, Columns::Few>(args).run();
}
KERNEL(product_wide_many_f16, ProductArguments, 256, 2) { Wide<Float16, Columns::Many>(args).run(); }
KERNEL(product_gated_many_f16, ProductArguments, 256, 2) {
    Gated<Float16, Sink::GatedHighAndLow, Columns::Many>(args).run();
}
KERNEL(product_narrow_many_f16, ProductArguments, 256, 2) { Narrow<Float16, Columns::Many>(args).run(); }
KERNEL(product_deep_many_f16, ProductArguments, 256, 2) {
    Deep<Float16, Source::MemoryHighAndLow, Columns::Many>(args).run();
}

KERNEL(product_wide_norm_bf16, ProductArguments, 256, 2) { WideNorm<BFloat16>(args).run(); }
KERNEL(product_gated_norm_bf16, ProductArguments, 256, 1) { GatedNorm<BFloat16, Sink::Gated>(args).run(); }
KERNEL(product_narrow_norm_bf16, ProductArguments, 256, 2) { NarrowNorm<BFloat16>(args).run(); }
KERNEL(product_attended_bf16, ProductArguments, 256, 2) { Attended<BFloat16>(args).run(); }
KERNEL(product_wide_few_bf16, ProductArguments, 256, 2) { Wide<BFloat16, Columns::Few>(args).run(); }
KERNEL(product_gated_few_bf16, ProductArguments, 256, 2) { Gated<BFloat16, Sink::Gated, Columns::Few>(args).run(); }
KERNEL(product_narrow_few_bf16, ProductArguments, 256, 2) { Narrow<BFloat16, Columns::Few>(args).run(); }
KERNEL(product_deep_few_bf16, ProductArguments, 256, 2) { Deep<BFloat16, Source::Memory, Columns::Few>(args).run(); }
KERNEL(product_wide_many_bf16, ProductArguments, 256, 2) { Wide<BFloat16, Columns::Many>(args).run(); }
KERNEL(product_gated_many_bf16, ProductArguments, 256, 2) { Gated<BFloat16, Sink::Gated, Columns::Many>(args).run(); }
KERNEL(product_narrow_many_bf16, ProductArguments, 256, 2) { Narrow<BFloat16, Columns::Many>(args).run(); }
KERNEL(product_deep_many_bf16, ProductArguments, 256, 2) { Deep<BFloat16, Source::Memory, Columns::Many>(args).run(); }
