"""Before frames: what a predictor is, what it says of itself, and what loading again does."""

from __future__ import annotations

import numpy as np
import pytest

from contract import MODEL, plan, predicted
from golden import GoldenDirectory
from models import bits, load
from overtone import (
    Binding,
    CheckpointError,
    CodePredictor,
    FramePlan,
    InputError,
    OvertoneError,
)


def test_what_it_is_comes_from_the_checkpoint(golden: GoldenDirectory) -> None:
    predictor = load(golden, max_batch=3)
    spec = predictor.spec
    assert (predictor.num_rvq_layers, predictor.codebook_size) == (spec.residual_codebooks, spec.codebook_size)
    assert (predictor.max_batch, predictor.executor) == (3, "cpu")
    table = predictor.codec_embed_table(spec.residual_codebooks - 1)
    assert table.shape == (spec.codebook_size, spec.talker_hidden_size)
    assert table.readonly


@pytest.mark.parametrize("layer", [-1, MODEL.residual_codebooks, 2**63 - 1])
def test_a_table_that_is_not_there_is_refused(predictor: CodePredictor, layer: int) -> None:
    with pytest.raises(InputError, match=f"layer: found {layer}, expected 0 to 2") as refused:
        predictor.codec_embed_table(layer)
    assert refused.value.key == "layer"


def test_the_tables_are_the_checkpoints() -> None:
    predictor = MODEL.load()
    for layer in range(MODEL.residual_codebooks):
        assert bits(predictor.codec_embed_table(layer)) == bits(MODEL.tensors[f"model.codec_embedding.{layer}.weight"])


def test_nothing_runs_before_preallocate() -> None:
    predictor = CodePredictor()
    for use in (
        lambda: predictor.num_rvq_layers,
        lambda: predictor.required_context_memory,
        lambda: predictor.set_context_memory(None),
        lambda: predictor.bind(Binding(1, 1, 1)),
        lambda: predictor.run_frame(plan(1)),
        predictor.capture_decode_graphs,
        predictor.stats,
    ):
        with pytest.raises(OvertoneError, match="call preallocate first"):
            use()


def test_a_preallocate_that_fails_leaves_the_predictor_as_it_was(
    predictor: CodePredictor, omni_tiny: GoldenDirectory
) -> None:
    before = predicted(predictor, 2)
    with pytest.raises(CheckpointError, match="no such directory"):
        predictor.preallocate(omni_tiny.path / "missing")
    np.testing.assert_array_equal(predicted(predictor, 2), before)


def test_preallocate_may_load_another_model(omni_tiny: GoldenDirectory, tts_tiny_projected: GoldenDirectory) -> None:
    predictor = load(omni_tiny)
    bound = predictor.bind_frame(FramePlan(3, omni_tiny.code_zero[0], omni_tiny.talker_last_hidden[0]))
    predictor.preallocate(tts_tiny_projected.path)
    assert predictor.spec.projected
    golden = tts_tiny_projected
    frame = predictor.run_frame(FramePlan(3, golden.code_zero[0], golden.talker_last_hidden[0]))
    np.testing.assert_array_equal(frame.codes, golden.expected("greedy", "codes")[0])
    np.testing.assert_array_equal(bound.launch().codes, omni_tiny.expected("greedy", "codes")[0])


def test_graphs_and_caches_need_nothing_and_change_nothing(predictor: CodePredictor) -> None:
    before = predicted(predictor, 3)
    assert predictor.capture_decode_graphs() is True
    predictor.reset_kv_cache(3)
    predictor.reset_kv_cache(5, stream=None)
    np.testing.assert_array_equal(predicted(predictor, 3), before)
    for wrong in (0, -1, 6, 2**62):
        with pytest.raises(InputError, match=f"batch_size: found {wrong} rows, expected 1 to 5"):
            predictor.reset_kv_cache(wrong)
