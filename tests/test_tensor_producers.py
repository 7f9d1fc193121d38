"""Tensors of other libraries, where they are installed."""

from __future__ import annotations

import pytest

from overtone import Tensor
from overtone.errors import InputError


def test_torch_shares_memory_both_ways() -> None:
    torch = pytest.importorskip("torch")
    source = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t()
    tensor = Tensor.from_dlpack(source)
    assert (tensor.dtype, tensor.shape, tensor.strides) == ("bfloat16", (3, 2), (1, 3))
    assert tensor.tolist() == source.tolist()
    back = torch.from_dlpack(tensor)
    assert back.data_ptr() == source.data_ptr()
    back[0, 0] = 7
    assert tensor.tolist()[0][0] == 7.0
    with pytest.raises(InputError, match=r"requires? grad"):
        Tensor.from_dlpack(torch.zeros(2, requires_grad=True))


def test_jax_reads_what_overtone_exports() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")
    array = jax.numpy.arange(6, dtype="float32").reshape(2, 3)
    tensor = Tensor.from_dlpack(array)
    assert tensor.tolist() == array.tolist()
    assert jax.numpy.from_dlpack(tensor).tolist() == array.tolist()


# Exceptions
