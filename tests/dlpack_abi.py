"""DLPack's C structs in ctypes: capsules made and taken apart by hand, and producers that misbehave on purpose."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4
READ_ONLY, IS_COPIED = 1, 2


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Legacy(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", DELETER)]


class Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", DELETER),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


EXPORT = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(c_void_p))
CURRENT_WORK_STREAM = ctypes.PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))


class ExchangeTable(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("older", c_void_p),
        ("allocate", c_void_p),
        ("export", c_void_p),
        ("import", c_void_p),
        ("describe", c_void_p),
        ("current_work_stream", c_void_p),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
_api.PyCapsule_GetName.restype = c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]

USED_NAME = b"used_dltensor_versioned"

_kept_for_the_process: list[object] = []
"""What consumers may call at any time, and so must not be collected."""


def name_of(capsule: object) -> str:
    return str(_api.PyCapsule_GetName(capsule), "ascii")


def take(capsule: object) -> Legacy | Versioned:
    """Consumes a capsule as a C consumer would; the caller calls :func:`release` when done."""
    name = _api.PyCapsule_GetName(capsule)
    kinds: dict[bytes, type[Legacy | Versioned]] = {b"dltensor": Legacy, b"dltensor_versioned": Versioned}
    kind = kinds[name]
    managed = kind.from_address(_api.PyCapsule_GetPointer(capsule, name))
    _api.PyCapsule_SetName(capsule, USED_NAME)
    return managed


def release(managed: Legacy | Versioned) -> None:
    managed.deleter(ctypes.addressof(managed))


class Producer:
    """A producer of the elements of a ctypes array that counts what is done to it.

    ``fields`` replaces fields of the ``DLTensor``, by the truth or by a lie.
    """

    def __init__(
        self,
        data: Any,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        versioned: bool = True,
        version: tuple[int, int] = (1, 1),
        flags: int = 0,
        name: bytes | None = None,
        device: tuple[int, int] = (CPU, 0),
        fields: dict[str, Any] | None = None,
    ) -> None:
        self.deleted = 0
        self.calls: list[dict[str, Any]] = []
        self.device = device
        self._data = data
        self._shape = (c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (c_int64 * len(strides))(*strides)
        told: dict[str, Any] = {
            "data": ctypes.addressof(data),
            "device_type": CPU,
            "ndim": len(shape),
            "code": FLOAT,
            "bits": 32,
            "lanes": 1,
            "shape": self._shape,
            "strides": self._strides,
        }
        tensor = Tensor(**(told | (fields or {})))
        self._deleter = DELETER(self._delete)
        if versioned:
            self.managed: Legacy | Versioned = Versioned(
                major=version[0], minor=version[1], deleter=self._deleter, flags=flags, tensor=tensor
            )
        else:
            self.managed = Legacy(tensor=tensor, deleter=self._deleter)
        self._name = name or (b"dltensor_versioned" if versioned else b"dltensor")
        _kept_for_the_process.append(self)

    def _delete(self, managed: int) -> None:
        assert managed == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **arguments: Any) -> object:
        self.calls.append(arguments)
        return _api.PyCapsule_New(ctypes.addressof(self.managed), self._name, None)


class LegacyProducer(Producer):
    """A producer from before ``max_version``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, versioned=False, **options)

    def __dlpack__(self) -> object:  # type: ignore[override]
        return super().__dlpack__()


class Exchange:
    """Makes types that have a C exchange table, as DLPack 1.3 lays it out, and remembers what the table is asked.

    ``failing`` exports by a C function that fails with whatever the object's ``__len__`` raises.
    """

    def __init__(self, *, version: tuple[int, int] = (1, 3), stream: int = 0, failing: bool = False) -> None:
        self.exports = 0
        self.devices: list[tuple[int, int]] = []
        self._stream = stream
        functions = EXPORT(self._export), CURRENT_WORK_STREAM(self._current_work_stream)
        export = ctypes.cast(_api.PyObject_Size if failing else functions[0], c_void_p)
        stream_of = ctypes.cast(functions[1], c_void_p)
        self.table = ExchangeTable(
            major=version[0], minor=version[1], export=export.value, current_work_stream=stream_of.value
        )
        # A table lives as long as the process, by DLPack's terms.
        _kept_for_the_process.append((self, functions))

    def _export(self, producer: Producer, out: Any) -> int:
        self.exports += 1
        out[0] = ctypes.addressof(producer.managed)
        return 0

    def _current_work_stream(self, kind: int, index: int, out: Any) -> int:
        self.devices.append((kind, index))
        out[0] = self._stream or None
        return 0

    def producers(self, **members: Any) -> type[Producer]:
        """A class of producers that have the table, and `members`."""
        capsule = _api.PyCapsule_New(ctypes.addressof(self.table), b"dlpack_exchange_api", None)
        return type("Library", (Producer,), {"__dlpack_c_exchange_api__": capsule, **members})
