"""Threads and processes: sharing a predictor, owning one, Ctrl-C, forking, and how many threads run a frame."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import overtone
from golden import GoldenDirectory
from models import RandomModel, bits, load, row_bits, sampling_rows
from overtone import FramePlan, InputError, SamplingParams

MODEL = RandomModel()
PATHS = [str(Path(overtone.__file__).parent.parent), str(Path(__file__).parent)]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` … `work(count - 1)` at the same time and raise what any of them raised."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            barrier.wait()
            work(index)
        except BaseException as error:  # noqa: BLE001 # raised again below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own that finds overtone and the tests' modules."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path[:0] = {PATHS!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


# Sharing


def test_threads_that_share_a_predictor_all_get_their_own_frames(golden: GoldenDirectory) -> None:
    predictor = load(golden)
    rows = sampling_rows(golden, "mixed")
    expected = golden.expected("mixed", "codes")

    def predict(index: int) -> None:
        for turn in range(8):
            frame_idx = (index + turn) % len(expected)
            frame = predictor.predict_frame(
                golden.talker_last_hidden[frame_idx], golden.code_zero[frame_idx], sampling=rows, frame_idx=frame_idx
            )
            np.testing.assert_array_equal(frame.wait().codes, expected[frame_idx])

    in_threads(6, predict)
    assert predictor.stats()["frames"] == 48


def test_threads_may_bind_lend_and_ask_while_others_run_frames() -> None:
    predictor = MODEL.load(max_batch=4)
    hidden, code_zero = MODEL.inputs(4)
    expected = predictor.predict_frame(hidden, code_zero).codes.tolist()
    arena = np.zeros(predictor.required_context_memory, np.uint8)
    table = MODEL.tensors["talker.model.codec_embedding.weight"].copy()
    binding = overtone.Binding(32, 4, 4, code_zero_embed_table=table)

    def work(index: int) -> None:
        for turn in range(40):
            if index < 3:
                assert predictor.predict_frame(hidden, code_zero).codes.tolist() == expected
            elif index == 3:
                predictor.set_context_memory(arena if turn % 2 else None)
            elif index == 4:
                predictor.bind(binding if turn % 2 else overtone.Binding(32, 4, 4))
            else:
                assert predictor.stats()["rows"] % 4 == 0
                assert predictor.dtype == "float32"

    in_threads(6, work)


def test_threads_that_own_a_predictor_do_not_disturb_each_other(golden: GoldenDirectory) -> None:
    def predict(index: int) -> None:
        predictor = load(golden, dtype="float32", threads=1 + index % 2)
        for frame_idx, expected in enumerate(golden.expected("greedy", "codes")):
            frame = predictor.predict_frame(golden.talker_last_hidden[frame_idx], golden.code_zero[frame_idx])
            np.testing.assert_array_equal(frame.codes, expected)

    in_threads(4, predict)


LARGE = """
import threading, time
import numpy as np
from models import RandomModel

model = RandomModel(residual_codebooks=15, codebook_size=64, hidden_size=512, heads=8, head_size=64, layers=2,
                    mlp_width=4096)
predictor = model.load(max_batch=16, threads=1)
hidden, code_zero = model.inputs(16)
started = time.perf_counter()
predictor.predict_frame(hidden, code_zero)
frame_seconds = time.perf_counter() - started
"""


def test_other_threads_run_while_a_frame_does() -> None:
    """No call that is made during a frame holds the GIL until the frame is over: else each would end once a frame."""
    outcome = python(
        LARGE
        + """
from overtone import Binding, FramePlan

frames, ticks, calls, running = 6, 0, 0, True

def predict():
    global running
    for _ in range(frames):
        predictor.predict_frame(hidden, code_zero)
    running = False

def ask():
    global calls
    while running:
        predictor.stats(), predictor.dtype, predictor.spec, predictor.codec_embed_table(0)
        predictor.bind(Binding(512, 16, 16))
        predictor.bind_frame(FramePlan(1, code_zero, hidden))
        calls += 1
        time.sleep(0.001)

