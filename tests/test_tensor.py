"""Tensors across the boundary: shared, kept alive, released once, and refused with a clear word."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import dlpack_abi as abi
import overtone
from overtone import Tensor, errors
from overtone.errors import FrameError, InputError, OvertoneError

NUMPY_TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


VERSIONED_NUMPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy's `from_dlpack` knows DLPack 1.0: older ones make every array read-only, and take no bool."""


def floats(*values: float) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * len(values))(*values)


# Attributes


@pytest.mark.parametrize("dtype", [*NUMPY_TYPES, "bfloat16"])
def test_a_tensor_says_what_it_is(dtype: str) -> None:
    tensor = Tensor.zeros([2, 3], dtype)
    size = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    assert (tensor.shape, tensor.strides, tensor.ndim, len(tensor)) == ((2, 3), (3, 1), 2, 2)
    assert (tensor.dtype, tensor.device, tensor.nbytes, tensor.readonly) == (dtype, "cpu", 6 * size, False)
    assert repr(tensor) == f"overtone.Tensor(shape=[2, 3], dtype={dtype}, device=cpu)"
    assert tensor.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_tensor_without_dimensions_is_one_number() -> None:
    tensor = Tensor.zeros((), "float32")
    assert (tensor.shape, tensor.ndim, tensor.tolist(), tensor.numpy().shape) == ((), 0, 0.0, ())
    with pytest.raises(TypeError, match="without dimensions"):
        len(tensor)


def test_a_tensor_without_elements_crosses_both_ways() -> None:
    tensor = Tensor.zeros((2, 0, 3))
    assert tensor.tolist() == [[], []]
    assert np.from_dlpack(tensor).shape == tensor.numpy().shape == (2, 0, 3)
    assert Tensor.from_dlpack(np.zeros((0, 4), "int32")).shape == (0, 4)
    producer = abi.Producer(floats(), (0, 3), (3, 1), fields={"data": None})
    assert Tensor.from_dlpack(producer).tolist() == []


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(InputError, match="complex64") as refused:
        Tensor.zeros([1], "complex64")
    assert (refused.value.key, refused.value.found) == ("dtype", "complex64")


def test_sizes_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        Tensor.zeros([2**40, 2**40])
    with pytest.raises(OverflowError):
        Tensor.zeros([-1])


# NumPy, both ways


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_shares_memory_both_ways(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = Tensor.from_dlpack(array)
    assert tensor.dtype == dtype
    assert tensor.tolist() == array.tolist()
    assert [type(value) for value in tensor.tolist()[0]] == [type(value) for value in array.tolist()[0]]
    for back in (tensor.numpy(), np.asarray(tensor), *([np.from_dlpack(tensor)] if VERSIONED_NUMPY else [])):
        assert back.dtype == array.dtype
        assert back.flags.writeable
        assert np.shares_memory(back, array)
        back[1, 2] = 1 - int(array[1, 2] != 0)
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[::-1, ::-2],
        lambda array: array.T,
        lambda array: array[1:2, 1:],
        lambda array: array[..., None, 3],
        lambda array: np.broadcast_to(array[0], (3, 4)),
        lambda array: array[0, 0],
    ],
)
def test_strides_of_any_sign_are_kept(view) -> None:
    array = view(np.arange(12, dtype="float32").reshape(3, 4))
    tensor = Tensor.from_dlpack(array)
    assert tensor.tolist() == array.tolist()
    assert tensor.shape == array.shape
    back = tensor.numpy()
    np.testing.assert_array_equal(back, array)
    steps = zip(back.strides, array.strides, array.shape, strict=True)
    assert all(back_step == step for back_step, step, extent in steps if extent > 1)
    if VERSIONED_NUMPY or not tensor.readonly:
        np.testing.assert_array_equal(np.from_dlpack(tensor), array)


