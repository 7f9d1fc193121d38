"""Order, ownership and waiting: who waits for whom on the device, what is kept alive, and what never waits."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from models import row_bits
from on_device import MODEL, SLEEP_CYCLES, codes_of, cuda_model, inputs, on_cuda, plan, taken, torch
from overtone import CodePredictor, DeviceError, InputError, SamplingParams, Tensor

pytestmark = pytest.mark.gpu

SAMPLED = SamplingParams(temperature=0.9, top_k=10, seed=3)
ROUNDS = int(os.environ.get("OVERTONE_TEST_FRAMES", "10000"))
"""Frames of the tests that look for what grows."""


@pytest.fixture(scope="module")
def predictor() -> CodePredictor:
    return cuda_model()


def busy(stream: Any) -> None:
    """Keep a stream busy for about a tenth of a second."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)


def test_nothing_waits_for_the_device_but_who_asks(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(4)
    bound = predictor.bind_frame(plan(4, sampling=SAMPLED, frame_idx=0))
    # As many frames at once as below: memory for outputs is allocated when none is free, and that may wait.
    before = [
        bound.launch(),
        *(predictor.predict_frame(hidden, code_zero) for _ in range(2)),
        predictor.run_frame(plan(4)),
    ]
    for frame in before:
        frame.wait()
    del before, frame
    given, numbers = plan(4), code_zero.tolist()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    started = time.perf_counter()
    frames = [
        bound.launch(),
        predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=1),
        predictor.predict_frame(hidden, numbers, active=torch.ones(4, dtype=torch.bool)),
        predictor.run_frame(given),
    ]
    assert [frame.ready() for frame in frames] == [False] * 4
    assert time.perf_counter() - started < 0.05
    assert not torch.cuda.current_stream().query()
    for frame in frames:
        assert frame.wait().ready()


@pytest.mark.parametrize("form", ["object", "handle", "current"])
def test_a_frame_waits_for_its_inputs_and_a_consumer_for_the_frame(predictor: CodePredictor, form: str) -> None:
    expected = codes_of(predictor.predict_frame(*inputs(2, seed=5)))
    source, code_zero = inputs(2, seed=5)
    hidden = torch.zeros_like(source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        hidden.copy_(source)
        given = {"object": stream, "handle": stream.cuda_stream, "current": None}[form]
        frame = predictor.predict_frame(hidden, code_zero, stream=given)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        seen = taken(frame.codes).clone()
    other.synchronize()
    np.testing.assert_array_equal(seen.cpu(), expected)


def test_the_producers_stream_is_waited_for_when_the_frame_runs_on_another(predictor: CodePredictor) -> None:
    expected = codes_of(predictor.predict_frame(*inputs(2, seed=6)))
    source, code_zero = inputs(2, seed=6)
    hidden = torch.zeros_like(source)
    torch.cuda.synchronize()
    elsewhere = torch.cuda.Stream()
    torch.cuda._sleep(SLEEP_CYCLES)
    hidden.copy_(source)
    frame = predictor.predict_frame(hidden, code_zero, stream=elsewhere)
    np.testing.assert_array_equal(codes_of(frame), expected)


def test_frames_on_changing_streams_run_one_after_another(predictor: CodePredictor) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    hidden, code_zero = inputs(4)
    expected = [
        codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index)) for index in range(30)
    ]
    torch.cuda.synchronize()
    frames = []
    for index in range(30):
        if index % 7 == 0:
            busy(streams[index % 3])
        frames.append(
            predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index, stream=streams[index % 3])
        )
    for frame, codes in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(codes_of(frame), codes)


def test_inputs_live_until_their_frame_has_completed(predictor: CodePredictor) -> None:
    expected = codes_of(predictor.predict_frame(*inputs(8, seed=7)))
    hidden, code_zero = inputs(8, seed=7)
    stream, shape = torch.cuda.Stream(), hidden.shape
    predictor.predict_frame(hidden, code_zero, stream=stream).wait()
    gc.collect()
    torch.cuda.synchronize()
    busy(stream)
    frame = predictor.predict_frame(hidden, code_zero, stream=stream)
    del hidden, code_zero
    # Memory that torch had got back would be given out again here, and overwritten before the frame begins.
    rubbish = [torch.full(shape, float("nan"), device="cuda") for _ in range(64)]
    torch.cuda.current_stream().synchronize()
    assert not frame.ready()
    np.testing.assert_array_equal(codes_of(frame), expected)
    del rubbish


def test_outputs_outlive_frame_and_predictor() -> None:
    predictor = cuda_model()
    frame = predictor.predict_frame(*inputs(3))
    expected = codes_of(frame)
    codes, total = taken(frame.codes), taken(frame.codec_sum).clone()
    kept = taken(frame.codec_sum)
    table = taken(predictor.codec_embed_table(0))
    rows = table.clone()
    del frame, predictor
    gc.collect()
    np.testing.assert_array_equal(codes.cpu(), expected)
    assert torch.equal(kept, total)
    assert torch.equal(table, rows)


def test_every_frame_owns_its_outputs_until_they_are_let_go(predictor: CodePredictor) -> None:
    frames = [predictor.predict_frame(*inputs(3, seed=seed)) for seed in range(20)]
    addresses = {taken(frame.codes).data_ptr() for frame in frames}
    assert len(addresses) == 20
    expected = [codes_of(predictor.predict_frame(*inputs(3, seed=seed))) for seed in range(20)]
    for frame, codes in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(codes_of(frame), codes)