threads = [threading.Thread(target=work) for work in (predict, ask)]
for thread in threads:
    thread.start()
while running:
    ticks += 1
    time.sleep(0.001)
for thread in threads:
    thread.join()
print(frame_seconds, ticks / frames, calls / frames)
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    frame_seconds, ticks, calls = (float(word) for word in outcome.stdout.split())
    assert frame_seconds > 0.03
    assert ticks > 4
    assert calls > 4


# Ctrl-C

LONG_LOAD = """
from models import RandomModel
from overtone import CodePredictor

layers = 60
model = RandomModel(hidden_size=1024, mlp_width=8192, codebook_size=8, layers=1)
tensors = {
    name.replace("layers.0.", f"layers.{layer}."): tensor
    for name, tensor in model.tensors.items()
    for layer in range(layers)
}
config = {**model.config, "num_hidden_layers": layers}

def progress(done, total):
    seen.append(done / total)
    print("loading", flush=True) if len(seen) == 1 else None

seen = []
try:
    CodePredictor.from_tensors(config, tensors, dtype="int8", progress=progress)
    print("loaded", flush=True)
except KeyboardInterrupt:
    print("interrupted", seen[-1], flush=True)
    raise
"""


def test_ctrl_c_ends_a_long_load_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {PATHS!r}\n{LONG_LOAD}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        output, errors = process.communicate(timeout=60)
        took = time.monotonic() - sent
    finally:
        process.kill()
        process.communicate()
    assert output.startswith("interrupted"), output + errors
    assert float(output.split()[1]) < 0.5
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "panick" not in errors
    assert took < 5


