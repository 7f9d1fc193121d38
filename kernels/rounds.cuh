// Speculative rounds as the kernels see them: rust/core/src/rounds.rs tells what they are, rust/cuda/src/rounds.rs launches
// them and mirrors what is declared here.
//
//     the body -> heads -> draw_rows -> settle
//
// A stream that has drawn m codes holds code_m, which no pass has read yet. Row 0 of its round feeds that code, at position
// m + 1; the other rows feed drafts, each behind the rows it hangs under. Row r, d codebooks ahead, goes through
// Head[m + d], and draws. It also goes through the heads behind that one: should it be the last row accepted, the next
// round's drafts are there already. Every kernel reads from the stream's `RoundState` how far it is: streams advance at their
// own pace, and nothing is known to the host. A stream that is done, or takes no part, has m = R, and every kernel leaves it
// alone.

#pragma once

#include "fragments.cuh"
#include "frame_arguments.cuh"

namespace overtone {

/// The most rows of one stream in a verify pass.
CONSTANT int MOST_VERIFY_ROWS = 8;
/// The most KV slots of a stream.
CONSTANT int MOST_ROUND_SLOTS = 64;
/// A draft that is not there: its row takes no part.
CONSTANT int32_t NO_DRAFT = -1;
/// A row whose logits draw nothing.
CONSTANT int32_t FAILED_DRAW = -1;

/// Which drafts hang where; rows are ordered by depth, and row 0 is the pending code.
struct DraftTree {
    uint8_t parents[MOST_VERIFY_ROWS];
    uint8_t ranks[MOST_VERIFY_ROWS]; // among the proposals for the row's codebook
    uint8_t depths[MOST_VERIFY_ROWS]; // codebooks ahead of the pending code
    uint8_t rows;
    uint8_t depth; // of the deepest row
    uint8_t reserved[6];

    /// The row that `row` hangs under, or itself, at `of_depth`.
    DEVICE int ancestor(int row, int of_depth) const {
        while (depths[row] > of_depth) row = parents[row];
        return row;
    }
};

/// The heads of a round, as logits are laid out: [streams, heads, rows of the tree, V]. Row r, d codebooks ahead, draws from
/// head d, and drafts what is further ahead from the heads behind that. What is one codebook ahead may have drafts of its own,
/// fitted to frames: they are made from head `shared` + d.
struct RoundHeads {
    uint32_t shared; // that rows share, whatever they do with them
    uint32_t fitted; // of drafts: one for each depth, or none

    DEVICE uint32_t count() const { return shared + fitted; }
    DEVICE bool are_fitted(uint32_t ahead) const { return ahead == 1 && fitted != 0; }
    DEVICE uint32_t of(uint32_t depth, uint32_t ahead) const {
        return are_fitted(ahead) ? shared + depth : depth + ahead;
    }
};

/// What a codebook's draws are made from, and what its codes become. Entry i belongs to code_(i + 1).
struct CodebookAddresses {
    uint64_t head; // packed
    uint64_t table; // E[i] [V, Ht]
    uint64_t projected; // P of it, [V, H]; the same without a projection
    uint64_t draft_head; // packed: fitted, in place of `head` for a draft one codebook ahead
    uint64_t draft_table; // [V, V]: row code_i is added to that draft's logits
    uint32_t table_type;
    uint32_t projected_type;
    uint32_t draft_table_type;
    uint32_t reserved;
};

/// One stream of a frame in rounds. Slots of its KV cache are named, so that nothing is moved: those of drafts that were not
/// accepted are given out again.
struct alignas(16) RoundState {
    uint64_t used; // bit s: slot s holds a position
    uint32_t committed; // m: codes drawn so far
    uint32_t rounds; // of this frame
    uint32_t drafted; // drafts verified
    uint32_t accepted; // of those
    int32_t drafts[MOST_VERIFY_ROWS]; // the code that a row feeds
    int32_t drawn[MOST_VERIFY_ROWS]; // the code that a row draws
    uint8_t slots[MOST_ROUND_SLOTS]; // of each position
    uint8_t row_slots[MOST_VERIFY_ROWS]; // of this round's rows

    DEVICE bool is_done(uint32_t codebooks) const { return committed >= codebooks; }
};

/// What a row would have drafted behind it: by codebooks ahead of the one it draws, less one, and by rank.
struct RowProposals {
    int32_t codes[MOST_VERIFY_ROWS - 1][MOST_VERIFY_ROWS];
};

/// Where a loop over rounds stands, for all streams of a frame.
struct RoundLoop {
    uint32_t settled; // blocks of this round's last kernel; in the upper half, those whose stream is not done
    uint32_t unfinished; // streams that were not done after the last round
    uint32_t passes; // so far, the prefill among them
    uint32_t goes_on; // whether there is another round
};

/// What the rounds of one row of the batch counted since the predictor was loaded.
struct RoundCounters {
    uint64_t frames;
    uint64_t rounds;
    uint64_t codes; // that they drew
    uint64_t drafted;
    uint64_t accepted;
};

/// The lowest free slots, for the rows of the next round.
DEVICE void give_out_slots(RoundState& state, int rows) {
    const uint64_t used = state.used;
    for (int row = 0, slot = 0; row < rows && slot < MOST_ROUND_SLOTS; ++slot) {
        if (!(used >> slot & 1)) state.row_slots[row++] = static_cast<uint8_t>(slot);
    }
}

/// A stream before its prefill, whose two rows fill the first two slots; the second of them leads to code_1.
DEVICE void begin_rounds(RoundState& state, bool active, uint32_t codebooks, int64_t code_zero) {
    state.used = 3;
    state.committed = active ? 0 : codebooks;
    state.rounds = state.drafted = state.accepted = 0;
    for (int row = 0; row < MOST_VERIFY_ROWS; ++row) state.drafts[row] = NO_DRAFT;
    state.drafts[0] = static_cast<int32_t>(code_zero);
    for (int slot = 0; slot < MOST_ROUND_SLOTS; ++slot) state.slots[slot] = static_cast<uint8_t>(slot);
    state.row_slots[0] = 1;
}

} // namespace overtone