def test_memory_is_constant_over_many_frames(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(4)
    codes = torch.zeros(4, MODEL.residual_codebooks + 1, dtype=torch.int32, device="cuda")
    bound = predictor.bind_frame(plan(4, sampling=SAMPLED, frame_idx=0, advance_frame_idx=True))

    def some(count: int) -> None:
        for index in range(count):
            predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index)
            predictor.run_frame(plan_of, codes)
            bound.launch()
            if index % 100 == 99:
                bound.frame.wait()

    plan_of = plan(4)
    some(500)
    torch.cuda.synchronize()
    free, resident = torch.cuda.mem_get_info()[0], resident_bytes()
    some(ROUNDS // 3)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] <= 0
    assert resident_bytes() - resident < 16 * 2**20


def resident_bytes() -> int:
    with open("/proc/self/statm") as statistics:  # noqa: PTH123 - not a file to find
        return int(statistics.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_predictors_on_two_threads_and_streams_do_not_meet() -> None:
    predictors = [cuda_model(), cuda_model(dtype="bfloat16")]
    expected = [
        [row_bits(p.predict_frame(*inputs(4), sampling=SAMPLED, frame_idx=index), 2) for index in range(50)]
        for p in predictors
    ]
    found: list[list[Any]] = [[], []]
    raised: list[BaseException] = []

    def run(which: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                hidden, code_zero = inputs(4)
                frames = [
                    predictors[which].predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index)
                    for index in range(50)
                ]
            found[which] = [row_bits(frame, 2) for frame in frames]
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            raised.append(error)

    threads = [threading.Thread(target=run, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
    assert found == expected


def test_threads_may_share_a_predictor(predictor: CodePredictor) -> None:
    expected = [codes_of(predictor.predict_frame(*inputs(3, seed=seed))) for seed in range(4)]
    wrong: list[int] = []

    def run(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            hidden, code_zero = inputs(3, seed=seed)
            found = [codes_of(predictor.predict_frame(hidden, code_zero)) for _ in range(100)]
        wrong.extend(seed for codes in found if not np.array_equal(codes, expected[seed]))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_talkers_arena_may_be_scribbled_on_between_frames(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(5)
    expected = [
        row_bits(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=7), row) for row in range(5)
    ]
    required = predictor.required_context_memory
    assert not predictor.set_context_memory(torch.zeros(required - 1, dtype=torch.uint8, device="cuda"))
    arena = torch.zeros(required + 3, dtype=torch.uint8, device="cuda")[3:]
    assert predictor.set_context_memory(arena)
    try:
        for value in (0, 0x7F, 0xFF, 0x80):
            arena.fill_(value)
            frame = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=7)
            assert [row_bits(frame, row) for row in range(5)] == expected
        with pytest.raises(InputError, match="overlaps"):
            predictor.predict_frame(hidden, arena[5:25].view(torch.int32))
    finally:
        assert predictor.set_context_memory(None)
    frame = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=7)
    assert [row_bits(frame, row) for row in range(5)] == expected
    with pytest.raises(InputError, match="memory: on cpu"):
        predictor.set_context_memory(torch.zeros(required, dtype=torch.uint8))


def test_the_current_device_and_stream_are_left_as_they_were(predictor: CodePredictor) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        before = (torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream)
        frame = predictor.predict_frame(*inputs(2))
        frame.to_host()
        predictor.stats()
        predictor.capture_decode_graphs()
        assert (torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream) == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_each_device_has_its_own(predictor: CodePredictor) -> None:
    second = cuda_model(device="cuda:1")
    hidden, code_zero = inputs(3)
    expected = codes_of(predictor.predict_frame(hidden, code_zero))
    frame = second.predict_frame(hidden.to("cuda:1"), code_zero.to("cuda:1"))
    assert taken(frame.codes).device == torch.device("cuda", 1)
    np.testing.assert_array_equal(codes_of(frame), expected)
    assert torch.cuda.current_device() == 0
    with pytest.raises(InputError, match="expected a tensor on cuda:1"):
        second.predict_frame(hidden, code_zero)
    with pytest.raises(InputError, match="stream of another device"):
        second.predict_frame(hidden.to("cuda:1"), code_zero.tolist(), stream=torch.cuda.Stream(0))


def outcome(call: Any) -> str:
    try:
        call()
    except DeviceError as error:
        return "refused" if "forked" in str(error) else str(error)
    except BaseException as error:  # noqa: BLE001 - told to the parent
        return repr(error)
    return "ran"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_use_after_fork_is_refused(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(2)
    bound = predictor.bind_frame(plan(2))
    calls = (bound.launch, lambda: predictor.predict_frame(hidden, code_zero, stream=0), predictor.stats)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, " ".join(map(outcome, calls)).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 4096) == b"refused refused refused"
    os.close(read)
    predictor.predict_frame(hidden, code_zero).wait()


def test_tensors_go_to_the_device_and_back() -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    there = Tensor.from_dlpack(array[:, ::2]).to("cuda:0")
    assert (there.device, there.shape) == ("cuda:0", (3, 2))
    np.testing.assert_array_equal(there.to("cpu").numpy(), array[:, ::2])
    there.copy_from(torch.full((3, 2), 5, device="cuda"))
    assert taken(there).eq(5).all()
    there.copy_from(array[:, 1::2])
    np.testing.assert_array_equal(there.numpy(), array[:, 1::2])
    assert taken(Tensor.zeros([2, 2], "bfloat16", "cuda")).eq(0).all()
    with pytest.raises(InputError, match="source"):
        there.copy_from(on_cuda(array))
