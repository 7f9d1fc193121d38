// The start of a frame, one block a row: what the row draws with, whether it takes part, and the two rows of its prefill.

#include "fragments.cuh"
#include "frame_arguments.cuh"
#include "rounds.cuh"

namespace overtone {

/// Activations whose width in pairs is more than their inputs. What lies beyond meets weights that are zero, and must be a
/// number: somebody else may have used the memory since the last frame.
struct PaddedActivations {
    uint64_t activations; // of T, `columns` for each slot
    uint32_t inputs;
    uint32_t pairs;
    uint32_t columns;
    uint32_t reserved;
};

CONSTANT int PADDED_BUFFERS = 5;

struct BeginArguments {
    uint64_t frame; // FrameBlock
    uint64_t rows; // RowState [slots]
    uint64_t counters; // FrameCounters
    uint64_t residual; // [2 * slots, H] float32: the hidden rows, then the rows of code_0
    uint64_t hidden; // activations of T, `pairs` wide: the hidden rows on their way to the projection; 0: there is none
    uint64_t codec_sum; // [slots, Ht] float32
    uint64_t rounds; // RoundState [slots]; 0: the frame goes step by step
    uint64_t loop; // RoundLoop
    uint32_t slots; // rows that the graph was made for; those beyond the frame's batch are inactive
    uint32_t hidden_size;
    uint32_t talker_hidden_size;
    uint32_t pairs;
    uint32_t codebook_count; // R
    uint32_t reserved;
    PaddedActivations padded[PADDED_BUFFERS];
};

/// Status of a row whose `code_0` lies outside the talker's table.
CONSTANT int32_t STATUS_CODE_ZERO_OUT_OF_RANGE = -1;

DEVICE int64_t integer_of_row(const TensorReference& tensor, uint32_t row) {
    return load_integer(data_of(tensor), row * tensor.strides[0], tensor.type);
}

DEVICE float float_of_row(const TensorReference& tensor, uint32_t row) {
    return load_float(data_of(tensor), row * tensor.strides[0], tensor.type);
}

/// How the row draws: from device arrays where there are some, else as the host said.
DEVICE RowState state_of_row(const FrameHeader& frame, const RowParameters& given, uint64_t launches, uint32_t row) {
    RowState state = {};
    state.active = given.inactive == 0 && (frame.active.address == 0 || integer_of_row(frame.active, row) != 0);
    state.temperature = given.temperature;
    state.top_k = given.top_k;
    state.top_p = given.top_p;
    state.seed = given.seed;
    state.frame_index = given.frame_index + (frame.advance_frame_index ? launches : 0);
    if (frame.temperature.address != 0) {
        state.temperature = float_of_row(frame.temperature, row);
        state.top_p = float_of_row(frame.top_p, row);
        const int64_t top_k = integer_of_row(frame.top_k, row);
        state.top_k = top_k > 0xffffffffll ? 0xffffffffu : static_cast<uint32_t>(top_k);
        state.seed = static_cast<uint64_t>(integer_of_row(frame.seed, row));
        const bool usable = state.temperature >= 0.0f && state.temperature < INFINITY && top_k >= 0 &&
                            state.top_p > 0.0f && state.top_p <= 1.0f;
        state.parameters_out_of_range = !usable;
    }
    if (frame.frame_index.address != 0) {
        const int64_t index = integer_of_row(frame.frame_index, row);
        state.frame_index = static_cast<uint64_t>(index);
        if (frame.frame_index.type == ELEMENT_INT64 && index < 0 && state.temperature != 0.0f)
            state.parameters_out_of_range = 1;
    }
    return state;
}

/// Address of the row's codes.
DEVICE uint64_t codes_of_row(const FrameHeader& frame, uint32_t row) {
    const TensorReference& codes = frame.codes;
    int64_t element = row * codes.strides[1];
    if (frame.ring_slot.address != 0) {
        const int64_t count = *static_cast<const int64_t*>(data_of(frame.ring_slot));
        element += count % codes.extent * codes.strides[0];
    }
    const int64_t size = codes.type == ELEMENT_INT64 ? 8 : 4;
    return codes.address + static_cast<uint64_t>(element * size);
}

/// Makes the padding of a column's activations zero.
template <typename T> DEVICE void clear_padding(const PaddedActivations& padded, uint32_t column) {
    const uint32_t width = padded.pairs * PAIR;
    T* const tile =
        reinterpret_cast<T*>(padded.activations) + column / TILE_COLUMNS * activation_tile_elements(padded.pairs);
    for (uint32_t index = padded.inputs + threadIdx.x; index < width; index += blockDim.x)
        tile[Fragments<T>::activation_index(column, index)] = from_float<T>(0.0f);
}

/// By one thread: a stream of a frame in rounds.
DEVICE void begin_stream(const BeginArguments& arguments, uint32_t row, bool active, int64_t code_zero) {
    if (arguments.rounds == 0) return;
    RoundState& round = reinterpret_cast<RoundState*>(arguments.rounds)[row];
    begin_rounds(round, active, arguments.codebook_count, code_zero);
}

template <typename T> DEVICE void begin(const BeginArguments& arguments) {
    // The next kernel is not let start early: those after it read the rows' parameters without waiting.
    const uint32_t row = blockIdx.x;
    for (const PaddedActivations& padded : arguments.padded) {
        if (padded.activations == 0) continue;
        for (uint32_t turn = 0; turn < padded.columns; ++turn) clear_padding<T>(padded, turn * arguments.slots + row);
    }
    const FrameBlock& block = *reinterpret_cast<const FrameBlock*>(arguments.frame);
    const FrameHeader& frame = block.header;
    RowState& shared_state = reinterpret_cast<RowState*>(arguments.rows)[row];
    if (arguments.rounds != 0 && row == 0 && threadIdx.x == 0) *reinterpret_cast<RoundLoop*>(arguments.loop) = {};
    if (row >= frame.batch) {
        if (threadIdx.x == 0) {
            shared_state.active = 0;
            begin_stream(arguments, row, false, 0);
        }
        return;
    }
    const uint64_t launches = reinterpret_cast<const FrameCounters*>(arguments.counters)->launches;
    RowState state = state_of_row(frame, block.rows[row], launches, row);
    int64_t code_zero = frame.code_zero.address == 0 ? block.rows[row].code_zero : integer_of_row(frame.code_zero, row);
    if (code_zero < 0 || code_zero >= frame.code_zero_table.extent) {
        state.status = STATUS_CODE_ZERO_OUT_OF_RANGE;
        code_zero = 0;
    }
    if (threadIdx.x == 0) {
        state.codes = codes_of_row(frame, row);
        shared_state = state;
        begin_stream(arguments, row, state.active, code_zero);
        if (state.active) store_code(frame, state.codes, 0, code_zero);
    }
    if (!state.active) return;

    const uint32_t width = arguments.talker_hidden_size, hidden_size = arguments.hidden_size;
    const TensorReference& hidden = frame.talker_last_hidden;
    float* const residual = reinterpret_cast<float*>(arguments.residual);
    float* const codec_sum = reinterpret_cast<float*>(arguments.codec_sum) + static_cast<int64_t>(row) * width;
    for (uint32_t index = threadIdx.x; index < width; index += blockDim.x)
        codec_sum[index] =
            load_float(data_of(frame.code_zero_table), code_zero * width + index, frame.code_zero_table.type);
    for (uint32_t index = threadIdx.x; index < hidden_size; index += blockDim.x)
        residual[static_cast<int64_t>(arguments.slots + row) * hidden_size + index] = load_float(
            data_of(frame.code_zero_projected), code_zero * hidden_size + index, frame.code_zero_projected.type);
    const auto element = [&](uint32_t index) {
        if (index >= width) return 0.0f;
        return load_float(data_of(hidden), row * hidden.strides[0] + index * hidden.strides[1], hidden.type);
    };
    if (arguments.hidden == 0) {
        for (uint32_t index = threadIdx.x; index < width; index += blockDim.x)
            residual[static_cast<int64_t>(row) * hidden_size + index] = element(index);
    } else {
        T* const activations = reinterpret_cast<T*>(arguments.hidden);
        for (uint32_t index = 2 * threadIdx.x; index < arguments.pairs * PAIR; index += 2 * blockDim.x)
            store_activations<T>(activations, arguments.pairs, row, index, element(index), element(index + 1));
    }
}

} // namespace overtone

using overtone::BeginArguments;

KERNEL(begin_f32, BeginArguments, 256, 2) { overtone::begin<float>(args); }
KERNEL(begin_f16, BeginArguments, 256, 2) { overtone::begin<overtone::Float16>(args); }
KERNEL(begin_bf16, BeginArguments, 256, 2) { overtone::begin<overtone::BFloat16>(args); }
