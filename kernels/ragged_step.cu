// The layout of a step whose rows bring different numbers of query tokens, published for attention engines: which tokens
// are whose, at which positions, of which KV state. rust/core/src/ragged.rs defines it; this computes the same.
//
// One block, a thread a row, then all threads over the step's places: a step has few rows, and KV lengths that are read by
// every row and advanced at the end need an order that blocks have not.
//
// A row that cannot be published is published as one without tokens, its reason in `status` and, as bit 1 << reason, in
// `faults`, which nobody here clears. Whatever lengths and indices hold, nothing is written outside the step's places, and
// KV lengths are read and written only at state indices that exist. A row whose query length is 0 takes no part: its state
// index and past length are not looked at.
//
// Token order. Row b has the places query_offsets[b] .. query_offsets[b] + query_lengths[b]. Packed: rows follow one
// another, and the padding of all rows comes behind the last. Padded: each row has query_width places, padding at their
// end. Either way a step has batch * query_width places, and all of them are written.

#include "frame_arguments.cuh"

namespace overtone {

CONSTANT uint32_t RAGGED_ROWS = 256;

enum RaggedPhase : uint32_t { RAGGED_PREFILL = 0, RAGGED_DECODE = 1, RAGGED_VERIFY = 2 };

enum RowFault : int32_t {
    ROW_GOOD = 0,
    ROW_QUERY_LENGTH = 1, // negative, or more than query_width
    ROW_STATE_INDEX = 2, // no such state
    ROW_PAST_LENGTH = 3, // negative, or past and query together more than max_positions
    ROW_PAST_OF_PREFILL = 4, // a prefill of a state that has a past, where chunks are not allowed
    ROW_SHARED_STATE = 5, // a row before it has the same state
};

struct RaggedStepArguments {
    TensorReference query_lengths; // [batch] int32 or int64; absent: given_query_lengths
    TensorReference past_lengths; // [batch] int32 or int64; absent: of the states, or given_past_lengths
    TensorReference given_states; // [batch] int32 or int64; absent: row b has state b
    TensorReference kv_lengths; // [states] int32; absent: nobody keeps any
    uint64_t query_offsets; // int32 [rows + 1]
    uint64_t published_query_lengths; // int32 [rows]
    uint64_t published_past_lengths; // int32 [rows]
    uint64_t total_lengths; // int32 [rows]
    uint64_t last_tokens; // int32 [rows]: -1 for a row without tokens
    uint64_t status; // int32 [rows]: RowFault
    uint64_t positions; // [batch * query_width] of positions_type
    uint64_t state_indices; // [batch * query_width] of state_indices_type; -1 for padding
    uint64_t phase_out; // int32 [1]
    uint64_t faults; // int32 [1]: bits of all faults since it was cleared
    uint32_t positions_type; // ELEMENT_INT32 or ELEMENT_INT64
    uint32_t state_indices_type; // likewise
    uint32_t batch; // rows of the step
    uint32_t rows; // rows of the tensors; at most RAGGED_ROWS
    uint32_t query_width;
    uint32_t max_positions;
    uint32_t states;
    uint32_t phase; // RaggedPhase
    uint32_t packed; // 0: padded
    uint32_t chunked_prefill; // a prefill may have a past
    uint32_t past_of_states; // kv_lengths are the past lengths
    uint32_t advance; // kv_lengths become the total lengths
    int32_t padding_position;
    uint32_t reserved;
    int32_t given_query_lengths[RAGGED_ROWS]; // checked by the host
    int32_t given_past_lengths[RAGGED_ROWS]; // likewise
};

struct RaggedShared {
    int32_t query_lengths[RAGGED_ROWS];
    int32_t past_lengths[RAGGED_ROWS];
    int32_t states[RAGGED_ROWS]; // -1: the row takes no part
    int32_t offsets[RAGGED_ROWS + 1];
};

/// One row: without tokens unless it takes part.
struct RaggedRow {
    int32_t query_length;
    int32_t past_length;
    int32_t state;
    int32_t fault;
};

DEVICE int64_t entry_of(const TensorReference& tensor, int64_t index) {
    return load_integer(data_of(tensor), index * tensor.strides[0], tensor.type);
}

DEVICE int32_t* int32_at(uint64_t address) { return reinterpret_cast<int32_t*>(address); }

DEVICE void store_integer(uint64_t array, uint32_t place, uint32_t type, int32_t value) {
    if (type == ELEMENT_INT64) reinterpret_cast<int64_t*>(array)[place] = value;
    else int32_at(array)[place] = value;
}

/// What a row says, and what is wrong with it by itself.
DEVICE RaggedRow ragged_row(const RaggedStepArguments& arguments, uint32_t row) {
    RaggedRow none = {0, 0, -1, ROW_GOOD};
    if (row >= arguments.batch) return none;
    const bool query_given = arguments.query_lengths.address == 0;
    const int64_t query = query_given ? arguments.given_query_lengths[row] : entry_of(arguments.query_lengths, row);
    if (query == 0) return none;
    if (query < 0 || query > arguments.query_width) {
        none.fault = ROW_QUERY_LENGTH;
        return none;
    }
    const int64_t state = arguments.given_states.address == 0 ? row : entry_of(arguments.given_states, row);
    if (state < 0 || state >= arguments.states) {
        none.fault = ROW_STATE_INDEX;
        return none;
    }
    int64_t past = arguments.given_past_lengths[row];
    if (arguments.past_lengths.address != 0) past = entry_of(arguments.past_lengths, row);
    else if (arguments.past_of_states) past = entry_of(arguments.kv_lengths, state);
    if (past < 0 || past > static_cast<int64_t>(arguments.max_positions) - query) {
        none.fault = ROW_PAST_LENGTH;
        return none;
    }
    if (arguments.phase == RAGGED_PREFILL && !arguments.chunked_prefill && past != 0) {
        none.fault = ROW_PAST_OF_PREFILL;
        return none;
    }
    return {static_cast<int32_t>(query), static_cast<int32_t>(past), static_cast<int32_t>(state), ROW_GOOD};
}

/// Whether a row before this one has its state. Without indices rows have states of their own.
DEVICE bool shares_its_state(const RaggedStepArguments& arguments, const RaggedShared& shared, uint32_t row) {
    const int32_t state = shared.states[row];
    if (arguments.given_states.address == 0 || state < 0) return false;
    bool shares = false;
    for (uint32_t other = 0; other < row; ++other) shares |= shared.states[other] == state;
    return shares;
}

/// Where rows begin: sums of what the rows before them take. Afterwards the block is in step.
DEVICE void sum_offsets(RaggedShared& shared, uint32_t row, int32_t taken) {
    shared.offsets[row + 1] = taken;
    if (row == 0) shared.offsets[0] = 0;
    __syncthreads();
    for (uint32_t distance = 1; distance < RAGGED_ROWS; distance *= 2) {
        const int32_t before = row >= distance ? shared.offsets[row + 1 - distance] : 0;
        __syncthreads();
        shared.offsets[row + 1] += before;
        __syncthreads();
    }
}

/// Everything of a row but its tokens.
DEVICE void publish_row(const RaggedStepArguments& arguments, const RaggedRow& row, int32_t offset, uint32_t index) {
    int32_at(arguments.published_query_lengths)[index] = row.query_length;
    int32_at(arguments.published_past_lengths)[index] = row.past_length;
    int32_at(arguments.total_lengths)[index] = row.past_length + row.query_length;
    int32_at(arguments.last_tokens)[index] = row.query_length > 0 ? offset + row.query_length - 1 : -1;
    int32_at(arguments.status)[index] = row.fault;
    if (row.fault != ROW_GOOD) atomicOr(int32_at(arguments.faults), 1 << row.fault);
}

DEVICE void publish_tokens(const RaggedStepArguments& arguments, const RaggedShared& shared) {
    const uint32_t width = arguments.query_width, places = arguments.batch * width;
    for (uint32_t index = threadIdx.x; index < places; index += blockDim.x) {
        const uint32_t row = index / width, token = index - row * width;
        const uint32_t length = shared.query_lengths[row], offset = shared.offsets[row];
        const bool is_token = token < length;
        uint32_t place = offset + token;
        // Packed padding: behind all tokens, and behind the padding of the rows before.
        if (arguments.packed && !is_token)
            place = shared.offsets[RAGGED_ROWS] + (row * width - offset) + (token - length);
        const int32_t position =
            is_token ? shared.past_lengths[row] + static_cast<int32_t>(token) : arguments.padding_position;
        store_integer(arguments.positions, place, arguments.positions_type, position);
        store_integer(arguments.state_indices, place, arguments.state_indices_type, is_token ? shared.states[row] : -1);
    }
}

DEVICE void ragged_step(const RaggedStepArguments& arguments) {
    SHARED(RaggedShared, shared);
    const uint32_t index = threadIdx.x;
    RaggedRow row = ragged_row(arguments, index);
    shared->states[index] = row.state;
    __syncthreads();
    const bool shares = shares_its_state(arguments, *shared, index);
    __syncthreads();
    if (shares) {
        row = {0, 0, -1, ROW_SHARED_STATE};
        shared->states[index] = -1;
    }
    shared->query_lengths[index] = row.query_length;
    shared->past_lengths[index] = row.past_length;
    const int32_t padded = index < arguments.batch ? static_cast<int32_t>(arguments.query_width) : 0;
    sum_offsets(*shared, index, arguments.packed ? row.query_length : padded);

    if (index < arguments.rows) {
        publish_row(arguments, row, shared->offsets[index], index);
        int32_at(arguments.query_offsets)[index + 1] = shared->offsets[index + 1];
    }
    if (index == 0) {
        int32_at(arguments.query_offsets)[0] = 0;
        *int32_at(arguments.phase_out) = static_cast<int32_t>(arguments.phase);
    }
    publish_tokens(arguments, *shared);
    // Every row has read its past; states of rows that take part differ.
    if (arguments.advance && row.state >= 0) {
        int32_t* const lengths = static_cast<int32_t*>(mutable_data_of(arguments.kv_lengths));
        lengths[row.state * arguments.kv_lengths.strides[0]] = row.past_length + row.query_length;
    }
}

} // namespace overtone

using overtone::RaggedStepArguments;

KERNEL(ragged_step, RaggedStepArguments, 256, 2) { overtone::ragged_step(args); }
