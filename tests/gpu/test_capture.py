"""Inside the caller's own graph: what is recorded, what has to be on the device for that, and codes of many replays."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from on_device import MODEL, codes_of, cuda_model, inputs, plan, taken, torch
from overtone import CaptureError, CodePredictor, InputError, SamplingArrays, SamplingParams

pytestmark = pytest.mark.gpu

SAMPLED = SamplingParams(temperature=0.9, top_k=10, seed=3)


@pytest.fixture
def predictor() -> CodePredictor:
    return cuda_model()


def arrays(batch: int) -> SamplingArrays:
    """`SAMPLED` for every row, on the device."""
    return SamplingArrays(
        torch.full((batch,), SAMPLED.temperature, device="cuda"),
        torch.full((batch,), SAMPLED.top_k, dtype=torch.int32, device="cuda"),
        torch.full((batch,), SAMPLED.top_p, device="cuda"),
        torch.full((batch,), SAMPLED.seed, dtype=torch.int64, device="cuda"),
    )


def index() -> Any:
    return torch.zeros(1, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_replays_of_a_bound_frame_advance_the_frame_index(predictor: CodePredictor, mode: str) -> None:
    hidden, code_zero = inputs(4)
    expected = [
        codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=number)) for number in range(6)
    ]
    counter = index()
    bound = predictor.bind_frame(plan(4, sampling=arrays(4), frame_idx=counter, advance_frame_idx=True))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        frame = bound.launch()
        doubled = taken(frame.codes) * 2
    with pytest.raises(CaptureError, match="recorded"):
        frame.ready()
    with pytest.raises(CaptureError, match="recorded"):
        frame.wait()
    assert counter.tolist() == [0]
    for codes in expected:
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_array_equal(codes_of(frame), codes)
        np.testing.assert_array_equal(doubled.cpu(), 2 * codes)
    assert counter.tolist() == [6]
    # A frame of ours between two replays.
    np.testing.assert_array_equal(
        codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=2)), expected[2]
    )
    counter.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(codes_of(frame), expected[3])


def test_predict_frame_is_recorded_too_and_its_outputs_stay(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(3)
    predictor.predict_frame(hidden, code_zero).wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        frame = predictor.predict_frame(hidden, code_zero)
        codes = taken(frame.codes)
        total = taken(frame.codec_sum).float().sum()
    del frame
    others = [predictor.predict_frame(*inputs(3, seed=seed)) for seed in range(5)]
    for seed in range(3):
        new_hidden, new_code_zero = inputs(3, seed=seed)
        hidden.copy_(new_hidden)
        code_zero.copy_(new_code_zero)
        graph.replay()
        expected = predictor.predict_frame(new_hidden, new_code_zero).to_host()
        np.testing.assert_array_equal(codes.cpu(), expected.codes)
        assert total.item() == pytest.approx(float(expected.codec_sum.sum()), rel=1e-4)
    for seed, other in enumerate(others):
        np.testing.assert_array_equal(codes_of(other), codes_of(predictor.predict_frame(*inputs(3, seed=seed))))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("code_zero", {"code_zero": [1, 2]}),
        ("code_zero", {"code_zero": np.array([1, 2])}),
        ("sampling", {"sampling": SAMPLED, "frame_idx": 3}),
        ("frame_idx", {"sampling": "arrays", "frame_idx": 3}),
        ("frame_idx", {"frame_idx": 3, "advance_frame_idx": True}),
        ("active", {"active": np.array([True, False])}),
    ],
)
def test_a_hosts_value_is_refused_before_anything_is_recorded(
    predictor: CodePredictor, name: str, changes: dict[str, Any]
) -> None:
    given = dict(changes)
    if given.get("sampling") == "arrays":
        given["sampling"] = arrays(2)
    bound = predictor.bind_frame(plan(2, **given))
    bound.launch().wait()
    value = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value += 1
        with pytest.raises(CaptureError, match=f"{name}: found a value on the host"):
            bound.launch()
    graph.replay()
    torch.cuda.synchronize()
    assert value.item() == 1
    bound.launch().wait()


def test_greedy_frames_need_no_index_inside_a_capture(predictor: CodePredictor) -> None:
    bound = predictor.bind_frame(plan(2))
    expected = codes_of(bound.launch()).copy()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()
    taken(bound.frame.codes).zero_()
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(codes_of(bound.frame), expected)


def test_frames_run_while_another_thread_captures(predictor: CodePredictor) -> None:
    other = cuda_model()
    hidden, code_zero = inputs(2)
    expected = codes_of(other.predict_frame(hidden, code_zero))
    ready, done = threading.Event(), threading.Event()
    wrong: list[object] = []

    def run() -> None:
        ready.wait()
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    frame = other.predict_frame(hidden, code_zero)
                    if not np.array_equal(codes_of(frame), expected):
                        wrong.append("codes")
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            wrong.append(error)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    bound = predictor.bind_frame(plan(2))
    bound.launch().wait()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        ready.set()
        bound.launch()
        done.wait()
    thread.join()
    assert wrong == []
    graph.replay()
    torch.cuda.synchronize()


def test_loading_and_capturing_work_while_others_allocate() -> None:
    stop = threading.Event()

    def allocate() -> None:
        while not stop.is_set():
            torch.empty(2**22, device="cuda")
            torch.cuda.empty_cache()

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            predictor = cuda_model(20)
            assert predictor.capture_decode_graphs()
            predictor.predict_frame(*inputs(20)).wait()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_ring_collects_the_codes_of_replays_in_order(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(3)
    expected = [
        codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=number)) for number in range(12)
    ]
    ring = predictor.codes_ring(5, 3)
    given = plan(3, sampling=arrays(3), frame_idx=index(), advance_frame_idx=True, codes_ring=ring)
    bound = predictor.bind_frame(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()
    first = 0
    for count in (3, 5, 0, 4):
        for _ in range(count):
            graph.replay()
        drained = ring.drain()
        assert drained.shape == (count, 3, MODEL.residual_codebooks + 1)
        for codes, right in zip(drained, expected[first : first + count], strict=True):
            np.testing.assert_array_equal(codes, right)
        first += count
    for _ in range(6):
        bound.launch()
    with pytest.raises(InputError, match="found 6 frames, expected at most 5"):
        ring.drain()
    bound.launch()
    assert len(ring.drain()) == 1
