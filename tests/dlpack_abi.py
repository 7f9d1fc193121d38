"""DLPack's C structs in ctypes: capsules made and taken apart by hand, and producers that misbehave on purpose."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

CPU, CUDA = 1, 2
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


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
_api.PyCapsule_GetName.restype = c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]

USED_NAME = b"used_dltensor_versioned"


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
