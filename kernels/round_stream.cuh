// The round stream: speculative rounds whose every decision is made and kept on the device, so that many can be
// launched before the host reads anything. It knows nothing of the model: an engine drafts and verifies, these pieces
// do the rest.
//
// A round of a row (one stream of the batch):
//   1. the engine drafts up to k codes;
//   2. `assemble_verify` makes the rows of the verify pass: the pending code, if there is one, and the drafts;
//   3. the engine feeds entry e of them at position round_start + e, and draws a code from its logits: drawn[e];
//   4. `accept` takes the longest run of drafts that equal what was drawn before them, and one code more: the bonus
//      code, drawn behind the last draft taken. It is the new pending code;
//   5. `ring_commit` appends the drafts taken and the bonus code to the row's ring;
//   6. `rollback` sets every KV length to the positions that stay: the pending code's, and those of the drafts taken;
//   7. `seed_gather` hands the hidden row that made the bonus code to the next drafts.
//
// Drafts only decide how soon codes come: a draft is taken if and only if it is the code that is drawn anyway.
//
// One thread works on one row, so rows exchange nothing. Numbers found in memory are not trusted: whatever they are, a
// row writes within its own parts of the buffers, and nowhere else. (The addresses are the caller's word.)

#pragma once

#include "ptx.cuh"