def test_readonly_arrays_stay_readonly() -> None:
    array = np.arange(3, dtype="float32")
    array.flags.writeable = False
    tensor = Tensor.from_dlpack(array)
    assert tensor.readonly
    assert "readonly" in repr(tensor)
    assert not tensor.numpy().flags.writeable
    assert not VERSIONED_NUMPY or not np.from_dlpack(tensor).flags.writeable
    assert Tensor.from_dlpack(tensor).readonly


def test_unaligned_arrays_are_read() -> None:
    raw = np.zeros(13, "uint8")
    array = raw[1:].view("float32")
    array[:] = [1.5, 2.5, 3.5]
    assert not array.flags.aligned
    assert Tensor.from_dlpack(array).tolist() == [1.5, 2.5, 3.5]


def test_array_converts_and_copies_as_numpy_asks() -> None:
    tensor = Tensor.from_dlpack(np.arange(4, dtype="int32"))
    assert tensor.__array__("float64").dtype == np.float64
    assert np.shares_memory(tensor.__array__("int32", copy=False), tensor.numpy())
    assert not np.shares_memory(tensor.__array__(copy=True), tensor.numpy())
    with pytest.raises(ValueError, match="without a copy"):
        tensor.__array__("float64", copy=False)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"), "byte-swapped"),
        (np.zeros(3, "complex64"), "elements of type complex64"),
        (np.zeros(3, "O"), "elements of type object"),
        (np.zeros(3, "U2"), "elements of type str64"),
        (np.zeros(3, [("a", "u1"), ("b", "f4")])["b"], "elements 5 bytes apart"),
    ],
)
def test_arrays_that_cannot_be_shared_are_refused(array: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Tensor.from_dlpack(array)
    assert refused.value.tensor == "tensor"


@pytest.mark.parametrize("value", [None, 3, 1.5, "text", b"bytes", [1, 2], {"a": 1}, object()])
def test_what_is_no_tensor_is_named(value: object) -> None:
    with pytest.raises(InputError, match=f"tensor: {type(value).__name__}, expected a tensor"):
        Tensor.from_dlpack(value)


@pytest.mark.parametrize(
    "interface",
    [
        {},
        None,
        {"typestr": 3, "shape": (1,), "data": (0, False), "version": 3},
        {"typestr": "<f4", "shape": "11", "data": (64, False), "version": 3},
        {"typestr": "<f4", "shape": (1,), "data": b"1234", "version": 3},
        {"typestr": "<f4", "shape": (1,), "data": (-1, False), "version": 3},
        {"typestr": "<f4", "shape": (1,), "data": (0, False), "version": 3},
        {"typestr": "<f4", "shape": (-1,), "data": (64, False), "version": 3},
        {"typestr": "<f4", "shape": (2**62, 2**62), "data": (64, False), "version": 3},
        {"typestr": "<f4", "shape": (2,), "strides": (2**63 - 4,), "data": (64, False), "version": 3},
        {"typestr": "<f4", "shape": (2, 2), "strides": (4,), "data": (64, False), "version": 3},
        {"typestr": "<f4", "shape": (1,) * 65, "data": (64, False), "version": 3},
    ],
)
def test_malformed_array_interfaces_are_refused(interface: object) -> None:
    class Producer:
        __array_interface__ = interface

    with pytest.raises(InputError, match="tensor: "):
        Tensor.from_dlpack(Producer())


# bfloat16


def test_bfloat16_becomes_float32_in_numpy() -> None:
    bits = (ctypes.c_uint16 * 4)(0x3F80, 0xC000, 0x3F80, 0x7F80)  # 1, -2, 1, infinity
    producer = abi.Producer(bits, (2, 2), (2, 1), fields={"code": abi.BFLOAT, "bits": 16})
    tensor = Tensor.from_dlpack(producer)
    assert (tensor.dtype, tensor.nbytes) == ("bfloat16", 8)
    expected = [[1.0, -2.0], [1.0, float("inf")]]
    assert tensor.tolist() == expected
    for array in (tensor.numpy(), np.asarray(tensor), np.array(tensor)):
        assert (array.dtype, array.tolist()) == (np.dtype("float32"), expected)
    assert np.asarray(tensor, "float64").tolist() == expected
    with pytest.raises(ValueError, match="without a copy"):
        tensor.__array__(copy=False)
    assert Tensor.zeros((), "bfloat16").numpy().tolist() == 0.0


def test_ml_dtypes_bfloat16_is_understood() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    tensor = Tensor.from_dlpack(array[:, ::-1])
    assert (tensor.dtype, tensor.strides) == ("bfloat16", (3, -1))
    assert tensor.tolist() == [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
    with pytest.raises(InputError, match="float8_e4m3fn"):
        Tensor.from_dlpack(array.astype(ml_dtypes.float8_e4m3fn))


# Lifetimes


def test_exports_outlive_the_tensor() -> None:
    tensor = Tensor.zeros([4], "int32")
    shared = np.from_dlpack(tensor)
    interface = tensor.numpy()
    gone = weakref.ref(tensor)
    interface[2] = 5
    del tensor, interface
    gc.collect()
    assert gone() is None
    assert shared.tolist() == [0, 0, 5, 0]


def test_an_imported_array_lives_as_long_as_its_last_view() -> None:
    class Array(np.ndarray):
        """Can be weakly referenced."""

    array = np.arange(4, dtype="float32").view(Array)
    gone = weakref.ref(array)
    tensor = Tensor.from_dlpack(array)
    shared = np.from_dlpack(tensor)
    del array, tensor
    gc.collect()
    assert gone() is not None
    assert shared.tolist() == [0, 1, 2, 3]
    del shared
    # NumPy's call of the deleter does not say whether it holds the GIL, so the array goes with the next call.
    Tensor.zeros([1])
    assert gone() is None


@pytest.mark.parametrize("kind", [abi.Producer, abi.LegacyProducer])
def test_the_deleter_is_called_once_after_the_last_use(kind: type[abi.Producer]) -> None:
    producer = kind(floats(1, 2, 3, 4), (2, 2), (1, 2))
    tensor = Tensor.from_dlpack(producer)
    assert tensor.tolist() == [[1, 3], [2, 4]]
    shared = tensor.numpy()
    again = Tensor.from_dlpack(tensor)
    capsule = tensor.__dlpack__()
    del tensor
    assert producer.deleted == 0
    del capsule, again
    assert producer.deleted == 0
    del shared
    assert producer.deleted == 1


def test_a_producer_without_a_deleter_is_served() -> None:
    producer = abi.Producer(floats(1, 2), (2,), (1,))
    producer.managed.deleter = abi.DELETER()
    assert Tensor.from_dlpack(producer).tolist() == [1, 2]


def test_a_capsule_that_nobody_consumes_frees_its_tensor() -> None:
    array = np.zeros(1)
    before = sys.getrefcount(array)
    Tensor.from_dlpack(array).__dlpack__()
    assert sys.getrefcount(array) == before
    for max_version in (None, (1, 0)):
        producer = abi.Producer(floats(1), (1,), (1,))
        capsule = Tensor.from_dlpack(producer).__dlpack__(max_version=max_version)
        assert producer.deleted == 0
        del capsule
        assert producer.deleted == 1


def test_a_consumed_capsule_leaves_the_memory_to_its_consumer() -> None:
    producer = abi.Producer(floats(1), (1,), (1,))
    capsule = Tensor.from_dlpack(producer).__dlpack__(max_version=(1, 0))
    managed = abi.take(capsule)
    del capsule
    assert producer.deleted == 0
    abi.release(managed)
    assert producer.deleted == 1


def test_a_consumer_may_release_on_any_thread() -> None:
    producer = abi.Producer(floats(1), (1,), (1,))
    managed = abi.take(Tensor.from_dlpack(producer).__dlpack__())
    # ctypes releases the GIL around the call of the deleter.
    other = threading.Thread(target=abi.release, args=(managed,))
    other.start()
    other.join()
    assert producer.deleted == 1


def test_nothing_leaks_when_tensors_cross_many_times() -> None:
    array = np.zeros(4, "float32")
    before = sys.getrefcount(array)
    for _ in range(1000):
        tensor = Tensor.from_dlpack(array)
        np.from_dlpack(tensor)
        tensor.numpy()
        tensor.__dlpack__()
    del tensor
    gc.collect()
    assert sys.getrefcount(array) == before


# What capsules say


def test_a_legacy_capsule_describes_the_tensor() -> None:
    tensor = Tensor.from_dlpack(np.arange(6, dtype="int64").reshape(2, 3)[:, ::-1])
    capsule = tensor.__dlpack__()
    assert abi.name_of(capsule) == "dltensor"
    managed = abi.take(capsule)
    described = managed.tensor
    assert described.data + described.byte_offset == tensor.__array_interface__["data"][0]
    assert (described.device_type, described.device_id) == tensor.__dlpack_device__() == (abi.CPU, 0)
    assert (described.code, described.bits, described.lanes) == (abi.INT, 64, 1)
    assert (described.shape[: described.ndim], described.strides[: described.ndim]) == ([2, 3], [3, -1])
    abi.release(managed)


def test_a_versioned_capsule_carries_version_and_flags() -> None:
    array = np.arange(3, dtype="float32")
    array.flags.writeable = False
    for source, flags in ((array.copy(), 0), (array, abi.READ_ONLY)):
        capsule = Tensor.from_dlpack(source).__dlpack__(max_version=(1, 0))
        assert abi.name_of(capsule) == "dltensor_versioned"
        managed = abi.take(capsule)
        assert (managed.major, managed.flags, managed.tensor.strides[:1]) == (1, flags, [1])
        abi.release(managed)


def test_consumers_from_before_1_0_get_the_legacy_form() -> None:
    tensor = Tensor.zeros([1])
    assert abi.name_of(tensor.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert abi.name_of(tensor.__dlpack__(max_version=(2, 0))) == "dltensor_versioned"


def test_a_readonly_tensor_needs_the_versioned_form_or_a_copy() -> None:
    array = np.arange(3, dtype="float32")
    array.flags.writeable = False
    tensor = Tensor.from_dlpack(array)
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert abi.name_of(tensor.__dlpack__(copy=True)) == "dltensor"


def test_a_copy_is_fresh_writable_and_says_so() -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)[::-1]
    array.flags.writeable = False
    tensor = Tensor.from_dlpack(array)
    managed = abi.take(tensor.__dlpack__(max_version=(1, 1), copy=True))
    assert managed.flags == abi.IS_COPIED
    assert managed.tensor.strides[:2] == [3, 1]
    values = (ctypes.c_float * 6).from_address(managed.tensor.data)
    assert list(values) == [3, 4, 5, 0, 1, 2]
    values[0] = 9
    assert array[0, 0] == 3
    abi.release(managed)


def test_requests_that_a_cpu_tensor_cannot_meet_are_refused() -> None:
    tensor = Tensor.zeros([1])
    assert tensor.__dlpack__(dl_device=(abi.CPU, 0), copy=False)
    with pytest.raises(BufferError, match="cuda:0"):
        tensor.__dlpack__(dl_device=(abi.CUDA, 0))
    with pytest.raises(BufferError, match="stream"):
        tensor.__dlpack__(stream=1)


# Producers


def test_the_versioned_form_is_asked_for_first() -> None:
    producer = abi.Producer(floats(1), (1,), (1,))
    Tensor.from_dlpack(producer)
    assert producer.calls == [{"max_version": (1, 1)}]


def test_a_producer_flag_makes_the_tensor_readonly() -> None:
    producer = abi.Producer(floats(1, 2), (2,), (1,), flags=abi.READ_ONLY)
    tensor = Tensor.from_dlpack(producer)
    assert tensor.readonly
    assert not tensor.numpy().flags.writeable


def test_missing_strides_mean_contiguous() -> None:
    producer = abi.LegacyProducer(floats(1, 2, 3, 4, 5, 6), (2, 3))
    tensor = Tensor.from_dlpack(producer)
    assert (tensor.strides, tensor.tolist()) == ((3, 1), [[1, 2, 3], [4, 5, 6]])


def test_the_byte_offset_is_added() -> None:
    producer = abi.Producer(floats(1, 2, 3), (2,), (1,), fields={"byte_offset": 4})
    assert Tensor.from_dlpack(producer).tolist() == [2, 3]


@pytest.mark.parametrize(("device", "name"), [((8, 0), "metal:0"), ((77, 5), "DLPack device type 77:5")])
def test_other_devices_are_named_and_never_exported(device: tuple[int, int], name: str) -> None:
    producer = abi.Producer(floats(1), (1,), (1,), device=device)
    with pytest.raises(InputError, match=f"tensor: on {name}, expected a tensor in host or CUDA memory") as refused:
        Tensor.from_dlpack(producer)
    assert refused.value.found == f"on {name}"
    assert producer.calls == []


@pytest.mark.parametrize("kind", [abi.Producer, abi.LegacyProducer])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device_type": abi.CUDA}, "a capsule on cuda:0, expected one on cpu"),
        ({"device_type": 8}, "on metal:0"),
        ({"ndim": -1}, "-1 dimensions"),
        ({"ndim": 1 << 30}, "dimensions, expected 0 to 64"),
        ({"shape": None}, "1 dimensions without a shape"),
        ({"data": None}, "null data pointer"),
        ({"lanes": 4}, "code 2 with 32 bits . 4 lanes"),
        ({"lanes": 0}, "lanes"),
        ({"bits": 7}, "7 bits"),
        ({"code": 5}, "code 5"),
        ({"byte_offset": 2**64 - 1}, "byte offset"),
        ({"shape": (ctypes.c_int64 * 1)(-1)}, "negative"),
        ({"shape": (ctypes.c_int64 * 1)(2**62)}, "more memory than there are addresses"),
        ({"strides": (ctypes.c_int64 * 1)(2**62)}, "more memory than there are addresses"),
    ],
)
def test_a_lying_capsule_is_refused_and_released(
    kind: type[abi.Producer], fields: dict[str, Any], message: str
) -> None:
    producer = kind(floats(1, 2), (2,), (1,), fields=fields)
    with pytest.raises(InputError, match=message):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 1


