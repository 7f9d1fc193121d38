"""The full contract of a talker that owns the loop: its tensors, its outputs, its launches.

The arena it lends is `test_context_memory.py`'s.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from golden import GoldenDirectory
from models import RandomModel, bits, load, row_bits
from overtone import (
    Binding,
    BindingError,
    CheckpointError,
    CodePredictor,
    FramePlan,
    InputError,
    OvertoneError,
    SamplingArrays,
    SamplingParams,
    Tensor,
)

MODEL = RandomModel()
CODES = MODEL.residual_codebooks + 1
WIDTH = MODEL.hidden_size


@pytest.fixture
def predictor() -> CodePredictor:
    return MODEL.load(max_batch=5)


def plan(batch: int, **changes: object) -> FramePlan:
    hidden, code_zero = MODEL.inputs(batch)
    arguments = {"active_batch_size": batch, "code_zero": code_zero, "talker_last_hidden": hidden} | changes
    return FramePlan(**arguments)  # type: ignore[arg-type]


def predicted(predictor: CodePredictor, batch: int, **options: object) -> np.ndarray:
    return predictor.predict_frame(*MODEL.inputs(batch), **options).codes.numpy()  # type: ignore[arg-type]


# Before frames


def test_what_it_is_comes_from_the_checkpoint(golden: GoldenDirectory) -> None:
    predictor = load(golden, max_batch=3)
    spec = predictor.spec
    assert (predictor.num_rvq_layers, predictor.codebook_size) == (spec.residual_codebooks, spec.codebook_size)
    assert (predictor.max_batch, predictor.executor) == (3, "cpu")
    table = predictor.codec_embed_table(spec.residual_codebooks - 1)
    assert table.shape == (spec.codebook_size, spec.talker_hidden_size)
    assert table.readonly


@pytest.mark.parametrize("layer", [-1, MODEL.residual_codebooks, 2**63 - 1])
def test_a_table_that_is_not_there_is_refused(predictor: CodePredictor, layer: int) -> None:
    with pytest.raises(InputError, match=f"layer: found {layer}, expected 0 to 2") as refused:
        predictor.codec_embed_table(layer)
    assert refused.value.key == "layer"


def test_the_tables_are_the_checkpoints() -> None:
    predictor = MODEL.load()
    for layer in range(MODEL.residual_codebooks):
        assert bits(predictor.codec_embed_table(layer)) == bits(MODEL.tensors[f"model.codec_embedding.{layer}.weight"])


def test_nothing_runs_before_preallocate() -> None:
    predictor = CodePredictor()
    for use in (
        lambda: predictor.num_rvq_layers,
        lambda: predictor.required_context_memory,
        lambda: predictor.set_context_memory(None),
        lambda: predictor.bind(Binding(1, 1, 1)),
        lambda: predictor.run_frame(plan(1)),
        predictor.capture_decode_graphs,
        predictor.stats,
    ):
        with pytest.raises(OvertoneError, match="call preallocate first"):
            use()


def test_a_preallocate_that_fails_leaves_the_predictor_as_it_was(
    predictor: CodePredictor, omni_tiny: GoldenDirectory
) -> None:
    before = predicted(predictor, 2)
    with pytest.raises(CheckpointError, match="no such directory"):
        predictor.preallocate(omni_tiny.path / "missing")
    np.testing.assert_array_equal(predicted(predictor, 2), before)


def test_preallocate_may_load_another_model(omni_tiny: GoldenDirectory, tts_tiny_projected: GoldenDirectory) -> None:
    predictor = load(omni_tiny)
    bound = predictor.bind_frame(FramePlan(3, omni_tiny.code_zero[0], omni_tiny.talker_last_hidden[0]))
    predictor.preallocate(tts_tiny_projected.path)
    assert predictor.spec.projected
    golden = tts_tiny_projected
    frame = predictor.run_frame(FramePlan(3, golden.code_zero[0], golden.talker_last_hidden[0]))
    np.testing.assert_array_equal(frame.codes, golden.expected("greedy", "codes")[0])
    np.testing.assert_array_equal(bound.launch().codes, omni_tiny.expected("greedy", "codes")[0])


def test_speculation_is_declined_once_with_a_word(omni_tiny: GoldenDirectory, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "overtone"):
        predictor = load(omni_tiny, spec_verify_size=4)
        for index in range(3):
            predictor.predict_frame(omni_tiny.talker_last_hidden[index], omni_tiny.code_zero[index])
        predictor.log_and_reset_spec_stats()
    assert [record.getMessage() for record in caplog.records] == [
        "spec_verify_size=4: this version has no speculation; frames run step by step, with the same codes"
    ]
    with caplog.at_level(logging.WARNING, "overtone"):
        caplog.clear()
        load(omni_tiny, spec_verify_size=0)
    assert not caplog.records
    with pytest.raises(InputError, match="spec_verify_size: found -1"):
        load(omni_tiny, spec_verify_size=-1)


def test_graphs_and_caches_need_nothing_and_change_nothing(predictor: CodePredictor) -> None:
    before = predicted(predictor, 3)
    assert predictor.capture_decode_graphs() is True
    predictor.reset_kv_cache(3)
    predictor.reset_kv_cache(5, stream=None)
    np.testing.assert_array_equal(predicted(predictor, 3), before)
    for wrong in (0, -1, 6, 2**62):
        with pytest.raises(InputError, match=f"batch_size: found {wrong} rows, expected 1 to 5"):
            predictor.reset_kv_cache(wrong)


# Binding


def binding(**changes: object) -> Binding:
    arguments = {"talker_hidden_size": WIDTH, "num_codes_per_frame": CODES, "max_batch_size": 4} | changes
    return Binding(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message", "at_fault"),
    [
        ({"talker_hidden_size": 33}, "talker_hidden_size: found 33, expected 32", "talker_hidden_size"),
        ({"num_codes_per_frame": 3}, "num_codes_per_frame: found 3, expected 4", "num_codes_per_frame"),
        ({"max_batch_size": 0}, "max_batch_size: found 0, expected 1 to 5", "max_batch_size"),
        ({"max_batch_size": 6}, "max_batch_size: found 6, expected 1 to 5", "max_batch_size"),
        (
            {"code_zero_embed_table": np.zeros((50, 31), "f4")},
            "code_zero_embed_table: shape [50, 31], expected [50 or more, 32]",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((40, 32), "f4")},
            "code_zero_embed_table: shape [40, 32], expected [50 or more, 32]",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((50, 32))},
            "code_zero_embed_table: type float64, expected float32, float16 or bfloat16",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((32, 50), "f4").T},
            "code_zero_embed_table: a strided tensor, expected a contiguous one",
            "code_zero_embed_table",
        ),
        (
            {"codec_hiddens": np.zeros((3, CODES, WIDTH), "f4")},
            "codec_hiddens: shape [3, 4, 32], expected [4, 4, 32]",
            "codec_hiddens",
        ),
        (
            {"codec_hiddens": np.zeros((4, CODES, WIDTH), "f2")},
            "codec_hiddens: float16, expected float32, the codec tables' type",
            "codec_hiddens",
        ),
        (
            {"codec_hiddens": np.broadcast_to(np.zeros(WIDTH, "f4"), (4, CODES, WIDTH))},
            "codec_hiddens: a read-only tensor, expected a writable one",
            "codec_hiddens",
        ),
    ],
)
def test_a_binding_that_does_not_fit_is_refused_and_binds_nothing(
    predictor: CodePredictor, changes: dict[str, Any], message: str, at_fault: str
) -> None:
    good = np.zeros((4, CODES, WIDTH), "f4")
    before = predicted(predictor, 2)
    with pytest.raises(BindingError) as refused:
        predictor.bind(binding(**({"codec_hiddens": good} | changes)))
    assert str(refused.value) == message
    assert at_fault in (refused.value.key, refused.value.tensor)
    assert refused.value.found
    assert refused.value.expected
    np.testing.assert_array_equal(predictor.run_frame(plan(2)).codes, before)
    assert not good.any()


def test_something_that_is_no_tensor_is_not_bound(predictor: CodePredictor) -> None:
    with pytest.raises(InputError, match="codec_hiddens: list, expected a tensor"):
        predictor.bind(binding(codec_hiddens=[[0.0]]))
    with pytest.raises(InputError, match=r"max_batch_size: found 2\.5, expected a whole number"):
        predictor.bind(binding(max_batch_size=2.5))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_bound_table_embeds_code_zero(dtype: str) -> None:
    table = MODEL.tensors["talker.model.codec_embedding.weight"].astype(dtype)
    lone = {name: tensor for name, tensor in MODEL.tensors.items() if not name.startswith("talker.")}
    predictor = CodePredictor.from_tensors(MODEL.config, lone)
    with pytest.raises(BindingError, match="no talker's codec table"):
        predictor.run_frame(plan(2))
    predictor.bind(binding(code_zero_embed_table=table))
    widened = {**lone, "talker.model.codec_embedding.weight": table.astype("float32")}
    expected = CodePredictor.from_tensors(MODEL.config, widened).predict_frame(*MODEL.inputs(2))
    for frame in (predictor.run_frame(plan(2)), predictor.predict_frame(*MODEL.inputs(2))):
        assert bits(frame.codes) == bits(expected.codes)
        assert bits(frame.codec_sum) == bits(expected.codec_sum)


def test_a_bound_table_is_borrowed_not_copied_and_kept_alive(predictor: CodePredictor) -> None:
    class Watched(np.ndarray):
        pass

    table = MODEL.tensors["talker.model.codec_embedding.weight"].copy().view(Watched)
    gone = weakref.ref(table)
    predictor.bind(binding(code_zero_embed_table=table))
    before = predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist()
    table *= 2
    assert predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist() != before
    del table
    gc.collect()
    assert gone() is not None
    predictor.bind(binding())
    gc.collect()
    assert gone() is None


def test_binding_again_without_a_table_takes_the_checkpoints_again(predictor: CodePredictor) -> None:
    before = row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0)
    predictor.bind(binding(code_zero_embed_table=np.ones((60, WIDTH), "f4")))
    assert row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0) != before
    predictor.bind(binding())
    assert row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0) == before


def test_bound_embeddings_are_written_and_the_talkers_rows_are_not(predictor: CodePredictor) -> None:
    hiddens = np.full((4, CODES, WIDTH), 123.0, "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    frame = predictor.run_frame(plan(3))
    assert np.shares_memory(frame.codec_hiddens.numpy(), hiddens)
    for row in range(3):
        for codebook in range(1, MODEL.residual_codebooks):
            table = MODEL.tensors[f"model.codec_embedding.{codebook - 1}.weight"]
            assert bits(hiddens[row, codebook]) == bits(table[frame.codes.tolist()[row][codebook]])
    assert (hiddens[:3, [0, MODEL.residual_codebooks]] == 123).all()
    assert (hiddens[3] == 123).all()


def test_bound_embeddings_may_be_a_view_of_the_talkers_own(predictor: CodePredictor) -> None:
    around = np.full((8, CODES + 2, 2 * WIDTH), 5.0, "f4")
    view = around[::2, 1:-1, 1::2]
    predictor.bind(binding(codec_hiddens=view))
    predictor.run_frame(plan(4))
    own = MODEL.load().predict_frame(*MODEL.inputs(4)).codec_hiddens.numpy()
    assert bits(view[:, 1:-1]) == bits(own[:, 1:-1])
    around[::2, 1:-1, 1::2][:, 1:-1] = 5
    assert (around == 5).all()


def test_more_rows_than_bound_embeddings_have_are_refused(predictor: CodePredictor) -> None:
    predictor.bind(binding(codec_hiddens=np.zeros((4, CODES, WIDTH), "f4")))
    with pytest.raises(InputError, match=r"codec_hiddens: shape \[4, 4, 32\], expected \[5 or more, 4, 32\]"):
        predictor.run_frame(plan(5))


# Outputs of the caller


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "view",
    [
        lambda codes: codes[:3],
        lambda codes: codes[:3, ::-1],
        lambda codes: codes[2::-1],
        lambda codes: codes[1:8:2],
        lambda codes: codes.reshape(CODES, 10).T[::-2],
    ],
    ids=["contiguous", "columns backwards", "rows backwards", "every other row", "transposed backwards"],
)
def test_codes_go_into_the_callers_tensor_whatever_its_strides(predictor: CodePredictor, dtype: str, view) -> None:
    around = np.full((10, CODES), -9, dtype)
    target = view(around)
    frame = predictor.run_frame(plan(3), target)
    np.testing.assert_array_equal(target[:3], predicted(predictor, 3))
    assert np.shares_memory(frame.codes.numpy(), around)
    assert frame.codes.dtype == dtype
    target[:3] = -9
    assert (around == -9).all()


def test_rows_beyond_the_batch_are_left_alone(predictor: CodePredictor) -> None:
    codes = np.full((5, CODES), -9, "int32")
    hidden, code_zero = MODEL.inputs(5)
    frame_idx = np.full(5, 3)
    arrays = SamplingArrays(np.ones(5, "f4"), np.zeros(5, "i4"), np.ones(5, "f4"), np.arange(5))
    hidden[2:], code_zero[2:], arrays.top_p[2:] = np.nan, -1, np.nan  # type: ignore[index]
    active = np.array([1, 1, 7, 7, 7])
    frame = predictor.run_frame(
        FramePlan(2, code_zero, hidden, arrays, frame_idx, active, advance_frame_idx=True), codes
    ).wait()
    params = [SamplingParams(seed=seed) for seed in range(2)]
    expected = predictor.predict_frame(hidden[:2], code_zero[:2], sampling=params, frame_idx=3).codes
    np.testing.assert_array_equal(codes[:2], expected)
    assert (codes[2:] == -9).all()
    assert frame.status.shape == (2,)
    assert frame_idx.tolist() == [4, 4, 3, 3, 3]


def test_rows_left_out_are_not_written(predictor: CodePredictor) -> None:
    codes = np.full((4, CODES), -9, "int64")
    hiddens = np.full((4, CODES, WIDTH), 5.0, "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    active = np.array([False, True, False, True])
    frame = predictor.run_frame(plan(4, active=active), codes, logits=True).wait()
    np.testing.assert_array_equal(codes[[1, 3]], predicted(predictor, 4)[[1, 3]])
    assert (codes[[0, 2]] == -9).all()
    assert (hiddens[[0, 2]] == 5).all()
    assert not frame.codec_sum.numpy()[[0, 2]].any()
    assert frame.logits is not None
    assert not frame.logits.numpy()[[0, 2]].any()


def test_a_finished_row_that_had_failed_no_longer_fails_the_frame(predictor: CodePredictor) -> None:
    failing = predictor.run_frame(plan(2, code_zero=[0, -1]))
    assert failing.status.tolist() == [0, -1]
    predictor.run_frame(plan(2, active=np.array([True, False]))).wait()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, CODES), "f4"), "output_codes: type float32, expected int32 or int64"),
        (np.zeros((3, CODES), "i2"), "output_codes: type int16, expected int32 or int64"),
        (np.zeros((2, CODES), "i4"), "output_codes: shape [2, 4], expected [3 or more, 4]"),
        (np.zeros((3, CODES + 1), "i4"), "output_codes: shape [3, 5], expected [3 or more, 4]"),
        (np.zeros(3 * CODES, "i4"), "output_codes: shape [12], expected [3 or more, 4]"),
        (np.broadcast_to(np.int32(0), (3, CODES)), "output_codes: a read-only tensor, expected a writable one"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(8, "i4"), (3, CODES), (4, 4)),
            "output_codes: elements that share memory, expected one place for every element",
        ),
        ([[0] * CODES] * 3, "output_codes: list, expected a tensor (a DLPack producer or a NumPy array)"),
    ],
)
def test_codes_that_cannot_be_written_are_refused(predictor: CodePredictor, codes: object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        predictor.run_frame(plan(3), codes)  # type: ignore[arg-type]
    assert str(refused.value) == message
    assert refused.value.tensor == "output_codes"


@pytest.mark.parametrize("batch", [0, -1, 6, 2**62])
def test_a_batch_out_of_range_is_refused(predictor: CodePredictor, batch: int) -> None:
    with pytest.raises(InputError, match=f"found {batch} rows, expected 1 to 5") as refused:
        predictor.run_frame(plan(3, active_batch_size=batch))
    assert refused.value.key == "active_batch_size"


@pytest.mark.parametrize("batch", [2.0, "2", None, 2**64, [2]])
def test_a_batch_that_is_no_number_is_refused(predictor: CodePredictor, batch: object) -> None:
    with pytest.raises(InputError, match=r"active_batch_size: found .*, expected a whole number of at most 64 bits"):
        predictor.run_frame(plan(3, active_batch_size=batch))


@pytest.mark.parametrize("name", ["talker_last_hidden", "code_zero", "active", "sampling", "frame_idx", "table"])
def test_codes_over_an_input_are_refused_and_nothing_is_written(predictor: CodePredictor, name: str) -> None:
    memory = np.zeros(4096, "int64")
    table = memory.view("f4")[: 50 * WIDTH].reshape(50, WIDTH)
    shared = {
        "talker_last_hidden": memory.view("f4")[: 2 * WIDTH].reshape(2, WIDTH),
        "code_zero": memory[:2],
        "active": memory[2:4],
        "sampling": SamplingArrays(np.ones(2, "f4"), memory.view("i4")[6:8], np.ones(2, "f4"), np.arange(2)),
        "frame_idx": memory[4:5],
        "table": None,
    }[name]
    if name == "table":
        predictor.bind(binding(code_zero_embed_table=table))
    changes = {} if shared is None else {name: shared}
    if name == "sampling":
        changes["frame_idx"] = 0
    codes = memory[: 2 * CODES].reshape(2, CODES)
    with pytest.raises(InputError, match=r"output_codes overlaps \w+ in memory") as refused:
        predictor.run_frame(plan(2, **changes), codes)
    assert refused.value.tensor == "output_codes"
    assert not memory.any()


def test_an_index_that_is_advanced_is_an_output(predictor: CodePredictor) -> None:
    memory = np.ones(2, "int64")
    with pytest.raises(InputError, match="frame_idx overlaps code_zero in memory"):
        predictor.run_frame(plan(2, code_zero=memory, frame_idx=memory, advance_frame_idx=True))
    predictor.run_frame(plan(2, code_zero=memory, frame_idx=memory))
    assert memory.tolist() == [1, 1]


def test_two_outputs_in_one_place_are_refused(predictor: CodePredictor) -> None:
    hiddens = np.zeros((4, CODES, WIDTH), "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    with pytest.raises(InputError, match="output_codes overlaps codec_hiddens in memory"):
        predictor.run_frame(plan(4), hiddens.view("i4").reshape(-1)[: 4 * CODES].reshape(4, CODES))


def test_outputs_that_are_not_given_are_reused(predictor: CodePredictor) -> None:
    first = predictor.run_frame(plan(2))
    kept = first.codes.tolist()
    second = predictor.run_frame(plan(2, code_zero=MODEL.inputs(2, seed=5)[1]))
    for name in ("codes", "codec_sum", "codec_hiddens", "status"):
        assert np.shares_memory(getattr(first, name).numpy(), getattr(second, name).numpy())
    assert first.codes.tolist() == second.codes.tolist() != kept
    assert not np.shares_memory(predictor.run_frame(plan(3)).codes.numpy(), second.codes.numpy())


def test_a_frame_that_is_refused_writes_nothing(predictor: CodePredictor) -> None:
    codes = np.full((2, CODES), -9, "i4")
    frame_idx = np.array([0])
    for changes in (
        {"sampling": SamplingArrays(np.array([1, -1], "f4"), np.zeros(2, "i4"), np.ones(2, "f4"), np.arange(2))},
        {"sampling": SamplingParams(), "frame_idx": np.array([-1])},
    ):
        with pytest.raises(InputError):
            predictor.run_frame(plan(2, **({"frame_idx": frame_idx, "advance_frame_idx": True} | changes)), codes)
    assert (codes == -9).all()
    assert frame_idx.tolist() == [0]
    assert predictor.stats()["frames"] == 0


# Bound frames


def test_a_bound_frame_reads_its_tensors_anew(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(2)
    codes = np.zeros((2, CODES), "i4")
    frame_idx, active = np.array([0], "u8"), np.ones(2, "i4")
    arrays = SamplingArrays(np.ones(2, "f4"), np.zeros(2, "i4"), np.ones(2, "f4"), np.array([1, 2], "u8"))
    bound = predictor.bind_frame(FramePlan(2, code_zero, hidden, arrays, frame_idx, active), codes)

    def expected() -> np.ndarray:
        rows = [
            SamplingParams(float(arrays.temperature[row]), int(arrays.top_k[row]), float(arrays.top_p[row]), int(seed))  # type: ignore[index]
            for row, seed in enumerate(arrays.seed)  # type: ignore[arg-type]
        ]
        return predictor.predict_frame(hidden, code_zero, sampling=rows, frame_idx=int(frame_idx[0])).codes.numpy()

    seen = set()
    for change in (
        lambda: None,
        lambda: hidden.__imul__(-1),
        lambda: code_zero.__iadd__(1),
        lambda: frame_idx.__iadd__(2**63),
        lambda: arrays.temperature.__imul__(3),  # type: ignore[union-attr]
        lambda: arrays.top_k.__iadd__(2),  # type: ignore[union-attr]
        lambda: arrays.top_p.__imul__(0.25),  # type: ignore[union-attr]
        lambda: arrays.seed.__iadd__(np.uint64(10**15)),  # type: ignore[union-attr]
    ):
        change()
        assert bound.launch() is bound.frame
        np.testing.assert_array_equal(codes, expected())
        seen.add(codes.tobytes())
    assert len(seen) >= 5
    active[0], codes[:] = 0, -9
    bound.launch()
    assert (codes[0] == -9).all()
    assert (codes[1] >= 0).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_the_index_advances_in_the_callers_tensor(predictor: CodePredictor, dtype: str) -> None:
    one, per_row = np.array([7], dtype), np.array([1, 5, 2], dtype)
    active = np.array([True, False, True])
    for frame_idx, expected in ((one, [10]), (per_row, [4, 5, 5])):
        bound = predictor.bind_frame(
            plan(3, sampling=SamplingParams(), frame_idx=frame_idx, active=active, advance_frame_idx=True)
        )
        for _ in range(3):
            bound.launch()
        assert frame_idx.tolist() == expected


def test_an_index_given_as_a_number_advances_from_launch_to_launch(predictor: CodePredictor) -> None:
    params = SamplingParams(temperature=3.0, seed=11)
    bound = predictor.bind_frame(plan(2, sampling=params, frame_idx=2**64 - 2, advance_frame_idx=True))
    still = predictor.bind_frame(plan(2, sampling=params, frame_idx=0), np.zeros((2, CODES), "i4"))
    for index in (2**64 - 2, 2**64 - 1, 0, 1):
        np.testing.assert_array_equal(bound.launch().codes, predicted(predictor, 2, sampling=params, frame_idx=index))
    for _ in range(3):
        np.testing.assert_array_equal(still.launch().codes, predicted(predictor, 2, sampling=params, frame_idx=0))


def test_a_wrong_value_in_a_parameter_tensor_names_row_and_parameter(predictor: CodePredictor) -> None:
    arrays = SamplingArrays(np.ones(3, "f4"), np.zeros(3, "i8"), np.ones(3, "f4"), np.arange(3))
    bound = predictor.bind_frame(plan(3, sampling=arrays, frame_idx=0))
    bound.launch()
    for array, wrong, message in (
        (arrays.temperature, np.nan, "row 1: temperature is NaN"),
        (arrays.top_k, -3, "row 1: top_k is -3"),
        (arrays.top_p, 0.0, "row 1: top_p is 0"),
    ):
        good = array[1]  # type: ignore[index]
        array[1] = wrong  # type: ignore[index]
        with pytest.raises(InputError, match=message):
            bound.launch()
        array[1] = good  # type: ignore[index]
    bound.launch().wait()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": np.ones(2)}, "temperature: type float64, expected float32"),
        ({"top_k": np.zeros(2, "f4")}, "top_k: type float32, expected int32 or int64"),
        ({"top_p": np.ones(1, "f4")}, r"top_p: shape \[1\], expected \[2 or more\]"),
        ({"seed": np.zeros(2, "i4")}, "seed: type int32, expected uint64 or int64"),
        ({"seed": [1, 2]}, "seed: list, expected a tensor"),
    ],
)
def test_parameter_tensors_of_another_kind_are_refused(
    predictor: CodePredictor, change: dict[str, Any], message: str
) -> None:
    arrays = {
        "temperature": np.ones(2, "f4"),
        "top_k": np.zeros(2, "i4"),
        "top_p": np.ones(2, "f4"),
        "seed": np.zeros(2, "u8"),
    } | change
    with pytest.raises(InputError, match=message):
        predictor.bind_frame(plan(2, sampling=SamplingArrays(**arrays), frame_idx=0))


def test_a_bound_frame_keeps_what_it_needs_alive() -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(3)
    expected = predictor.predict_frame(hidden, code_zero).codes.tolist()
    bound = predictor.bind_frame(FramePlan(3, code_zero, hidden), np.zeros((3, CODES), "i8"))
    del predictor, hidden, code_zero
    gc.collect()
    churn = [np.full((3, WIDTH), np.nan, "f4") for _ in range(200)]
    assert bound.launch().wait().codes.tolist() == expected
    del churn


def test_a_bound_frame_lets_go_of_its_tensors_with_itself(predictor: CodePredictor) -> None:
    class Watched(np.ndarray):
        pass

    tensors = [array.view(Watched) for array in (*MODEL.inputs(2), np.zeros((2, CODES), "i4"))]
    gone = [weakref.ref(tensor) for tensor in tensors]
    bound = predictor.bind_frame(FramePlan(2, tensors[1], tensors[0]), tensors[2])
    del tensors
    gc.collect()
    bound.launch()
    assert all(reference() is not None for reference in gone)
    del bound
    gc.collect()
    assert all(reference() is None for reference in gone)


def test_a_bound_frame_may_be_launched_from_many_threads(predictor: CodePredictor) -> None:
    frame_idx = np.array([0])
    bound = predictor.bind_frame(plan(1, frame_idx=frame_idx, advance_frame_idx=True))

    def launch() -> None:
        for _ in range(50):
            bound.launch()

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert frame_idx.tolist() == [200]


def test_plans_and_frames_with_arrays_compare_by_identity(predictor: CodePredictor) -> None:
    one, other = plan(2), plan(2)
    assert one == one  # the comparison itself must not raise
    assert one != other
    assert len({one, other, predictor.run_frame(one)}) == 3


def test_outputs_may_be_tensors_of_overtone(predictor: CodePredictor) -> None:
    codes = Tensor.zeros([3, CODES], "int64")
    frame = predictor.run_frame(plan(3), codes)
    np.testing.assert_array_equal(codes.numpy(), predicted(predictor, 3))
    assert np.shares_memory(frame.codes.numpy(), codes.numpy())
