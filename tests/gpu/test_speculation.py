"""Speculative rounds on the device: the bits of the plain loop, the counters of the CPU executor, and no waiting."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frame_cases import FrameCase, Ways, differing, frame_cases
from golden import SAMPLING_SETS, GoldenDirectory
from models import RandomModel, load, sampling_rows
from on_device import SLEEP_CYCLES, codes_of, cuda_golden, on_cuda, taken, torch
from overtone import CodePredictor, Frame, FramePlan, SamplingParams, SpecParams, Tensor, _core
from overtone.drafts.fit import Drafts, FitWeights

pytestmark = pytest.mark.gpu

SHAPES = ("siblings", "chain")
WINDOWS = range(2, 9)
BATCHES = (1, 2, 3, 5, 8, 16)
FRAMES = int(os.environ.get("OVERTONE_TEST_FRAMES", "420"))
"""Random frames in all of a working type; of float16 and float32, a quarter."""
MODEL = RandomModel(residual_codebooks=9)
SAMPLED = SamplingParams(temperature=3.0, top_k=20, seed=3)


def in_rounds(draft: Any, **changes: Any) -> SpecParams:
    """Speculation in every batch size, for ever."""
    return SpecParams(**{"draft": draft, "off_below": 0, **changes})


def small(window: int = 4, draft: str = "siblings", **options: Any) -> CodePredictor:
    given = {"executor": "cuda", "dtype": "float32", "spec_verify_size": window, "spec_params": in_rounds(draft)}
    return MODEL.load(**{**given, **options})


def inputs(batch: int, seed: int = 0) -> tuple[Any, Any]:
    hidden, code_zero = MODEL.inputs(batch, seed)
    return on_cuda(hidden), on_cuda(code_zero)


def words(tensor: Tensor) -> Any:
    """For `differing`, of a tensor on the device."""
    given = taken(tensor)
    return given.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[given.element_size()])


def counters(predictor: CodePredictor) -> list[tuple[int, int, int, int, int]]:
    """Of each row slot: frames, rounds, codes, drafts verified and accepted."""
    return predictor._loaded.spec_counters()


def golden_frames(golden: GoldenDirectory, sampling_set: str) -> Any:
    """Every frame of a golden directory: its index, hidden rows, codes and sampling."""
    rows = sampling_rows(golden, sampling_set)
    for index, (hidden, code_zero) in enumerate(zip(golden.talker_last_hidden, golden.code_zero, strict=True)):
        yield index, hidden, code_zero, rows


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", SHAPES)
@pytest.mark.parametrize("window", WINDOWS)
def test_goldens_have_the_bits_of_the_plain_loop_and_the_rounds_of_the_cpu(
    golden: GoldenDirectory, window: int, draft: str
) -> None:
    plain = cuda_golden(golden, max_batch=3)
    options: Any = {"max_batch": 3, "spec_verify_size": window, "spec_params": in_rounds(draft)}
    rounds = cuda_golden(golden, **options)
    host = load(golden, executor="cpu", dtype="float32", **options)
    assert rounds.stats()["speculating"] is True
    for sampling_set in SAMPLING_SETS:
        for index, hidden, code_zero, rows in golden_frames(golden, sampling_set):
            arguments: Any = (on_cuda(hidden), on_cuda(code_zero))
            given: Any = {"sampling": rows, "frame_idx": index, "logits": True}
            found, expected = (each.predict_frame(*arguments, **given) for each in (rounds, plain))
            assert differing(found, expected, words) == {}, (sampling_set, index)
            np.testing.assert_array_equal(codes_of(found.wait()), golden.expected(sampling_set, "codes")[index])
            host.predict_frame(hidden, code_zero, sampling=rows, frame_idx=index)
    assert counters(rounds) == counters(host)
    stats = rounds.stats()
    assert stats["spec_codes"] == stats["frames"] * 3 * (plain.num_rvq_layers - 1)
    assert stats["spec_codes"] == stats["spec_rounds"] + stats["spec_accepted"]


@pytest.fixture(scope="module")
def true_architecture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("speculation") / "checkpoint"
    _core.make_checkpoint(directory, "qwen3-tts-0.6b", 0, 1, 1, None)
    return directory


@pytest.fixture(scope="module")
def plain_predictors(true_architecture: Path) -> Any:
    """Predictors without speculation by working type, each loaded when it is asked for."""
    loaded: dict[str, CodePredictor] = {}

    def of(dtype: str) -> CodePredictor:
        if dtype not in loaded:
            options: Any = {"dtype": dtype, "max_batch": max(BATCHES)}
            loaded[dtype] = CodePredictor.from_pretrained(true_architecture, "cuda", **options)
        return loaded[dtype]

    yield of
    loaded.clear()


class DeviceWays(Ways):
    """Those of every executor, and a bound frame inside the caller's own graph, where the plain loop serves."""

    def __init__(self, predictor: CodePredictor) -> None:
        super().__init__(predictor, torch.clone)
        self._graphs: dict[int, Any] = {}

    def replay(self, case: FrameCase) -> Frame:
        own, bound = self.bound(case)
        if case.batch not in self._graphs:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                bound.launch()
            self._graphs[case.batch] = graph
        own.take(case)
        self._graphs[case.batch].replay()
        return bound.frame