def test_ctrl_c_leaves_the_earlier_model_loaded(omni_tiny: GoldenDirectory) -> None:
    predictor = load(omni_tiny)

    def press_ctrl_c(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        predictor.preallocate(omni_tiny.path, progress=press_ctrl_c)
    frame = predictor.predict_frame(omni_tiny.talker_last_hidden[0], omni_tiny.code_zero[0])
    np.testing.assert_array_equal(frame.codes, omni_tiny.expected("greedy", "codes")[0])


# Forking

FORK = """
import os, signal
import numpy as np
from models import RandomModel
from overtone import DeviceError, FramePlan

model = RandomModel()
predictor = model.load()
hidden, code_zero = model.inputs(2)
codes = predictor.predict_frame(hidden, code_zero).codes.tolist()
bound = predictor.bind_frame(FramePlan(2, code_zero, hidden))
child = os.fork()
if child == 0:
    signal.alarm(60)  # should it hang, it ends
    try:
        {child}
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    sys.exit(3)
_, status = os.waitpid(child, 0)
assert predictor.predict_frame(hidden, code_zero).codes.tolist() == codes
print("child left with", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(
    "use",
    [
        "predictor.predict_frame(hidden, code_zero)",
        "predictor.run_frame(FramePlan(2, code_zero, hidden))",
        "bound.launch()",
        "predictor.set_context_memory(None)",
        "predictor.read_weights()",
    ],
)
def test_use_after_fork_raises_and_does_not_hang(use: str) -> None:
    outcome = python(FORK.format(child=use))
    said, left = outcome.stdout.splitlines()
    assert said.startswith("DeviceError this predictor was made in process"), outcome.stderr
    assert said.endswith("load another after forking")
    assert left == "child left with 3"


def test_another_predictor_can_be_loaded_after_forking() -> None:
    outcome = python(FORK.format(child="print(model.load().predict_frame(hidden, code_zero).codes.tolist() == codes)"))
    assert outcome.stdout.splitlines() == ["True", "child left with 3"], outcome.stderr


def test_letting_go_after_forking_does_not_hang() -> None:
    outcome = python(FORK.format(child="del predictor, bound; __import__('gc').collect(); print('gone')"))
    assert outcome.stdout.splitlines() == ["gone", "child left with 3"], outcome.stderr


def test_a_process_that_ends_amid_frames_ends() -> None:
    code = """
import threading
from models import RandomModel
model = RandomModel()
predictor = model.load()
def frames():
    while True:
        predictor.predict_frame(*model.inputs(4))
for _ in range(3):
    threading.Thread(target=frames, daemon=True).start()
predictor.predict_frame(*model.inputs(4))
print("over")
"""
    outcome = python(code)
    assert (outcome.returncode, outcome.stdout) == (0, "over\n"), outcome.stderr


# How many threads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_number_of_threads_gives_the_same_bits(dtype: str) -> None:
    model = RandomModel(codebook_size=70, mlp_width=136, head_size=10, hidden_size=40)
    hidden, code_zero = model.inputs(5)
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
    seen = set()
    for threads in (1, 2, 3, 7, 32):
        predictor = model.load(dtype=dtype, threads=threads)
        assert predictor.threads == threads
        for _ in range(3):
            frame = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=1, logits=True)
            seen.add(tuple(row_bits(frame, row) for row in range(5)))
    assert len(seen) == 1


def test_the_variable_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERTONE_NUM_THREADS", "3")
    assert MODEL.load().threads == 3
    assert MODEL.load(threads=2).threads == 2
    monkeypatch.setenv("OVERTONE_NUM_THREADS", " 5 ")
    assert MODEL.load().threads == 5
    monkeypatch.delenv("OVERTONE_NUM_THREADS")
    assert MODEL.load().threads == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("value", ["", "many", "-1", "1.5", "0x4", "99999999999999999999", "\udcff"])
def test_a_variable_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OVERTONE_NUM_THREADS", value)
    with pytest.raises(InputError, match=r"OVERTONE_NUM_THREADS: found .* expected a whole number from 1 to 1024"):
        MODEL.load()
    assert MODEL.load(threads=1).threads == 1


@pytest.mark.parametrize("value", ["0", "1025"])
def test_a_variable_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OVERTONE_NUM_THREADS", value)
    with pytest.raises(InputError, match=f"{value}"):
        MODEL.load()


def test_no_threads_are_started_but_the_predictors_own() -> None:
    code = """
import os
from models import RandomModel
model = RandomModel(mlp_width=512)
before = len(os.listdir("/proc/self/task"))
counts = []
for threads in (1, 3):
    predictor = model.load(threads=threads)
    predictor.predict_frame(*model.inputs(2))
    counts.append(len(os.listdir("/proc/self/task")) - before)
print(*counts)
"""
    outcome = python(code, OPENBLAS_NUM_THREADS="1", OVERTONE_NUM_THREADS="7")
    assert outcome.returncode == 0, outcome.stderr
    one, three = (int(word) for word in outcome.stdout.split())
    assert one <= 1
    assert three <= 3 + one


def test_threads_end_with_their_predictor() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = count()
    for _ in range(10):
        predictor = MODEL.load(threads=8)
        assert bits(predictor.predict_frame(*MODEL.inputs(1)).codes)
        del predictor
    deadline = time.monotonic() + 20
    while count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count() <= before


def test_a_bound_frame_outlives_the_thread_that_made_it() -> None:
    made = []

    def make() -> None:
        predictor = MODEL.load()
        hidden, code_zero = MODEL.inputs(2)
        made.append(predictor.bind_frame(FramePlan(2, code_zero, hidden)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    expected = MODEL.load().predict_frame(*MODEL.inputs(2)).codes
    np.testing.assert_array_equal(made[0].launch().codes, expected)


def test_predictors_of_other_threads_do_not_share_a_seed_or_a_cache() -> None:
    hidden, code_zero = MODEL.inputs(3)
    results: dict[int, list[bytes]] = {}

    def work(index: int) -> None:
        predictor = MODEL.load()
        results[index] = [
            bits(predictor.predict_frame(hidden, code_zero, sampling=SamplingParams(seed=3), frame_idx=frame).codes)
            for frame in range(10)
        ]

    in_threads(4, work)
    assert len({tuple(result) for result in results.values()}) == 1
    assert len(set(results[0])) > 5