def test_an_unknown_major_version_is_refused_and_released() -> None:
    producer = abi.Producer(floats(1), (1,), (1,), version=(2, 0))
    with pytest.raises(InputError, match=r"DLPack 2\.0, expected version 1"):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 1


@pytest.mark.parametrize("name", [b"dltensor_v2", b"used_dltensor", b"used_dltensor_versioned", b"DLTENSOR"])
def test_a_capsule_of_another_name_is_left_alone(name: bytes) -> None:
    producer = abi.Producer(floats(1), (1,), (1,), name=name)
    with pytest.raises(InputError, match="unusable capsule"):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 0


def test_a_capsule_is_taken_only_once() -> None:
    class Twice(abi.Producer):
        capsule: object = None

        def __dlpack__(self, **arguments: object) -> object:
            self.capsule = self.capsule or super().__dlpack__(**arguments)
            return self.capsule

    producer = Twice(floats(1), (1,), (1,))
    first = Tensor.from_dlpack(producer)
    assert abi.name_of(producer.capsule) == "used_dltensor_versioned"
    with pytest.raises(InputError, match="nobody has consumed"):
        Tensor.from_dlpack(producer)
    del first
    assert producer.deleted == 1


class Faulty:
    """A producer each of whose methods may be replaced."""

    def __init__(self, device: object = (abi.CPU, 0), capsule: object = None) -> None:
        self._device, self._capsule = device, capsule

    @staticmethod
    def _answer(value: object) -> object:
        if isinstance(value, BaseException):
            raise value
        return value

    def __dlpack_device__(self) -> object:
        return self._answer(self._device)

    def __dlpack__(self, **arguments: object) -> object:
        return self._answer(self._capsule)