RUNS = [
    *(("bfloat16", window, draft, FRAMES // 14) for window in WINDOWS for draft in SHAPES),
    *(
        (dtype, window, draft, FRAMES // 16)
        for dtype in ("float16", "float32")
        for window in (2, 5)
        for draft in SHAPES
    ),
]


@pytest.mark.parametrize(("dtype", "window", "draft", "frames"), RUNS)
def test_frames_of_every_kind_have_the_bits_of_the_plain_loop(
    true_architecture: Path, plain_predictors: Any, dtype: str, window: int, draft: str, frames: int
) -> None:
    predictor = CodePredictor.from_pretrained(
        true_architecture, "cuda", None, dtype, max(BATCHES), window, spec_params=in_rounds(draft)
    )
    rounds, plain = DeviceWays(predictor), DeviceWays(plain_predictors(dtype))
    spec, frames = predictor.spec, max(frames, 5 * len(BATCHES))
    cases = frame_cases(spec.talker_hidden_size, spec.code_zero_size or 0, BATCHES, frames, seed=window)
    # Once a frame was recorded, every launch brings its parameters anew: most frames run before.
    recorded_from = frames * 2 // 3
    for number, given in enumerate(cases):
        here = given.placed(on_cuda)
        ways = ("call", "replay", "launch") if number >= recorded_from else ("call", "launch")
        match ways[number // len(BATCHES) % len(ways)]:
            case "call":
                found, expected, rows = rounds.call(here), plain.call(here), slice(None)
            case "launch":
                found, expected, rows = rounds.launch(here), plain.launch(here), here.active
            case "replay":
                found, expected, rows = rounds.replay(here), plain.launch(here), here.active
        assert differing(found, expected, words, rows) == {}, f"frame {number} of {frames}: {given}"
    stats = predictor.stats()
    assert stats["spec_codes"] == stats["spec_rounds"] + stats["spec_accepted"]
    assert 0 < stats["spec_accepted"] < stats["spec_drafted"]


def test_a_recorded_frame_runs_step_by_step_between_frames_in_rounds() -> None:
    predictor = small()
    rounds, plain = DeviceWays(predictor), DeviceWays(small(0))
    cases = [each.placed(on_cuda) for each in frame_cases(MODEL.hidden_size, MODEL.code_zero_size, (4,), 12, seed=1)]
    for case in cases:
        frames: Any = []
        for way in (rounds.call, rounds.replay, rounds.launch):
            before = counters(predictor)
            assert differing(way(case), plain.launch(case), words, case.active) == {}
            torch.cuda.synchronize()
            frames.append(counters(predictor) != before)
        took_part = bool(case.active.any())
        assert frames == [took_part, False, took_part]


# --- what is counted, and the switch ---------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records if record.name == "overtone"]
    return [line for line in told if line.startswith("speculation")]


@pytest.mark.parametrize("draft", SHAPES)
def test_stats_are_logged_as_on_the_cpu_and_reset(caplog: pytest.LogCaptureFixture, draft: str) -> None:
    predictors = small(4, draft, max_batch=4), small(4, draft, max_batch=4, executor="cpu")
    active = np.array([1, 1, 0, 1], np.int32)
    places: list[Any] = [on_cuda, np.asarray]
    logged = []
    for predictor, place in zip(predictors, places, strict=True):
        caplog.set_level(logging.INFO, "overtone")
        caplog.clear()
        predictor.log_and_reset_spec_stats()
        assert lines(caplog) == []
        for index in range(6):
            hidden, code_zero = map(place, MODEL.inputs(4, index))
            predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index, active=place(active)).wait()
        assert predictor.stats()["speculating"] is True
        predictor.log_and_reset_spec_stats()
        logged.append(lines(caplog))
        caplog.clear()
        predictor.log_and_reset_spec_stats()
        assert lines(caplog) == []
    assert logged[0] == logged[1]
    names = ["row 0", "row 1", "row 3", "all rows"]
    assert [line.split(":")[0] for line in logged[0]] == [f"speculation, {name}" for name in names]
    assert [line.split(": ")[1].split(",")[0] for line in logged[0]] == [*["6 frames"] * 3, "18 frames"]
    assert [frames for frames, *_ in counters(predictors[0])] == [6, 6, 0, 6]


def test_speculation_that_does_not_pay_ends_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "overtone")
    plain, predictor = small(0), small(3, spec_params=SpecParams(off_below=16))
    frames = 0

    def same_codes() -> None:
        given: Any = {"sampling": SAMPLED, "frame_idx": frames}
        found, expected = (each.predict_frame(*inputs(4, frames), **given) for each in (predictor, plain))
        np.testing.assert_array_equal(codes_of(found), codes_of(expected))

    while predictor.stats()["speculating"]:
        same_codes()
        frames += 1
        assert frames < 200, "256 rounds are over"
    counted = predictor.stats()["spec_rounds"]
    assert counted >= 256
    for _ in range(70):
        same_codes()
        frames += 1
    assert predictor.stats()["spec_rounds"] == counted
    (line,) = lines(caplog)
    assert line.startswith("speculation is switched off: ")
    assert line.endswith(
        "codes per round are fewer than the 16.00 at which it pays; frames run step by step, with the same codes"
    )
    caplog.clear()
    predictor.log_and_reset_spec_stats()
    assert lines(caplog)[-1].endswith("accepted; switched off since")


# --- nothing waits, nothing grows ------------------------------------------------------------------------------------


def test_nothing_waits_for_the_device_but_who_asks() -> None:
    predictor = small()
    hidden, code_zero = inputs(4)
    plan = FramePlan(4, code_zero, hidden, SAMPLED, frame_idx=0)
    bound = predictor.bind_frame(plan)
    # As many frames at once as below: memory for outputs is allocated when none is free, and that may wait.
    before = [
        bound.launch(),
        *(predictor.predict_frame(hidden, code_zero) for _ in range(2)),
        predictor.run_frame(plan),
    ]
    for frame in before:
        frame.wait()
    del before, frame
    predictor.log_and_reset_spec_stats()
    counted = predictor.stats()["spec_rounds"]
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    started = time.perf_counter()
    frames = [
        bound.launch(),
        predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=1),
        predictor.predict_frame(hidden, code_zero, active=torch.ones(4, dtype=torch.bool)),
        predictor.run_frame(plan),
    ]
    predictor.log_and_reset_spec_stats()
    seen = predictor.stats()["spec_rounds"]
    assert [frame.ready() for frame in frames] == [False] * 4
    assert time.perf_counter() - started < 0.05
    assert not torch.cuda.current_stream().query()
    assert seen == counted
    for frame in frames:
        assert frame.wait().ready()
    assert predictor.stats()["spec_rounds"] >= counted + 4 * 4


def test_memory_is_constant_over_many_frames() -> None:
    predictor = small(8)
    hidden, code_zero = inputs(4)
    codes = torch.zeros(4, MODEL.residual_codebooks + 1, dtype=torch.int32, device="cuda")
    plan = FramePlan(4, code_zero, hidden)
    bound = predictor.bind_frame(FramePlan(4, code_zero, hidden, SAMPLED, frame_idx=0, advance_frame_idx=True))

    def some(count: int) -> None:
        for index in range(count):
            predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index)
            predictor.run_frame(plan, codes)
            bound.launch()
            if index % 100 == 99:
                bound.frame.wait()
                predictor.log_and_reset_spec_stats()

    some(500)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    some(max(FRAMES, 3000) // 3)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] <= 0
    bound.frame.wait()
    frames = predictor.stats()["frames"]
    assert predictor.stats()["spec_codes"] == frames * 4 * (MODEL.residual_codebooks - 1)


# --- fitted drafts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def drafted(golden: GoldenDirectory, tmp_path: Path) -> Path:
    """A file of drafts for a golden predictor that nobody fitted: heads and tables are random."""
    directory = tmp_path / "golden"
    shutil.copytree(golden.path, directory)
    generator = np.random.default_rng(5)
    heads = FitWeights.read(directory).heads[1:]

    def like(head: Any, width: int) -> Any:
        return (generator.standard_normal((len(head), width)) * head.std()).astype(np.float32)

    drafts = Drafts([like(head, head.shape[1]) for head in heads], [like(head, len(head)) for head in heads], 1, 1.0)
    file = tmp_path / "drafts.safetensors"
    _core.write_drafts(file, directory, None, drafts.tensors(), "float32", drafts.frames, drafts.ridge)
    return file


@pytest.mark.parametrize("draft", SHAPES)
@pytest.mark.parametrize("window", [2, 4, 8])
def test_drafts_change_no_output_and_are_those_of_the_cpu(
    golden: GoldenDirectory, drafted: Path, window: int, draft: str
) -> None:
    plain = cuda_golden(golden, max_batch=3)
    options: Any = {"max_batch": 3, "spec_verify_size": window, "spec_params": in_rounds(draft, drafts=drafted)}
    rounds = cuda_golden(golden, **options)
    host = load(golden, executor="cpu", dtype="float32", **options)
    without = cuda_golden(golden, **{**options, "spec_params": in_rounds(draft, drafts=False)})
    for sampling_set in SAMPLING_SETS:
        for index, hidden, code_zero, rows in golden_frames(golden, sampling_set):
            arguments: Any = (on_cuda(hidden), on_cuda(code_zero))
            given: Any = {"sampling": rows, "frame_idx": index, "logits": True}
            found, expected = (each.predict_frame(*arguments, **given) for each in (rounds, plain))
            assert differing(found, expected, words) == {}, (sampling_set, index)
            without.predict_frame(*arguments, **given).wait()
            host.predict_frame(hidden, code_zero, sampling=rows, frame_idx=index)
    assert counters(rounds) == counters(host)
    assert counters(rounds) != counters(without), "the drafts are used"
