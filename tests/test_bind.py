"""A talker's own tensors: checked once against the artifacts, borrowed, kept alive, and written where they must be."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from contract import CODES, MODEL, WIDTH, binding, plan, predicted
from models import bits, row_bits
from overtone import (
    BindingError,
    CodePredictor,
    InputError,
)


@pytest.mark.parametrize(
    ("changes", "message", "at_fault"),
    [
        ({"talker_hidden_size": 33}, "talker_hidden_size: found 33, expected 32", "talker_hidden_size"),
        ({"num_codes_per_frame": 3}, "num_codes_per_frame: found 3, expected 4", "num_codes_per_frame"),
        ({"max_batch_size": 0}, "max_batch_size: found 0, expected 1 to 5", "max_batch_size"),
        ({"max_batch_size": 6}, "max_batch_size: found 6, expected 1 to 5", "max_batch_size"),
        (
            {"code_zero_embed_table": np.zeros((50, 31), "f4")},
            "code_zero_embed_table: shape [50, 31], expected [50 or more, 32]",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((40, 32), "f4")},
            "code_zero_embed_table: shape [40, 32], expected [50 or more, 32]",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((50, 32))},
            "code_zero_embed_table: type float64, expected float32, float16 or bfloat16",
            "code_zero_embed_table",
        ),
        (
            {"code_zero_embed_table": np.zeros((32, 50), "f4").T},
            "code_zero_embed_table: a strided tensor, expected a contiguous one",
            "code_zero_embed_table",
        ),
        (
            {"codec_hiddens": np.zeros((3, CODES, WIDTH), "f4")},
            "codec_hiddens: shape [3, 4, 32], expected [4, 4, 32]",
            "codec_hiddens",
        ),
        (
            {"codec_hiddens": np.zeros((4, CODES, WIDTH), "f2")},
            "codec_hiddens: float16, expected float32, the codec tables' type",
            "codec_hiddens",
        ),
        (
            {"codec_hiddens": np.broadcast_to(np.zeros(WIDTH, "f4"), (4, CODES, WIDTH))},
            "codec_hiddens: a read-only tensor, expected a writable one",
            "codec_hiddens",
        ),
    ],
)
def test_a_binding_that_does_not_fit_is_refused_and_binds_nothing(
    predictor: CodePredictor, changes: dict[str, Any], message: str, at_fault: str
) -> None:
    good = np.zeros((4, CODES, WIDTH), "f4")
    before = predicted(predictor, 2)
    with pytest.raises(BindingError) as refused:
        predictor.bind(binding(**({"codec_hiddens": good} | changes)))
    assert str(refused.value) == message
    assert at_fault in (refused.value.key, refused.value.tensor)
    assert refused.value.found
    assert refused.value.expected
    np.testing.assert_array_equal(predictor.run_frame(plan(2)).codes, before)
    assert not good.any()


def test_something_that_is_no_tensor_is_not_bound(predictor: CodePredictor) -> None:
    with pytest.raises(InputError, match="codec_hiddens: list, expected a tensor"):
        predictor.bind(binding(codec_hiddens=[[0.0]]))
    with pytest.raises(InputError, match=r"max_batch_size: found 2\.5, expected a whole number"):
        predictor.bind(binding(max_batch_size=2.5))
    with pytest.raises(InputError, match="talker_hidden_size: found '32', expected a whole number"):
        predictor.bind(binding(talker_hidden_size="32"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_bound_table_embeds_code_zero(dtype: str) -> None:
    table = MODEL.tensors["talker.model.codec_embedding.weight"].astype(dtype)
    lone = {name: tensor for name, tensor in MODEL.tensors.items() if not name.startswith("talker.")}
    predictor = CodePredictor.from_tensors(MODEL.config, lone)
    with pytest.raises(BindingError, match="no talker's codec table"):
        predictor.run_frame(plan(2))
    predictor.bind(binding(code_zero_embed_table=table))
    widened = {**lone, "talker.model.codec_embedding.weight": table.astype("float32")}
    expected = CodePredictor.from_tensors(MODEL.config, widened).predict_frame(*MODEL.inputs(2))
    for frame in (predictor.run_frame(plan(2)), predictor.predict_frame(*MODEL.inputs(2))):
        assert bits(frame.codes) == bits(expected.codes)
        assert bits(frame.codec_sum) == bits(expected.codec_sum)


def test_a_bound_table_is_borrowed_not_copied_and_kept_alive(predictor: CodePredictor) -> None:
    class Watched(np.ndarray):
        pass

    table = MODEL.tensors["talker.model.codec_embedding.weight"].copy().view(Watched)
    gone = weakref.ref(table)
    predictor.bind(binding(code_zero_embed_table=table))
    before = predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist()
    table *= 2
    assert predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist() != before
    del table
    gc.collect()
    assert gone() is not None
    predictor.bind(binding())
    gc.collect()
    assert gone() is None


def test_binding_again_without_a_table_takes_the_checkpoints_again(predictor: CodePredictor) -> None:
    before = row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0)
    predictor.bind(binding(code_zero_embed_table=np.ones((60, WIDTH), "f4")))
    assert row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0) != before
    predictor.bind(binding())
    assert row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0) == before


def test_bound_embeddings_are_written_and_the_talkers_rows_are_not(predictor: CodePredictor) -> None:
    hiddens = np.full((4, CODES, WIDTH), 123.0, "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    frame = predictor.run_frame(plan(3))
    assert np.shares_memory(frame.codec_hiddens.numpy(), hiddens)
    for row in range(3):
        for codebook in range(1, MODEL.residual_codebooks):
            table = MODEL.tensors[f"model.codec_embedding.{codebook - 1}.weight"]
            assert bits(hiddens[row, codebook]) == bits(table[frame.codes.tolist()[row][codebook]])
    assert (hiddens[:3, [0, MODEL.residual_codebooks]] == 123).all()
    assert (hiddens[3] == 123).all()


def test_bound_embeddings_may_be_a_view_of_the_talkers_own(predictor: CodePredictor) -> None:
    around = np.full((8, CODES + 2, 2 * WIDTH), 5.0, "f4")
    view = around[::2, 1:-1, 1::2]
    predictor.bind(binding(codec_hiddens=view))
    predictor.run_frame(plan(4))
    own = MODEL.load().predict_frame(*MODEL.inputs(4)).codec_hiddens.numpy()
    assert bits(view[:, 1:-1]) == bits(own[:, 1:-1])
    around[::2, 1:-1, 1::2][:, 1:-1] = 5
    assert (around == 5).all()


def test_more_rows_than_bound_embeddings_have_are_refused(predictor: CodePredictor) -> None:
    predictor.bind(binding(codec_hiddens=np.zeros((4, CODES, WIDTH), "f4")))
    with pytest.raises(InputError, match=r"codec_hiddens: shape \[4, 4, 32\], expected \[5 or more, 4, 32\]"):
        predictor.run_frame(plan(5))