namespace overtone {

/// No code: nothing is pending or predicted, a draw failed, or an entry of the verify pass is not used.
CONSTANT int32_t NO_CODE = -1;

/// `codes_left` of a row without an end. It is never counted down.
CONSTANT int32_t NO_LIMIT = 0x7fffffff;

/// Base of a row that takes no part in the round.
CONSTANT int32_t BASE_IDLE = -1;

/// What is wrong with a row; bits stay until the ring is armed again.
enum StreamFlag : uint32_t {
    /// Codes were committed that the ring had no room for.
    STREAM_OVERFLOW = 1,
    /// A draw that was to be committed gave no code.
    STREAM_FAILED = 2,
};

/// Counters of a row since its ring was armed: their places.
enum StreamCounter : uint32_t {
    COUNTER_ROUNDS = 0,
    COUNTER_CODES = 1,
    COUNTER_DRAFTED = 2,
    COUNTER_ACCEPTED = 3,
    COUNTERS = 4,
};

/// The buffers of a round stream, B rows each. All int32 but where noted.
struct RoundStream {
    uint64_t position; // [B]: positions fed so far; the next code goes there
    uint64_t round_start; // [B]: `position` when the round began
    uint64_t pending; // [B]: committed, not yet fed; NO_CODE: none
    uint64_t last_prediction; // [B]: drawn behind the last position; decides on the first draft when nothing is pending
    uint64_t codes_left; // [B]: codes that may still be committed
    uint64_t break_marks; // [B, 2]: drafts used, base (1: a code is pending, 0: none is, BASE_IDLE)
    uint64_t accept_counters; // [B, 2]: drafts accepted in the round, codes it commits
    uint64_t verify_codes; // [B, k + 1]
    uint64_t counters; // [B, COUNTERS] uint32
    uint64_t flags; // [B] uint32: StreamFlag
    uint64_t ring; // [B, ring_capacity + 1]: how many codes, then the codes
    uint32_t batch; // B
    uint32_t drafts; // k
    uint32_t ring_capacity; // codes that a ring has room for
    uint32_t code_count; // codes are 0 to code_count - 1
};

DEVICE int32_t* row_of(uint64_t array, uint32_t row, uint32_t width) {
    return reinterpret_cast<int32_t*>(array) + static_cast<int64_t>(row) * width;
}

DEVICE int32_t& value_of(uint64_t array, uint32_t row) { return *row_of(array, row, 1); }

DEVICE int32_t clamped(int32_t value, int32_t lowest, int32_t highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

DEVICE bool is_code(const RoundStream& stream, int32_t value) {
    return value >= 0 && static_cast<uint32_t>(value) < stream.code_count;
}

DEVICE uint32_t* flags_of(const RoundStream& stream, uint32_t row) {
    return reinterpret_cast<uint32_t*>(stream.flags) + row;
}

/// What the round made of a row, in bounds whatever memory holds.
struct Outcome {
    bool takes_part;
    int32_t base; // 0 or 1
    int32_t accepted; // 0 to k
    int32_t codes; // `accepted`, and one more unless the bonus draw failed
};

DEVICE Outcome outcome_of(const RoundStream& stream, uint32_t row) {
    const int32_t base = row_of(stream.break_marks, row, 2)[1];
    if (base != 0 && base != 1) return {false, 0, 0, 0};
    const int32_t* const counters = row_of(stream.accept_counters, row, 2);
    const int32_t accepted = clamped(counters[0], 0, static_cast<int32_t>(stream.drafts));
    return {true, base, accepted, clamped(counters[1], 0, accepted + 1)};
}

/// Step 2. A row takes part if it has codes left, a position that is not negative, and a code to go on from, pending or
/// predicted; else all its entries are NO_CODE and its base is BASE_IDLE.
///
/// It uses drafts up to the first that is no code, or whose probability is below `p_min` (NaN is below), and never more
/// than min(k, codes_left - 1), so that with the bonus code it does not pass its end. Entries beyond are NO_CODE.
DEVICE void assemble_verify(const RoundStream& stream, const int32_t* drafts, const float* probabilities, float p_min,
                            uint32_t row) {
    const int32_t k = static_cast<int32_t>(stream.drafts);
    const int32_t pending = value_of(stream.pending, row), left = value_of(stream.codes_left, row),
                  position = value_of(stream.position, row);
    const bool is_pending = is_code(stream, pending);
    const bool takes_part =
        left > 0 && position >= 0 && (is_pending || is_code(stream, value_of(stream.last_prediction, row)));
    int32_t* const verify_codes = row_of(stream.verify_codes, row, stream.drafts + 1);
    const int32_t most = !takes_part ? 0 : left - 1 < k ? left - 1 : k;
    int32_t entries = 0;
    if (takes_part && is_pending) verify_codes[entries++] = pending;
    int32_t used = 0;
    for (; used < most; ++used) {
        const int64_t place = static_cast<int64_t>(row) * k + used;
        if (!is_code(stream, drafts[place]) || (probabilities != nullptr && !(probabilities[place] >= p_min))) break;
        verify_codes[entries++] = drafts[place];
    }
    for (; entries <= k; ++entries) verify_codes[entries] = NO_CODE;
    int32_t* const marks = row_of(stream.break_marks, row, 2);
    marks[0] = used;
    marks[1] = takes_part ? is_pending : BASE_IDLE;
    value_of(stream.round_start, row) = position;
}

/// Step 4, from the codes drawn, [B, k + 1]. The first draft is taken if it equals what was drawn behind the pending
/// code, or `last_prediction` when nothing was pending; each further one if it equals what was drawn behind the draft
/// before it.
///
/// Where the bonus draw gave no code, the drafts taken still count, STREAM_FAILED is set, and the row has nothing to go
/// on from: it takes no part in later rounds. Draws behind drafts that are not taken are never looked at. A row that
/// takes no part keeps everything as it is, and its accept counters are 0.
DEVICE void accept(const RoundStream& stream, const int32_t* drawn, uint32_t row) {
    int32_t* const accept_counters = row_of(stream.accept_counters, row, 2);
    const int32_t* const marks = row_of(stream.break_marks, row, 2);
    const int32_t used = clamped(marks[0], 0, static_cast<int32_t>(stream.drafts)), base = marks[1];
    if (base != 0 && base != 1) {
        accept_counters[0] = accept_counters[1] = 0;
        return;
    }
    const int32_t* const verify_codes = row_of(stream.verify_codes, row, stream.drafts + 1);
    drawn += static_cast<int64_t>(row) * (stream.drafts + 1);
    int32_t bonus = base == 1 ? drawn[0] : value_of(stream.last_prediction, row);
    int32_t accepted = 0;
    while (accepted < used && is_code(stream, bonus) && verify_codes[base + accepted] == bonus)
        bonus = drawn[base + accepted++];
    const bool is_drawn = is_code(stream, bonus);
    const int32_t codes = accepted + (is_drawn ? 1 : 0);
    accept_counters[0] = accepted;
    accept_counters[1] = codes;
    value_of(stream.pending, row) = value_of(stream.last_prediction, row) = is_drawn ? bonus : NO_CODE;
    int32_t& left = value_of(stream.codes_left, row);
    if (left != NO_LIMIT) left = left > codes ? left - codes : 0;
    if (!is_drawn) *flags_of(stream, row) |= STREAM_FAILED;
    uint32_t* const counters = reinterpret_cast<uint32_t*>(row_of(stream.counters, row, COUNTERS));
    counters[COUNTER_ROUNDS] += 1;
    counters[COUNTER_CODES] += static_cast<uint32_t>(codes);
    counters[COUNTER_DRAFTED] += static_cast<uint32_t>(used);
    counters[COUNTER_ACCEPTED] += static_cast<uint32_t>(accepted);
}

/// Step 5. Codes that find no room set STREAM_OVERFLOW and are lost: the ring then holds the first `ring_capacity` of
/// them, in order. A count that no ring can have sets the flag, and nothing is written.
DEVICE void ring_commit(const RoundStream& stream, uint32_t row) {
    const Outcome outcome = outcome_of(stream, row);
    if (!outcome.takes_part) return;
    int32_t* const ring = row_of(stream.ring, row, stream.ring_capacity + 1);
    const int32_t count = ring[0], capacity = static_cast<int32_t>(stream.ring_capacity);
    if (count < 0 || count > capacity) {
        *flags_of(stream, row) |= STREAM_OVERFLOW;
        return;
    }
    const int32_t room = capacity - count, appended = outcome.codes < room ? outcome.codes : room;
    const int32_t* const taken = row_of(stream.verify_codes, row, stream.drafts + 1) + outcome.base;
    for (int32_t index = 0; index < appended; ++index)
        ring[1 + count + index] = index < outcome.accepted ? taken[index] : value_of(stream.pending, row);
    ring[0] = count + appended;
    if (appended < outcome.codes) *flags_of(stream, row) |= STREAM_OVERFLOW;
}

/// Step 6, for one length: round start + base + accepted. A row that took no part gets its round start, which undoes
/// what a verify pass added to it unasked. A round start below 0 means that there was no round: the length is left
/// alone.
DEVICE void rollback(const RoundStream& stream, int32_t* lengths, uint32_t row) {
    const int64_t start = value_of(stream.round_start, row);
    if (start < 0) return;
    const Outcome outcome = outcome_of(stream, row);
    const int64_t length = start + outcome.base + outcome.accepted;
    lengths[row] = length < NO_LIMIT ? static_cast<int32_t>(length) : NO_LIMIT;
}

/// Step 7: the entry of the verify pass whose hidden row made the bonus code. Negative for a row whose seed stays as it
/// is: it took no part, or the code before the round decided (nothing was pending and no draft was taken).
DEVICE int32_t seed_entry(const RoundStream& stream, uint32_t row) {
    const Outcome outcome = outcome_of(stream, row);
    return outcome.takes_part ? outcome.base + outcome.accepted - 1 : -1;
}

} // namespace overtone