@pytest.mark.parametrize(
    ("producer", "message", "cause"),
    [
        (Faulty(device=RuntimeError("lost")), "__dlpack_device__ failed: RuntimeError: lost", RuntimeError),
        (Faulty(device="cpu"), "__dlpack_device__ failed", (TypeError, ValueError)),
        (Faulty(device=(1,)), "__dlpack_device__ failed", (TypeError, ValueError)),
        (Faulty(device=(2**40, 0)), "__dlpack_device__ failed", OverflowError),
        (Faulty(capsule=BufferError("requires grad")), "__dlpack__ failed: BufferError: requires grad", BufferError),
        (Faulty(capsule=TypeError("twice")), "__dlpack__ failed: TypeError: twice", TypeError),
        (Faulty(capsule=None), "no capsule from __dlpack__", type(None)),
        (Faulty(capsule="capsule"), "no capsule from __dlpack__", type(None)),
    ],
)
def test_a_producer_that_fails_is_the_cause(producer: Faulty, message: str, cause: type) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Tensor.from_dlpack(producer)
    assert isinstance(refused.value.__cause__, cause)


def test_an_attribute_that_raises_is_the_cause() -> None:
    class Producer:
        @property
        def __array_interface__(self) -> object:
            raise RuntimeError("not now")

    with pytest.raises(InputError, match="reading __array_interface__: RuntimeError: not now"):
        Tensor.from_dlpack(Producer())


