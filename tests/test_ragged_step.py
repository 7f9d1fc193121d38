"""Ragged steps: an engine that steps through what is published, and what is refused or flagged on the way."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from overtone import (
    CodePredictor,
    FrameError,
    InputError,
    Phase,
    RaggedBatch,
    RaggedConfig,
    RaggedFault,
    RaggedIo,
    RaggedStep,
    Tensor,
)
from talker_engine import VOCABULARY, Array, Talker

LAYOUTS = ("packed", "padded")
CONFIG = RaggedConfig(max_batch=4, max_query_width=3, max_positions=10, max_states=6)
VECTORS = [each.name for each in dataclasses.fields(RaggedBatch) if each.init]


def publish(predictor: CodePredictor, batch: RaggedBatch, **changes: Any) -> RaggedStep:
    """A verify step of three rows, unless told otherwise."""
    arguments: dict[str, Any] = {
        "batch": batch,
        "io": RaggedIo(),
        "config": CONFIG,
        "query_lengths": [2, 0, 3],
        "past_lengths": [4, 5, 6],
        "batch_size": 3,
        "query_width": 3,
        "phase": "verify",
    } | changes
    return predictor.prepare_ragged_step(**arguments)


def published(batch: RaggedBatch) -> dict[str, list[int]]:
    return {name: Tensor.from_dlpack(getattr(batch, name)).tolist() for name in VECTORS}


def fresh(**own: Any) -> RaggedBatch:
    return dataclasses.replace(RaggedBatch.zeros(CONFIG), **own)


# --- a talker's engine -----------------------------------------------------------------------------------------------


def alone(prompt: list[int], forced: list[int], predictor: CodePredictor) -> Array:
    """Logits after the prompt and after each forced token, one token a step in a batch of one."""
    talker = Talker(predictor, RaggedConfig(max_batch=1, max_query_width=1, max_positions=40))
    return np.concatenate([talker.step(Phase.DECODE, [[token]])[0] for token in prompt + forced])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_different_lengths_step_as_each_does_alone(
    predictor: CodePredictor, layout: str, shuffled: bool
) -> None:
    generator = np.random.default_rng(5)
    prompts = [generator.integers(VOCABULARY, size=length).tolist() for length in (5, 1, 3, 7)]
    forced = [generator.integers(VOCABULARY, size=12).tolist() for _ in prompts]
    config = RaggedConfig(
        max_batch=4, max_query_width=7, max_positions=40, max_states=9, layout=layout, padding_position=39
    )
    talker = Talker(predictor, config, np.array([7, 2, 8, 0]) if shuffled else None)
    logits = [[row] for row in talker.step(Phase.PREFILL, prompts)]
    taken = [0] * 4
    # Decode, with rows that rest; then windows of different widths, with drafts that are taken back.
    steps = [(Phase.DECODE, lengths) for lengths in ((1, 1, 1, 1), (1, 0, 1, 0), (0, 1, 0, 1))]
    steps += [(Phase.VERIFY, lengths) for lengths in ((4, 1, 0, 2), (1, 3, 4, 1), (2, 2, 2, 0))]
    for phase, lengths in steps:
        tokens = [forced[row][taken[row] :][:length] for row, length in enumerate(lengths)]
        rejected = [generator.integers(VOCABULARY, size=2).tolist() if phase is Phase.VERIFY else [] for _ in tokens]
        rejected = [drafts if row else [] for drafts, row in zip(rejected, tokens, strict=True)]
        brought = [row + drafts for row, drafts in zip(tokens, rejected, strict=True)]
        for row, found in enumerate(talker.step(phase, brought)):
            logits[row].append(found[: lengths[row]])
            talker.take_back(row, len(rejected[row]))
            taken[row] += lengths[row]
    for row, prompt in enumerate(prompts):
        expected = alone(prompt, forced[row][: taken[row]], predictor)
        found = np.concatenate(logits[row])
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_a_prompt_in_chunks_ends_as_one_in_whole(predictor: CodePredictor) -> None:
    prompts = [[3, 1, 4, 1, 5], [2, 7, 1]]
    config = RaggedConfig(max_batch=2, max_query_width=5, max_positions=9)
    whole = Talker(predictor, config).step(Phase.PREFILL, prompts)
    chunked = Talker(predictor, dataclasses.replace(config, chunked_prefill=True))
    chunked.step(Phase.PREFILL, [prompts[0][:2], []])
    chunked.step(Phase.PREFILL, [prompts[0][2:4], prompts[1][:2]])
    last = chunked.step(Phase.PREFILL, [prompts[0][4:], prompts[1][2:]])
    for found, expected in zip(last, whole, strict=True):
        np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-10)


# --- what is published -----------------------------------------------------------------------------------------------


def test_everything_of_a_step_is_published_in_either_layout(predictor: CodePredictor) -> None:
    batch = RaggedBatch.zeros(CONFIG)
    assert publish(predictor, batch).wait().ready()
    packed = published(batch)
    assert packed == {
        "query_offsets": [0, 2, 2, 5, 5],
        "query_lengths": [2, 0, 3, 0],
        "past_lengths": [4, 0, 6, 0],
        "total_lengths": [6, 0, 9, 0],
        "last_token_indices": [1, -1, 4, -1],
        "positions": [4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0],
        "state_indices": [0, 0, 2, 2, 2, -1, -1, -1, -1, 0, 0, 0],
        "phase": [2],
        "status": [0, 0, 0, 0],
        "faults": [0],
    }
    padded = dataclasses.replace(CONFIG, layout="padded", padding_position=-3)
    publish(predictor, batch, config=padded)
    assert published(batch) == packed | {
        "query_offsets": [0, 3, 6, 9, 9],
        "last_token_indices": [1, -1, 8, -1],
        "positions": [4, 5, -3, -3, -3, -3, 6, 7, 8, 0, 0, 0],
        "state_indices": [0, 0, -1, -1, -1, -1, 2, 2, 2, 0, 0, 0],
    }


@pytest.mark.parametrize("phase", list(Phase))
def test_a_phase_is_taken_by_name_or_member_and_published(predictor: CodePredictor, phase: Phase) -> None:
    for given in (phase, phase.name.lower()):
        batch = RaggedBatch.zeros(CONFIG)
        publish(predictor, batch, query_lengths=[1], past_lengths=[0], batch_size=1, query_width=1, phase=given)
        assert published(batch)["phase"] == [phase]


def test_an_engines_own_tensors_are_written_as_far_as_the_step_goes(predictor: CodePredictor) -> None:
    own: dict[str, Any] = {
        "positions": np.full(20, 77, np.int64),
        "state_indices": np.full(12, 77, np.int32),
        "query_offsets": np.full(9, 77, np.int32)[1:7],
    }
    publish(predictor, fresh(**own))
    assert own["positions"].tolist() == [4, 5, 6, 7, 8, 0, 0, 0, 0] + [77] * 11
    assert own["state_indices"].tolist() == [0, 0, 2, 2, 2, -1, -1, -1, -1] + [77] * 3
    assert own["query_offsets"].tolist() == [0, 2, 2, 5, 5, 77]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_lengths_and_states_come_in_tensors_of_any_stride(predictor: CodePredictor, dtype: str) -> None:
    config = dataclasses.replace(CONFIG, index_dtype=dtype)
    batch: Any = RaggedBatch.zeros(config)
    expected = RaggedBatch.zeros(CONFIG)
    lengths = np.array([[2, 4, 5], [0, -9, -9], [3, 6, 1], [9, 9, 2]], dtype)
    publish(predictor, batch, io=RaggedIo(lengths[:, 2]), query_lengths=lengths[:, 0], past_lengths=lengths[:, 1])
    publish(predictor, expected, io=RaggedIo(np.array([5, 3, 1, 0])))
    assert published(batch) == published(expected)
    assert batch.positions.dtype == dtype


def test_kv_lengths_are_the_past_and_advance_where_rows_bring_tokens(predictor: CodePredictor) -> None:
    lengths, states = np.array([0, 9, 1, 9, 9, 4], np.int32), np.array([5, 1, 2, 0])
    io, batch = RaggedIo(states, lengths, advance=True), RaggedBatch.zeros(CONFIG)
    for past, total in (([4, 0, 1, 0], [6, 0, 4, 0]), ([6, 0, 4, 0], [8, 0, 7, 0])):
        publish(predictor, batch, io=io, past_lengths=None)
        found = published(batch)
        assert (found["past_lengths"], found["total_lengths"]) == (past, total)
    assert lengths.tolist() == [0, 9, 7, 9, 9, 8]
    # Lengths that are given count, and are what is advanced from.
    publish(predictor, batch, io=io, past_lengths=[0, 0, 2])
    assert lengths.tolist() == [0, 9, 5, 9, 9, 2]
    publish(predictor, batch, io=dataclasses.replace(io, advance=False), past_lengths=None)
    assert lengths.tolist() == [0, 9, 5, 9, 9, 2]


# --- rows that cannot be published -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "past", "state", "fault"),
    [
        (4, 0, 0, RaggedFault.QUERY_LENGTH),
        (-1, 0, 0, RaggedFault.QUERY_LENGTH),
        (-(2**63), 0, 0, RaggedFault.QUERY_LENGTH),
        (2**32 + 1, 0, 0, RaggedFault.QUERY_LENGTH),
        (1, 0, 6, RaggedFault.STATE_INDEX),
        (1, 0, -1, RaggedFault.STATE_INDEX),
        (1, 0, 2**32, RaggedFault.STATE_INDEX),
        (3, 8, 0, RaggedFault.PAST_LENGTH),
        (1, -1, 0, RaggedFault.PAST_LENGTH),
        (1, 2**63 - 1, 0, RaggedFault.PAST_LENGTH),
        (1, 0, 3, RaggedFault.SHARED_STATE),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_in_tensors_that_cannot_be_published_fails_alone(
    predictor: CodePredictor, layout: str, query: int, past: int, state: int, fault: RaggedFault
) -> None:
    config = dataclasses.replace(CONFIG, layout=layout)
    batch, expected = RaggedBatch.zeros(config), RaggedBatch.zeros(config)
    lengths, pasts, states = np.array([3, query, 2]), np.array([7, past, 1]), np.array([3, state, 5, 0])
    step = publish(predictor, batch, io=RaggedIo(states), config=config, query_lengths=lengths, past_lengths=pasts)
    with pytest.raises(FrameError, match="row 1: ") as raised:
        step.wait()
    assert (raised.value.rows, raised.value.statuses) == ((1,), (fault,))
    publish(
        predictor, expected, io=RaggedIo(states), config=config, query_lengths=[3, 0, 2], past_lengths=[7, 0, 1]
    ).wait()
    assert published(batch) == published(expected) | {"status": [0, fault, 0, 0], "faults": [1 << fault]}


def test_a_prefill_with_a_past_fails_its_row(predictor: CodePredictor) -> None:
    batch = RaggedBatch.zeros(CONFIG)
    step = publish(predictor, batch, past_lengths=np.array([0, 3, 1]), phase=Phase.PREFILL)
    with pytest.raises(FrameError) as raised:
        step.wait()
    assert raised.value.statuses == (RaggedFault.PAST_OF_PREFILL,)


def test_faults_stay_until_they_are_cleared(predictor: CodePredictor) -> None:
    faults = np.zeros(1, np.int32)
    batch = fresh(faults=faults)
    publish(predictor, batch, query_lengths=np.array([4, 0, 0]))
    publish(predictor, batch, past_lengths=np.array([9, 0, 0]))
    publish(predictor, batch).wait()
    assert faults[0] == 1 << RaggedFault.QUERY_LENGTH | 1 << RaggedFault.PAST_LENGTH
    faults[0] = 0
    publish(predictor, batch).wait()
    assert faults[0] == 0


def test_a_row_may_fill_its_state_exactly(predictor: CodePredictor) -> None:
    batch = RaggedBatch.zeros(CONFIG)
    publish(predictor, batch, query_lengths=[3], past_lengths=[7], batch_size=1).wait()
    assert published(batch)["total_lengths"][0] == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_lengths": [2, 0, 4]}, "query_lengths: row 2 has 4, expected 0 to 3 (query_width)"),
        ({"query_lengths": [2, -1, 1]}, "query_lengths: row 1 has -1, expected 0 to 3 (query_width)"),
        ({"past_lengths": [4, 5, 8]}, "past_lengths: row 2 has 8, expected 0 to 10 - 3 (config.max_positions)"),
        ({"past_lengths": [-1, 5, 6]}, "past_lengths: row 0 has -1, expected 0 to 10 - 2 (config.max_positions)"),
        ({"phase": "prefill"}, "past_lengths: row 0 has 4, expected 0 in a prefill, unless config.chunked_prefill"),
        (
            {"query_lengths": np.array([1, 1, 1]), "past_lengths": [0, 11, 0]},
            "past_lengths: row 1 has 11, expected 0 to 10 (config.max_positions)",
        ),
        ({"query_lengths": [2, 0]}, "query_lengths: found 2 entries, expected 3, one per row"),
        ({"past_lengths": (4, 5)}, "past_lengths: found 2 entries, expected 3, one per row"),
        ({"query_lengths": [2, 0, 2.5]}, "query_lengths: found [2, 0, 2.5], expected a tensor of int32 or int64, or"),
        ({"query_lengths": 3}, "query_lengths: found 3, expected a tensor of int32 or int64, or a sequence"),
        ({"query_lengths": None}, "query_lengths: found None, expected a tensor of int32 or int64, or a sequence"),
        ({"query_lengths": [2**63, 0, 0]}, "query_lengths: found [9223372036854775808, 0, 0], expected"),
        ({"query_lengths": np.zeros(2, np.int32)}, "query_lengths: shape [2], expected [3 or more]"),
        ({"query_lengths": np.zeros((3, 1), np.int32)}, "query_lengths: shape [3, 1], expected [3 or more]"),
        ({"query_lengths": np.zeros(3, np.float32)}, "query_lengths: type float32, expected int32 or int64"),
        ({"past_lengths": np.zeros(3, np.uint8)}, "past_lengths: type uint8, expected int32 or int64"),
        ({"past_lengths": None}, "past_lengths: found None, expected one a row, where io.kv_lengths lends none"),
        ({"batch_size": 0}, "batch_size: found 0, expected 1 to 4 (config.max_batch)"),
        ({"batch_size": 5}, "batch_size: found 5, expected 1 to 4 (config.max_batch)"),
        ({"batch_size": "3"}, "batch_size: found '3', expected a whole number"),
        ({"query_width": 4}, "query_width: found 4, expected 1 to 3 (config.max_query_width)"),
        ({"query_width": -1}, "query_width: found -1, expected 1 to 3 (config.max_query_width)"),
        ({"phase": Phase.DECODE}, "query_width: found 3, expected 1 (phase decode)"),
        ({"phase": "draft"}, "phase: found 'draft', expected prefill, decode or verify"),
        ({"phase": 1}, "phase: found 1, expected prefill, decode or verify"),
        ({"phase": None}, "phase: found None, expected prefill, decode or verify"),
        ({"batch": None}, "batch: found None, expected an overtone.RaggedBatch"),
        ({"io": {}}, "io: found {}, expected an overtone.RaggedIo"),
        ({"config": 3}, "config: found 3, expected an overtone.RaggedConfig"),
        ({"io": RaggedIo(advance=True)}, "io.advance: found True, expected False without io.kv_lengths"),
        ({"io": RaggedIo(np.zeros(3, np.int32))}, "io.state_indices: shape [3], expected [4 or more]"),
        ({"io": RaggedIo(np.zeros(4))}, "io.state_indices: type float64, expected int32 or int64"),
        ({"io": RaggedIo(cast("Any", [0, 1, 2, 3]))}, "io.state_indices: list, expected a tensor"),
        ({"io": RaggedIo(None, np.zeros(6, np.int64))}, "io.kv_lengths: type int64, expected int32"),
        ({"io": RaggedIo(None, np.zeros(5, np.int32))}, "io.kv_lengths: shape [5], expected [6 or more]"),
    ],
)
def test_what_is_known_when_called_raises_and_nothing_is_published(
    predictor: CodePredictor, changes: dict[str, Any], message: str
) -> None:
    batch = RaggedBatch.zeros(CONFIG)
    publish(predictor, batch)
    before = published(batch)
    with pytest.raises(InputError) as raised:
        publish(predictor, **{"batch": batch, "batch_size": 3, **changes})
    assert str(raised.value).startswith(message)
    assert published(batch) == before


@pytest.mark.parametrize("name", VECTORS)
def test_an_output_that_cannot_be_written_is_refused(predictor: CodePredictor, name: str) -> None:
    length = len(Tensor.from_dlpack(getattr(fresh(), name)))
    read_only = np.zeros(length, np.int32)
    read_only.flags.writeable = False
    for tensor, message in (
        (read_only, "a read-only tensor, expected a writable one"),
        (np.zeros(length - 1, np.int32), f"shape [{length - 1}], expected [{length} or more]"),
        (np.zeros((length, 1), np.int32), f"shape [{length}, 1], expected [{length} or more]"),
        (np.zeros(length, np.float32), "type float32, expected int32"),
        (np.broadcast_to(np.zeros(1, np.int32), length + 2), "a read-only tensor, expected a writable one"),
        (np.zeros(2 * length + 4, np.int32)[::2], "a strided tensor, expected a contiguous one"),
        (None, "NoneType, expected a tensor"),
    ):
        with pytest.raises(InputError) as raised:
            publish(predictor, fresh(**{name: tensor}))
        assert str(raised.value).startswith(f"batch.{name}: {message}")
        assert raised.value.tensor == f"batch.{name}"


def test_tensors_that_overlap_are_refused(predictor: CodePredictor) -> None:
    shared = np.zeros(16, np.int32)
    cases = (
        ({"batch": fresh(positions=shared, state_indices=shared[4:])}, "batch.positions overlaps batch.state_indices"),
        ({"batch": fresh(status=shared), "io": RaggedIo(shared[:4])}, "batch.status overlaps io.state_indices"),
        ({"batch": fresh(status=shared), "query_lengths": shared[:3]}, "query_lengths overlaps batch.status"),
        (
            {"io": RaggedIo(shared[:4], shared[2:], advance=True)},
            "io.kv_lengths overlaps io.state_indices",
        ),
        (
            {"io": RaggedIo(None, shared, advance=True), "past_lengths": shared},
            "past_lengths overlaps io.kv_lengths",
        ),
    )
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            publish(predictor, **cast("dict[str, Any]", {"batch": fresh(), **changes}))
    # Lengths that nobody advances may be read twice.
    publish(predictor, fresh(), io=RaggedIo(None, shared), past_lengths=shared).wait()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_batch": 0}, "max_batch: found 0, expected 1 to 256"),
        ({"max_batch": 257}, "max_batch: found 257, expected 1 to 256"),
        ({"max_batch": -1}, "max_batch: found -1, expected a whole number of 1 or more"),
        ({"max_batch": 2.5}, "max_batch: found 2.5, expected a whole number of 1 or more"),
        ({"max_query_width": 2**30}, "max_query_width: found 1073741824, expected 1 to 536870911"),
        ({"max_positions": 2**31}, "max_positions: found 2147483648, expected 1 to 2147483647"),
        ({"max_states": 0}, "max_states: found 0, expected 1 to 2147483647"),
        ({"layout": "ragged"}, "layout: found 'ragged', expected padded or packed"),
        ({"layout": None}, "layout: found None, expected padded or packed"),
        ({"padding_position": 2**31}, "padding_position: found 2147483648, expected a whole number of 32 bits"),
        ({"index_dtype": "int16"}, "index_dtype: found 'int16', expected int32 or int64"),
    ],
)
def test_a_configuration_out_of_range_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        dataclasses.replace(CONFIG, **changes)
    assert str(raised.value) == message
    assert raised.value.key == next(iter(changes))


def test_a_batch_serves_another_configuration_io_and_predictor(predictor: CodePredictor) -> None:
    batch = RaggedBatch.zeros(CONFIG)
    publish(predictor, batch, io=RaggedIo(np.array([3, 2, 1, 0])))
    assert published(batch)["state_indices"][0] == 3
    publish(predictor, batch)
    assert published(batch)["state_indices"][0] == 0
    with pytest.raises(InputError, match="max_positions"):
        publish(predictor, batch, config=dataclasses.replace(CONFIG, max_positions=5))
    publish(predictor, batch).wait()


def test_many_rows_and_exactly_as_many_as_there_may_be(predictor: CodePredictor) -> None:
    config = RaggedConfig(max_batch=256, max_query_width=2, max_positions=5)
    batch = RaggedBatch.zeros(config)
    lengths = [row % 3 for row in range(256)]
    step = predictor.prepare_ragged_step(batch, RaggedIo(), config, lengths, [1] * 256, 256, 2, Phase.VERIFY)
    offsets = np.asarray(step.wait().batch.query_offsets)
    np.testing.assert_array_equal(np.diff(offsets), lengths)


def test_tensors_are_imported_once_for_each_io_and_configuration(predictor: CodePredictor) -> None:
    class Counted:
        """A tensor that counts how often it is looked at."""

        def __init__(self) -> None:
            self.looks, self.array = 0, np.zeros(5, np.int32)

        @property
        def __array_interface__(self) -> dict[str, Any]:
            self.looks += 1
            return self.array.__array_interface__

    offsets = Counted()
    batch = fresh(query_offsets=offsets)
    pairs = [(RaggedIo(), CONFIG), (RaggedIo(), CONFIG), (RaggedIo(), dataclasses.replace(CONFIG, layout="padded"))]
    for _ in range(3):
        for io, config in pairs:
            publish(predictor, batch, io=io, config=config)
    assert offsets.looks == 3
    # It remembers a few, not all that it ever met.
    for _ in range(20):
        publish(predictor, batch)
    assert len(batch._bound) == 8


def test_what_is_no_configuration_makes_no_ragged_batch() -> None:
    with pytest.raises(InputError, match=r"config: found None, expected an overtone\.RaggedConfig"):
        RaggedBatch.zeros(cast("Any", None))
    with pytest.raises(InputError, match="device: found 3, expected a device's name"):
        RaggedBatch.zeros(RaggedConfig(max_batch=1, max_query_width=1, max_positions=1), cast("Any", 3))
