"""Ragged steps on the device: the layout that the CPU makes, from lengths that stay there, in graphs and outside."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from on_device import SLEEP_CYCLES, codes_of, cuda_model, inputs, on_cuda, torch
from overtone import (
    CaptureError,
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
from talker_engine import VOCABULARY, Talker

pytestmark = pytest.mark.gpu

LAYOUTS = ("packed", "padded")
CONFIG = RaggedConfig(max_batch=5, max_query_width=4, max_positions=12, max_states=7, index_dtype="int64")
VECTORS = [each.name for each in dataclasses.fields(RaggedBatch) if each.init]


@pytest.fixture
def predictor() -> CodePredictor:
    return cuda_model()


@pytest.fixture
def reference() -> CodePredictor:
    return cuda_model(executor="cpu")


def published(batch: RaggedBatch) -> dict[str, list[int]]:
    """What is in the batch once the device is idle."""
    torch.cuda.synchronize()
    return {name: Tensor.from_dlpack(getattr(batch, name)).tolist() for name in VECTORS}


def torch_batch(config: RaggedConfig) -> RaggedBatch:
    """A batch of torch's tensors, full of what nobody published; only the fault word begins as zero."""
    rows, places = config.max_batch, config.max_batch * config.max_query_width
    index_type = getattr(torch, config.index_dtype)

    def vector(length: int, dtype: Any = torch.int32) -> Any:
        return torch.full((length,), 77, dtype=dtype, device="cuda")

    return RaggedBatch(
        query_offsets=vector(rows + 1),
        query_lengths=vector(rows),
        past_lengths=vector(rows),
        total_lengths=vector(rows),
        last_token_indices=vector(rows),
        positions=vector(places, index_type),
        state_indices=vector(places, index_type),
        phase=vector(1),
        status=vector(rows),
        faults=torch.zeros(1, dtype=torch.int32, device="cuda"),
    )


def host_copy(batch: RaggedBatch) -> RaggedBatch:
    """The same values in NumPy arrays."""
    torch.cuda.synchronize()
    return RaggedBatch(**{name: getattr(batch, name).cpu().numpy().copy() for name in VECTORS})