def test_ctrl_c_in_a_producer_is_not_an_input_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        Tensor.from_dlpack(Faulty(capsule=KeyboardInterrupt()))


# Other libraries


def test_every_exception_is_an_overtone_error_and_bad_values_are_value_errors() -> None:
    classes = {name: getattr(errors, name) for name in errors.__all__}
    assert all(issubclass(kind, OvertoneError) and kind.__doc__ for kind in classes.values())
    value_errors = {name for name, kind in classes.items() if issubclass(kind, ValueError)}
    assert value_errors == {"ConfigError", "CheckpointError", "BindingError", "InputError"}


def test_exceptions_survive_pickling_with_their_attributes() -> None:
    error = InputError("codes: wrong", tensor="codes", found="[2]", expected="[3]")
    frame = FrameError("row 1 failed", rows=[1], statuses=(-1,))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(again), again.tensor, again.found, again.expected) == ("codes: wrong", "codes", "[2]", "[3]")
        assert again.file is again.key is None
    again = pickle.loads(pickle.dumps(frame))
    assert (str(again), again.rows, again.statuses) == ("row 1 failed", (1,), (-1,))


def test_tensor_is_public() -> None:
    assert overtone.Tensor is Tensor
    assert Tensor.__module__ == "overtone"


def test_a_tensor_goes_to_where_it_is_by_staying_there() -> None:
    tensor = Tensor.zeros([2, 3], "bfloat16", "cpu")
    assert tensor.to("cpu") is tensor
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", ""):
        with pytest.raises(InputError, match="expected cpu, or a CUDA device such as cuda:0"):
            tensor.to(name)
        with pytest.raises(InputError, match="expected cpu, or a CUDA device such as cuda:0"):
            Tensor.zeros([1], "int32", name)


def test_elements_are_overwritten_by_those_of_the_same_type_and_shape() -> None:
    tensor = Tensor.zeros([2, 3], "int64")
    earlier = tensor.numpy()
    columns = np.arange(12, dtype=np.int64).reshape(2, 6)[:, ::2]
    tensor.copy_from(columns)
    np.testing.assert_array_equal(earlier, columns)
    tensor.copy_from(tensor)
    np.testing.assert_array_equal(earlier, columns)
    for wrong, found in ((columns.astype(np.int32), r"int32 \[2, 3\]"), (columns[:1], r"int64 \[1, 3\]")):
        with pytest.raises(InputError, match=rf"source: {found}, expected int64 \[2, 3\]"):
            tensor.copy_from(wrong)
    with pytest.raises(InputError, match="read-only or strided"):
        Tensor.from_dlpack(earlier[:, ::2]).copy_from(columns[:, ::2])
