"""Tensors in CUDA memory across the boundary: named, ordered on streams, never read by the host in place.

Most of it needs no GPU: producers make addresses up, and nobody looks there.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import dlpack_abi as abi
from conftest import missing_gpu
from contract import MODEL
from overtone import Tensor
from overtone.errors import CudaUnavailableError, InputError

ADDRESS = 0x7F00_0000_1000

without_gpu = pytest.mark.skipif(missing_gpu() is None, reason="a driver would be told made-up streams and addresses")


def floats(*values: float) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * len(values))(*values)


def cuda(
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    *,
    device: tuple[int, int] = (abi.CUDA, 1),
    kind: type[abi.Producer] = abi.Producer,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> abi.Producer:
    """A producer of float32 elements in memory of a device that nobody has."""
    told = {"data": ADDRESS, "device_type": device[0], "device_id": device[1], **(fields or {})}
    return kind(floats(), shape, strides, device=device, fields=told, **options)


class CudaArray:
    """An array that speaks the CUDA array interface alone."""

    def __init__(self, address: int = ADDRESS, elements: int = 1) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


# In


@pytest.mark.parametrize(
    ("device", "name"),
    [((abi.CUDA, 0), "cuda:0"), ((abi.CUDA, 7), "cuda:7"), ((abi.CUDA_MANAGED, 0), "cuda_managed:0")],
)
def test_a_cuda_tensor_says_where_it_is(device: tuple[int, int], name: str) -> None:
    tensor = Tensor.from_dlpack(cuda(device=device))
    assert (tensor.device, tensor.__dlpack_device__()) == (name, device)
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.nbytes) == ((2, 3), (3, 1), "float32", 24)
    assert repr(tensor) == f"overtone.Tensor(shape=[2, 3], dtype=float32, device={name})"


@pytest.mark.parametrize("device", [(abi.CUDA, 1), (abi.CUDA_MANAGED, 0)])
def test_the_producer_is_asked_to_order_its_work_before_the_legacy_default_stream(device: tuple[int, int]) -> None:
    producer = cuda(device=device)
    Tensor.from_dlpack(producer)
    assert producer.calls == [{"stream": 1, "max_version": (1, 1)}]


def test_a_producer_from_before_max_version_is_told_the_stream_all_the_same() -> None:
    class Old(abi.Producer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, versioned=False, **options)

        def __dlpack__(self, *, stream: int | None = None) -> object:  # type: ignore[override]
            return super().__dlpack__(stream=stream)

    producer = cuda(kind=Old)
    assert Tensor.from_dlpack(producer).device == "cuda:1"
    assert producer.calls == [{"stream": 1}]


def test_pinned_memory_has_no_stream_and_is_the_hosts_too() -> None:
    producer = abi.Producer(floats(1, 2), (2,), (1,), device=(abi.CUDA_HOST, 0), fields={"device_type": abi.CUDA_HOST})
    tensor = Tensor.from_dlpack(producer)
    assert producer.calls == [{"max_version": (1, 1)}]
    assert (tensor.device, tensor.tolist()) == ("cuda_host:0", [1, 2])
    tensor.numpy()[0] = 5
    assert tensor.tolist() == [5, 2]
    for dl_device, device in ((None, 3), ((3, 0), 3), ((1, 0), 1)):
        managed = abi.take(tensor.__dlpack__(max_version=(1, 0), dl_device=dl_device))
        assert (managed.tensor.device_type, managed.tensor.device_id, managed.flags) == (device, 0, 0)
        abi.release(managed)


def test_the_deleter_is_called_once_after_the_last_use() -> None:
    producer = cuda()
    tensor = Tensor.from_dlpack(producer)
    capsule = tensor.__dlpack__()
    again = Tensor.from_dlpack(tensor)
    del tensor, again
    assert producer.deleted == 0
    managed = abi.take(capsule)
    del capsule
    assert producer.deleted == 0
    abi.release(managed)
    assert producer.deleted == 1


def test_a_capsule_elsewhere_than_its_producer_says_is_refused_and_released() -> None:
    producer = cuda(fields={"device_type": abi.CPU})
    with pytest.raises(InputError, match="a capsule on cpu, expected one on cuda:1, as __dlpack_device__ says"):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 1


# The CPU executor


@pytest.mark.parametrize("argument", ["talker_last_hidden", "code_zero"])
def test_the_cpu_executor_refuses_cuda_tensors_before_their_producer_exports(argument: str) -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(2)
    tensors: dict[str, Any] = {"talker_last_hidden": hidden, "code_zero": code_zero}
    producer = cuda(tensors[argument].shape, (1,) * tensors[argument].ndim)
    expected = rf"{argument}: on cuda:1, expected a CPU tensor \(the cpu executor works in host memory\)"
    for refused in (producer, Tensor.from_dlpack(cuda())):
        with pytest.raises(InputError, match=expected) as raised:
            predictor.predict_frame(**(tensors | {argument: refused}))
        assert (raised.value.tensor, raised.value.found) == (argument, "on cuda:1")
    assert producer.calls == []


def test_the_cpu_executor_refuses_a_cuda_array() -> None:
    with pytest.raises(InputError, match="in CUDA memory, expected a CPU tensor"):
        MODEL.load().predict_frame(CudaArray(), [0])


# Out


@pytest.mark.parametrize("stream", [None, 1, -1])
def test_an_export_describes_the_memory_for_every_stream_that_needs_no_order(stream: int | None) -> None:
    capsule = Tensor.from_dlpack(cuda(strides=(1, 2))).__dlpack__(stream=stream, max_version=(1, 0))
    assert abi.name_of(capsule) == "dltensor_versioned"
    managed = abi.take(capsule)
    described = managed.tensor
    assert (described.data, described.device_type, described.device_id) == (ADDRESS, abi.CUDA, 1)
    assert (described.shape[:2], described.strides[:2], managed.flags) == ([2, 3], [1, 2], 0)
    abi.release(managed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"stream": 0}, BufferError, "stream 0: ambiguous on CUDA"),
        ({"stream": -2}, BufferError, "stream -2"),
        ({"stream": 2**64}, BufferError, "no stream has this handle"),
        ({"stream": True}, TypeError, "found bool"),
        ({"stream": "1"}, TypeError, "found str"),
        ({"stream": 1.0}, TypeError, "found float"),
        ({"copy": True}, BufferError, "a copy on cuda:1 is the consumer's to make"),
        ({"dl_device": (abi.CUDA, 0)}, BufferError, "on cuda:1 cannot be exported to cuda:0"),
        ({"dl_device": (abi.CPU, 0), "copy": False}, BufferError, "on cuda:1 cannot be exported to cpu"),
    ],
)
def test_exports_that_cannot_be_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    tensor = Tensor.from_dlpack(cuda())
    with pytest.raises(error, match=message):
        tensor.__dlpack__(**arguments)


def test_a_readonly_cuda_tensor_stays_readonly() -> None:
    tensor = Tensor.from_dlpack(cuda(flags=abi.READ_ONLY))
    assert tensor.readonly
    assert tensor.__cuda_array_interface__["data"] == (ADDRESS, True)
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    managed = abi.take(tensor.__dlpack__(max_version=(1, 0)))
    assert managed.flags == abi.READ_ONLY
    abi.release(managed)


def test_the_cuda_array_interface_describes_the_memory() -> None:
    tensor = Tensor.from_dlpack(cuda())
    expected = {"version": 3, "typestr": "<f4", "shape": (2, 3), "data": (ADDRESS, False), "strides": None, "stream": 1}
    assert tensor.__cuda_array_interface__ == expected
    strided = Tensor.from_dlpack(cuda(strides=(1, 2)))
    assert strided.__cuda_array_interface__ == expected | {"strides": (4, 8)}


def test_each_array_interface_is_there_for_its_own_memory_alone() -> None:
    host, device = Tensor.zeros([2]), Tensor.from_dlpack(cuda())
    brain = Tensor.from_dlpack(cuda(fields={"code": abi.BFLOAT, "bits": 16}))
    assert brain.dtype == "bfloat16"
    assert not hasattr(host, "__cuda_array_interface__")
    assert not hasattr(brain, "__cuda_array_interface__")
    assert not hasattr(device, "__array_interface__")


@without_gpu
@pytest.mark.parametrize(
    "read",
    [
        Tensor.numpy,
        Tensor.tolist,
        np.asarray,
        lambda tensor: tensor.__dlpack__(dl_device=(abi.CPU, 0)),
        lambda tensor: tensor.__dlpack__(stream=ADDRESS),
    ],
)
def test_without_a_driver_cuda_memory_is_out_of_reach_and_says_why(read: Any) -> None:
    tensor = Tensor.from_dlpack(cuda())
    with pytest.raises(CudaUnavailableError, match=r"\. \w+"):
        read(tensor)


def test_an_array_of_cuda_memory_is_always_a_copy() -> None:
    tensor = Tensor.from_dlpack(cuda())
    with pytest.raises(ValueError, match="float32 tensor on cuda:1 cannot become this array without a copy"):
        tensor.__array__(copy=False)


@without_gpu
def test_a_cuda_array_needs_the_driver_to_say_where_it_is() -> None:
    with pytest.raises(CudaUnavailableError, match="tensor: "):
        Tensor.from_dlpack(CudaArray())


# The C exchange table


def exchanged(kind: type[abi.Producer]) -> abi.Producer:
    return kind(floats(1, 2, 3, 4), (2, 2), (1, 2))


def test_a_type_with_an_exchange_table_is_not_asked_in_python() -> None:
    exchange = abi.Exchange()
    producer = exchanged(exchange.producers())
    tensor = Tensor.from_dlpack(producer)
    assert (exchange.exports, producer.calls, exchange.devices) == (1, [], [])
    assert (tensor.tolist(), tensor.device) == ([[1, 3], [2, 4]], "cpu")
    shared = tensor.numpy()
    del tensor
    gc.collect()
    assert producer.deleted == 0
    del shared
    assert producer.deleted == 1


def test_the_executor_takes_exchanged_tensors() -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(2)
    exchange = abi.Exchange()
    data = (ctypes.c_float * hidden.size)(*hidden.ravel().tolist())
    producer = exchange.producers()(data, hidden.shape, (hidden.shape[1], 1))
    expected = predictor.predict_frame(hidden, code_zero).codes.numpy()
    np.testing.assert_array_equal(predictor.predict_frame(producer, code_zero).codes.numpy(), expected)
    assert exchange.exports > 0
    assert producer.calls == []


@pytest.mark.parametrize("version", [(0, 9), (2, 0)])
def test_a_table_of_an_unknown_version_is_left_alone(version: tuple[int, int]) -> None:
    exchange = abi.Exchange(version=version)
    producer = exchanged(exchange.producers())
    assert Tensor.from_dlpack(producer).tolist() == [[1, 3], [2, 4]]
    assert (exchange.exports, len(producer.calls)) == (0, 1)


def test_an_older_table_behind_a_newer_one_is_found() -> None:
    newer, known = abi.Exchange(version=(2, 0)), abi.Exchange()
    newer.table.older = ctypes.addressof(known.table)
    Tensor.from_dlpack(exchanged(newer.producers()))
    assert (newer.exports, known.exports) == (0, 1)


@pytest.mark.parametrize("capsule", [None, 17, "dlpack_exchange_api"])
def test_an_attribute_that_is_no_table_is_left_alone(capsule: object) -> None:
    kind = type("Library", (abi.Producer,), {"__dlpack_c_exchange_api__": capsule})
    assert Tensor.from_dlpack(exchanged(kind)).tolist() == [[1, 3], [2, 4]]


def test_a_tensor_under_differentiation_is_left_to_dlpack_which_says_why_not() -> None:
    exchange = abi.Exchange()
    producer = exchanged(exchange.producers(requires_grad=True))
    Tensor.from_dlpack(producer)
    assert (exchange.exports, len(producer.calls)) == (0, 1)


def failing(error: BaseException) -> abi.Producer:
    def raise_it(producer: abi.Producer) -> int:
        raise error

    return exchanged(abi.Exchange(failing=True).producers(__len__=raise_it))


def test_what_the_table_cannot_export_is_left_to_dlpack() -> None:
    producer = failing(BufferError("no storage"))
    assert Tensor.from_dlpack(producer).tolist() == [[1, 3], [2, 4]]
    assert len(producer.calls) == 1


def test_ctrl_c_in_a_table_is_not_an_input_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        Tensor.from_dlpack(failing(KeyboardInterrupt()))


def test_an_exchanged_cuda_tensor_names_the_stream_of_its_library() -> None:
    exchange = abi.Exchange(stream=0)
    producer = cuda(kind=exchange.producers())
    assert Tensor.from_dlpack(producer).device == "cuda:1"
    assert (exchange.devices, producer.calls) == ([(abi.CUDA, 1)], [])


@without_gpu
def test_a_library_on_another_stream_has_to_be_waited_for() -> None:
    producer = cuda(kind=abi.Exchange(stream=0x1230).producers())
    with pytest.raises(CudaUnavailableError):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 1


@pytest.mark.parametrize("kind", [abi.Producer, abi.Exchange().producers()])
def test_nothing_leaks_when_cuda_tensors_cross_many_times(kind: type[abi.Producer]) -> None:
    producer = cuda(kind=kind)
    for _ in range(100):
        tensor = Tensor.from_dlpack(producer)
        tensor.__dlpack__(max_version=(1, 0))
        assert tensor.__cuda_array_interface__["stream"] == 1
    del tensor
    assert producer.deleted == 100


# On a GPU


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.gpu
def test_torch_shares_cuda_memory_both_ways(torch: Any) -> None:
    source = torch.arange(6, dtype=torch.bfloat16, device="cuda:0").reshape(2, 3).t()
    tensor = Tensor.from_dlpack(source)
    assert (tensor.device, tensor.dtype, tensor.strides) == ("cuda:0", "bfloat16", (1, 3))
    assert tensor.tolist() == source.tolist()
    back = torch.from_dlpack(tensor)
    assert (back.device, back.data_ptr()) == (source.device, source.data_ptr())
    back[0, 0] = 7
    torch.cuda.synchronize()
    assert tensor.tolist()[0][0] == 7.0


@pytest.mark.gpu
@pytest.mark.parametrize("step", [1, 7])
def test_the_host_sees_what_a_side_stream_has_yet_to_write(torch: Any, step: int) -> None:
    filled = torch.zeros(1 << 20, dtype=torch.float32, device="cuda:0")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)
        filled.fill_(3)
        tensor = Tensor.from_dlpack(filled[3::step])
    array = tensor.numpy()
    assert array.shape == tensor.shape
    assert (array == 3).all()
    assert np.asarray(tensor).flags.writeable


@pytest.mark.gpu
def test_a_cuda_array_finds_its_device_and_its_elements(torch: Any) -> None:
    source = torch.arange(6, dtype=torch.float32, device="cuda:0")

    tensor = Tensor.from_dlpack(CudaArray(source.data_ptr(), 6))
    assert (tensor.device, tensor.tolist()) == ("cuda:0", source.tolist())
    assert torch.as_tensor(tensor, device="cuda:0").data_ptr() == source.data_ptr()


@pytest.mark.gpu
def test_a_cuda_array_at_nobodys_address_is_refused() -> None:
    with pytest.raises(InputError, match="address 0x40: not CUDA's"):
        Tensor.from_dlpack(CudaArray(64))


@pytest.mark.gpu
def test_a_copy_to_the_host_is_the_consumers_own(torch: Any) -> None:
    source = torch.arange(6, dtype=torch.float32, device="cuda:0")
    managed = abi.take(Tensor.from_dlpack(source).__dlpack__(max_version=(1, 0), dl_device=(abi.CPU, 0)))
    assert (managed.tensor.device_type, managed.flags) == (abi.CPU, abi.IS_COPIED)
    assert list((ctypes.c_float * 6).from_address(managed.tensor.data)) == source.tolist()
    abi.release(managed)