def publish(predictor: CodePredictor, batch: RaggedBatch, io: RaggedIo, **changes: Any) -> RaggedStep:
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "query_lengths": [2, 0, 3],
        "past_lengths": [4, 5, 6],
        "batch_size": 3,
        "query_width": 4,
        "phase": "verify",
    } | changes
    return predictor.prepare_ragged_step(batch, io, **arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("advance", [False, True])
def test_the_device_publishes_what_the_cpu_does(
    predictor: CodePredictor, reference: CodePredictor, layout: str, dtype: Any, advance: bool
) -> None:
    generator = np.random.default_rng(3)
    config = dataclasses.replace(CONFIG, layout=layout, padding_position=-5)
    batch = torch_batch(config)
    expected = host_copy(batch)
    for _ in range(30):
        rows = int(generator.integers(1, 6))
        phase = Phase(int(generator.integers(3)))
        width = 1 if phase is Phase.DECODE else int(generator.integers(1, 5))
        # Now and then a length, a past or a state that cannot be.
        queries = generator.integers(-1, width + 2, size=rows).astype(dtype)
        pasts = generator.integers(-1, 12, size=rows).astype(dtype)
        states = generator.integers(-1, 8, size=5).astype(dtype)
        lengths = generator.integers(-1, 12, size=7, dtype=np.int32)
        io = RaggedIo(on_cuda(states), on_cuda(lengths), advance)
        host_io = RaggedIo(states, lengths.copy(), advance)
        of_states = bool(generator.integers(2))
        publish(
            predictor,
            batch,
            io,
            config=config,
            query_lengths=on_cuda(queries),
            past_lengths=None if of_states else on_cuda(pasts),
            batch_size=rows,
            query_width=width,
            phase=phase,
        )
        publish(
            reference,
            expected,
            host_io,
            config=config,
            query_lengths=queries,
            past_lengths=None if of_states else pasts,
            batch_size=rows,
            query_width=width,
            phase=phase,
        )
        assert published(batch) == published(expected)
        np.testing.assert_array_equal(cast("Any", io.kv_lengths).cpu(), host_io.kv_lengths)


def test_lengths_of_the_host_and_of_the_device_say_the_same(predictor: CodePredictor) -> None:
    expected = torch_batch(CONFIG)
    publish(predictor, expected, RaggedIo()).wait()
    queries, pasts = np.array([2, 0, 3]), np.array([4, 5, 6], np.int32)
    for given in (
        {"query_lengths": queries, "past_lengths": pasts},
        {"query_lengths": on_cuda(queries), "past_lengths": on_cuda(pasts)},
        {"query_lengths": on_cuda(np.stack([queries, -queries], 1))[:, 0], "past_lengths": [4, 0, 6]},
        {"query_lengths": torch.tensor([2, 0, 3]), "past_lengths": on_cuda(pasts)},
    ):
        batch = torch_batch(CONFIG)
        publish(predictor, batch, RaggedIo(), **given).wait()
        assert published(batch) == published(expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_talkers_engine_steps_as_on_the_cpu(predictor: CodePredictor, reference: CodePredictor, layout: str) -> None:
    config = RaggedConfig(max_batch=3, max_query_width=5, max_positions=16, max_states=4, layout=layout)
    states = np.array([3, 0, 2])
    generator = np.random.default_rng(1)
    talkers = (Talker(predictor, config, on_cuda(states)), Talker(reference, config, states))
    for phase, lengths in (
        (Phase.PREFILL, (5, 1, 3)),
        (Phase.DECODE, (1, 0, 1)),
        (Phase.VERIFY, (3, 4, 0)),
        (Phase.VERIFY, (1, 2, 5)),
    ):
        tokens = [generator.integers(VOCABULARY, size=length).tolist() for length in lengths]
        for found, expected in zip(*(talker.step(phase, tokens) for talker in talkers), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_replays_publish_from_lengths_that_are_on_the_device_then(predictor: CodePredictor) -> None:
    batch = torch_batch(CONFIG)
    queries = torch.ones(5, dtype=torch.int32, device="cuda")
    kv_lengths = torch.tensor([0, 9, 4, 0, 0, 0, 0], dtype=torch.int32, device="cuda")
    io = RaggedIo(kv_lengths=kv_lengths, advance=True)
    step = {"query_lengths": queries, "past_lengths": None, "batch_size": 3, "query_width": 1, "phase": "decode"}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = publish(predictor, batch, io, **step)
        doubled = cast("Any", batch.positions)[:3] * 2
    with pytest.raises(CaptureError, match="recorded"):
        recorded.wait()
    assert kv_lengths.tolist()[:3] == [0, 9, 4]
    for pasts, status in (([0, 9, 4], [0, 0, 0]), ([1, 10, 5], [0, 0, 0]), ([2, 11, 6], [0, 0, 0])):
        graph.replay()
        found = published(batch)
        assert (found["past_lengths"][:3], found["status"][:3]) == (pasts, status)
        assert doubled.tolist() == [2 * past for past in pasts]
    # Row 1 is full now: it fails alone, and the fault stays in the sticky word.
    graph.replay()
    found = published(batch)
    assert found["status"][:3] == [0, RaggedFault.PAST_LENGTH, 0]
    assert found["query_offsets"] == [0, 1, 1, 2, 2, 2]
    queries[1] = 0
    graph.replay()
    assert published(batch)["status"][:3] == [0, 0, 0]
    assert published(batch)["faults"] == [1 << RaggedFault.PAST_LENGTH]
    assert kv_lengths.tolist()[:3] == [5, 12, 9]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("query_lengths", {"past_lengths": "device"}),
        ("query_lengths", {"query_lengths": np.array([2, 0, 3]), "past_lengths": "device"}),
        ("past_lengths", {"query_lengths": "device"}),
    ],
)
def test_lengths_of_the_host_are_refused_inside_a_capture(
    predictor: CodePredictor, name: str, changes: dict[str, Any]
) -> None:
    on_device = {"query_lengths": on_cuda(np.array([2, 0, 3])), "past_lengths": on_cuda(np.array([4, 5, 6]))}
    given = {key: on_device[key] if isinstance(value, str) else value for key, value in changes.items()}
    batch, value = torch_batch(CONFIG), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value += 1
        with pytest.raises(CaptureError, match=f"{name}: found a value on the host"):
            publish(predictor, batch, RaggedIo(), **given)
    graph.replay()
    torch.cuda.synchronize()
    assert value.item() == 1
    publish(predictor, batch, RaggedIo(), **given).wait()


def test_a_step_is_in_order_on_its_stream_and_waits_for_nothing(predictor: CodePredictor) -> None:
    batch = torch_batch(CONFIG)
    publish(predictor, batch, RaggedIo()).wait()
    stream = torch.cuda.Stream()
    queries = torch.zeros(3, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        queries.fill_(1)
        step = publish(predictor, batch, RaggedIo(), query_lengths=queries, past_lengths=[0, 0, 0])
        taken = cast("Any", batch.query_lengths).clone()
        assert not step.ready()
        queries.fill_(9)
    assert step.wait().ready()
    stream.synchronize()
    assert taken.tolist() == [1, 1, 1, 0, 0]


def test_rows_that_fail_are_told_by_wait(predictor: CodePredictor) -> None:
    batch = RaggedBatch.zeros(CONFIG, predictor.device)
    step = publish(predictor, batch, RaggedIo(), query_lengths=on_cuda(np.array([2, 5, -1])))
    with pytest.raises(FrameError, match=r"row 1: .*; row 2: ") as raised:
        step.wait()
    assert raised.value.statuses == (RaggedFault.QUERY_LENGTH, RaggedFault.QUERY_LENGTH)


@pytest.mark.parametrize("name", VECTORS)
def test_outputs_in_host_memory_are_refused(predictor: CodePredictor, name: str) -> None:
    batch = dataclasses.replace(torch_batch(CONFIG), **cast("dict[str, Any]", {name: np.zeros(40, np.int32)}))
    with pytest.raises(InputError, match=f"batch.{name}: on cpu, expected a tensor on cuda:0"):
        publish(predictor, batch, RaggedIo())


def test_values_of_the_host_raise_before_anything_is_published(predictor: CodePredictor) -> None:
    batch = torch_batch(CONFIG)
    for given in ([2, 0, 5], np.array([2, 0, 5]), torch.tensor([2, 0, 5])):
        with pytest.raises(InputError, match="query_lengths: row 2 has 5, expected 0 to 4"):
            publish(predictor, batch, RaggedIo(), query_lengths=given)
    assert published(batch)["query_lengths"] == [77] * 5


def test_frames_and_steps_of_one_predictor_do_not_disturb_each_other(predictor: CodePredictor) -> None:
    expected = codes_of(predictor.predict_frame(*inputs(4)))
    batch = torch_batch(CONFIG)
    for _ in range(20):
        step = publish(predictor, batch, RaggedIo())
        frame = predictor.predict_frame(*inputs(4))
    np.testing.assert_array_equal(codes_of(frame), expected)
    assert step.wait().ready()
