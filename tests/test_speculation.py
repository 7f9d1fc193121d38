"""Speculation: the same bits as the plain loop, what is said and counted, and what is refused."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import CommandLine, assert_refused
from frame_cases import Ways, differing, frame_cases, host_words
from golden import GoldenDirectory
from models import RandomModel, bits, load, row_bits, sampling_rows
from overtone import (
    Binding,
    FramePlan,
    InputError,
    ModelSpec,
    SamplingParams,
    SpecParams,
    Tensor,
    estimate_memory,
)

MODEL = RandomModel(residual_codebooks=9, codebook_size=8)
"""A model of codebooks so small that drafts are often right."""
SAMPLING = [SamplingParams.greedy(), *(SamplingParams(0.9, 5, 0.9, seed) for seed in range(4))]
NEVER_OFF = SpecParams(off_below=0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "overtone"]


@pytest.mark.parametrize("draft", ["chain", "siblings"])
@pytest.mark.parametrize("window", [2, 5, 8])
def test_frames_are_those_of_the_plain_loop(golden: GoldenDirectory, window: int, draft: Any) -> None:
    plain = load(golden)
    params = SpecParams(draft=draft, p_min=0.001, off_below=0)
    rounds = load(golden, spec_verify_size=window, spec_params=params)
    assert rounds.stats()["speculating"] is True
    rows = sampling_rows(golden, "mixed")
    for index in range(3):
        arguments: Any = (golden.talker_last_hidden[index], golden.code_zero[index])
        options: Any = {"sampling": rows, "frame_idx": index, "logits": True}
        expected, found = (each.predict_frame(*arguments, **options) for each in (plain, rounds))
        assert [row_bits(found, row) for row in range(3)] == [row_bits(expected, row) for row in range(3)]
    stats = rounds.stats()
    assert stats["spec_codes"] == 3 * 3 * (plain.num_rvq_layers - 1)
    assert stats["spec_codes"] == stats["spec_rounds"] + stats["spec_accepted"]


@pytest.mark.parametrize("draft", ["chain", "siblings"])
@pytest.mark.parametrize("window", [2, 3, 8])
def test_frames_of_every_kind_are_those_of_the_plain_loop(window: int, draft: Any) -> None:
    params = SpecParams(draft=draft, off_below=0)
    plain, rounds = (
        Ways(MODEL.load(executor="cpu", spec_verify_size=size, spec_params=params), np.copy) for size in (0, window)
    )
    cases = frame_cases(MODEL.hidden_size, MODEL.code_zero_size, (1, 2, 3, 5, 8), 200, seed=window)
    for number, case in enumerate(cases):
        for way in (Ways.call, Ways.launch):
            rows = slice(None) if way is Ways.call else case.active
            assert differing(way(rounds, case), way(plain, case), host_words, rows) == {}, (number, way.__name__)
    stats = rounds.predictor.stats()
    assert stats["spec_codes"] == stats["spec_rounds"] + stats["spec_accepted"]
    assert 0 < stats["spec_accepted"] < stats["spec_drafted"]


def test_a_difference_is_told_by_output_and_row() -> None:
    ways = Ways(MODEL.load(executor="cpu"), np.copy)
    (case,) = frame_cases(MODEL.hidden_size, MODEL.code_zero_size, (3,), 1, seed=0)
    frames = [ways.call(case)]
    case.talker_last_hidden[1] = 2
    frames.append(ways.call(case))
    assert differing(frames[1], frames[0], host_words, [0, 2]) == {}
    assert differing(frames[1], frames[0], host_words)["logits"] == [1]


def test_a_failing_row_fails_as_in_the_plain_loop() -> None:
    hidden, code_zero = MODEL.inputs(5)
    hidden[1] = np.nan
    code_zero[3] = 10_000
    frames = [
        MODEL.load(spec_verify_size=window, spec_params=NEVER_OFF).predict_frame(
            hidden, code_zero, sampling=SAMPLING, frame_idx=3, logits=True
        )
        for window in (0, 4)
    ]
    assert frames[1].status.tolist() == [0, 1, 0, -1, 0]
    assert [row_bits(frames[0], row) for row in range(5)] == [row_bits(frames[1], row) for row in range(5)]


def test_a_talkers_loop_speculates_too() -> None:
    plain, rounds = (
        MODEL.load(spec_verify_size=window, spec_params=SpecParams(draft="chain", off_below=0)) for window in (0, 4)
    )
    hidden, code_zero = MODEL.inputs(5)
    memory = np.full(rounds.required_context_memory, 0xFF, np.uint8)
    assert memory.size > plain.required_context_memory
    assert rounds.set_context_memory(memory)
    codes = []
    for predictor in (plain, rounds):
        hiddens = np.zeros((5, MODEL.residual_codebooks + 1, MODEL.hidden_size), np.float32)
        predictor.bind(Binding(MODEL.hidden_size, MODEL.residual_codebooks + 1, 5, codec_hiddens=hiddens))
        plan = FramePlan(
            5,
            code_zero,
            hidden,
            SAMPLING,
            Tensor.zeros([1], "int64"),
            np.array([1, 0, 1, 1, 0]),
            advance_frame_idx=True,
        )
        bound = predictor.bind_frame(plan)
        codes.append([(bits(bound.launch().codes), bits(hiddens)) for _ in range(4)])
    assert codes[0] == codes[1]
    # Counters stay with the row's slot, whatever rows take part.
    assert [frames for frames, *_ in rounds._loaded.spec_counters()] == [4, 0, 4, 4, 0, 0, 0, 0]


def test_stats_are_logged_and_reset(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "overtone")
    predictor = MODEL.load(executor="cpu", max_batch=3, spec_verify_size=3, spec_params=NEVER_OFF)
    predictor.log_and_reset_spec_stats()
    assert lines(caplog) == []
    for index in range(5):
        predictor.predict_frame(*MODEL.inputs(2, index))
    predictor.log_and_reset_spec_stats()
    stats = predictor.stats()
    found = lines(caplog)
    assert [line.split(":")[0] for line in found] == [
        "speculation, row 0",
        "speculation, row 1",
        "speculation, all rows",
    ]
    share = stats["spec_accepted"] / stats["spec_drafted"]
    assert found[2] == (
        f"speculation, all rows: 10 frames, {stats['spec_rounds'] / 10:.2f} rounds per frame, "
        f"{stats['spec_codes'] / stats['spec_rounds']:.2f} codes per round, {stats['spec_drafted']} drafts verified, "
        f"{share:.1%} accepted"
    )
    caplog.clear()
    predictor.log_and_reset_spec_stats()
    assert lines(caplog) == []
    predictor.predict_frame(*MODEL.inputs(1))
    predictor.log_and_reset_spec_stats()
    assert [line.split(",")[:2] for line in lines(caplog)] == [
        ["speculation", " row 0: 1 frames"],
        ["speculation", " all rows: 1 frames"],
    ]


def test_speculation_that_does_not_pay_ends_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "overtone")
    plain = MODEL.load(executor="cpu")
    params = SpecParams(draft="chain", off_below=2.5)
    predictor = MODEL.load(executor="cpu", spec_verify_size=2, spec_params=params)
    frames = 0
    while predictor.stats()["speculating"]:
        frames += 1
        inputs = MODEL.inputs(5, frames)
        assert bits(predictor.predict_frame(*inputs).codes) == bits(plain.predict_frame(*inputs).codes)
        assert frames < 60, "256 rounds are over"
    assert predictor.stats()["spec_rounds"] >= 256
    for index in range(3):
        inputs = MODEL.inputs(5, index)
        assert bits(predictor.predict_frame(*inputs).codes) == bits(plain.predict_frame(*inputs).codes)
    (line,) = lines(caplog)
    assert line.startswith("speculation is switched off: 1.")
    assert line.endswith(
        "codes per round are fewer than the 2.50 at which it pays; frames run step by step, with the same codes"
    )
    caplog.clear()
    predictor.log_and_reset_spec_stats()
    assert lines(caplog)[-1].endswith("accepted; switched off since")


def test_a_size_that_cannot_be_honoured_leaves_the_plain_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "overtone")
    inputs = MODEL.inputs(2)
    expected = bits(MODEL.load(executor="cpu").predict_frame(*inputs).codes)
    for window, level in ((0, logging.DEBUG), (1, logging.WARNING), (9, logging.WARNING), (2**62, logging.WARNING)):
        caplog.clear()
        predictor = MODEL.load(executor="cpu", spec_verify_size=window)
        assert bits(predictor.predict_frame(*inputs).codes) == expected
        predictor.log_and_reset_spec_stats()
        (record,) = caplog.records
        assert record.levelno == level
        assert record.getMessage().startswith(f"spec_verify_size={window}: ")
        assert "step by step" in record.getMessage()
        stats = predictor.stats()
        assert (stats["speculating"], stats["spec_rounds"]) == (False, 0)


def test_a_checkpoint_of_too_many_codebooks_leaves_the_plain_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "overtone")
    model = RandomModel(residual_codebooks=57, codebook_size=4)
    predictor = model.load(spec_verify_size=4)
    predictor.predict_frame(*model.inputs(1)).wait()
    (line,) = lines(caplog)
    assert line.startswith(
        "spec_verify_size=4: the cpu executor cannot speculate with this checkpoint; frames run step"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"p_min": 0}, "p_min: found 0"),
        ({"p_min": 1.1}, "p_min: found 1.1"),
        ({"p_min": float("nan")}, "p_min: found nan"),
        ({"p_min": "0.5"}, "p_min: found '0.5'"),
        ({"draft": "tree"}, "draft: found 'tree'"),
        ({"draft": None}, "draft: found None"),
        ({"off_below": -1}, "off_below: found -1"),
        ({"off_below": float("nan")}, "off_below: found nan"),
        ({"off_below": "never"}, "off_below: found 'never'"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as raised:
        SpecParams(**arguments)
    assert str(raised.value).startswith(named)
    assert raised.value.key == named.split(":", maxsplit=1)[0]


def test_parameters_of_another_type_are_refused() -> None:
    wrong: Any = {"draft": "chain"}
    with pytest.raises(InputError, match=r"spec_params: found \{'draft': 'chain'\}, expected"):
        MODEL.load(spec_verify_size=4, spec_params=wrong)
    with pytest.raises(InputError, match="spec_verify_size: found -1, expected 0"):
        MODEL.load(spec_verify_size=-1)


def test_a_draft_of_numpy_numbers_is_taken() -> None:
    params = SpecParams(p_min=np.float32(0.999), off_below=np.int64(0))  # type: ignore[arg-type]
    predictor = RandomModel(codebook_size=200).load(spec_verify_size=4, spec_params=params)
    predictor.predict_frame(*MODEL.inputs(2))
    assert predictor.stats()["spec_drafted"] == 0
    assert predictor.stats()["spec_rounds"] == 2 * 2


@pytest.mark.parametrize("window", [0, 1, 2, 8, 9])
def test_the_estimate_knows_the_window(window: int) -> None:
    predictor = MODEL.load(executor="cpu", max_batch=3, spec_verify_size=window)
    estimate = estimate_memory(predictor.spec, "float32", 3, spec_verify_size=window)
    assert estimate.context == predictor.required_context_memory
    spec = ModelSpec.named("qwen3-tts-0.6b")
    plain, speculative = (estimate_memory(spec, spec_verify_size=size).context for size in (0, window))
    assert (speculative > plain) == (2 <= window <= 8)


def test_hidden_rows_are_those_of_the_heads() -> None:
    hidden, code_zero = MODEL.inputs(2)
    expected = MODEL.load().predict_frame(hidden, code_zero, logits=True).to_host()
    assert expected.logits is not None
    heads = np.stack([MODEL.tensors[f"lm_head.{index}.weight"] for index in range(MODEL.residual_codebooks)])
    for window in (0, 4):
        predictor = MODEL.load(executor="cpu", spec_verify_size=window, spec_params=NEVER_OFF)
        core: Any = predictor._loaded
        codes, status, rows = core.predict_hidden_rows(hidden, code_zero, None, -1)
        assert status.tolist() == [0, 0]
        assert rows.shape == (2, MODEL.residual_codebooks, MODEL.hidden_size)
        np.testing.assert_array_equal(codes, expected.codes)
        np.testing.assert_allclose(np.einsum("brh,rvh->brv", rows.numpy(), heads), expected.logits, atol=1e-4)


def test_bench_tells_the_rounds(capsys: pytest.CaptureFixture[str], omni_tiny: GoldenDirectory) -> None:
    overtone = CommandLine(capsys)
    options = ("--batch", "2", "--frames", 2, "--warmup", 0)
    plain = overtone("bench", omni_tiny.path, *options, "--json")
    rounds = overtone("bench", omni_tiny.path, *options, "--json", "--spec-verify-size", 4, "--draft", "chain")
    (without,) = json.loads(plain.out)["results"]
    (entry,) = json.loads(rounds.out)["results"]
    assert "rounds_per_frame" not in without
    assert 2 <= entry["rounds_per_frame"] <= 6
    assert entry["rounds_per_frame"] * entry["codes_per_round"] == pytest.approx(6, abs=0.01)
    assert "rounds per frame" in overtone("bench", omni_tiny.path, *options, "--spec-verify-size", 4).out


def test_predict_speculates_and_writes_the_same(
    capsys: pytest.CaptureFixture[str], omni_tiny: GoldenDirectory, tmp_path: Path
) -> None:
    overtone = CommandLine(capsys)
    files = [tmp_path / "plain.safetensors", tmp_path / "rounds.safetensors"]
    frames = ("--frames", omni_tiny.path / "frames.safetensors", "--seed", 3)
    plain = overtone("predict", omni_tiny.path, *frames, "--out", files[0])
    rounds = overtone("predict", omni_tiny.path, *frames, "--out", files[1], "--spec-verify-size", 8)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "speculation: " not in plain.out
    assert re.search(
        r"^speculation: [1-7]\.\d\d codes per round, \d+ of \d+ drafts accepted$", rounds.out, re.MULTILINE
    )
    assert_refused(overtone("predict", omni_tiny.path, *frames, "--out", files[1], "--spec-verify-size", 9), "9")
    assert_refused(overtone("predict", omni_tiny.path, *frames, "--out", files[1], "--draft", "tree"), "tree")


def test_the_command_line_names_drafts_and_does_not_write_over_them(
    omni_tiny: GoldenDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overtone = CommandLine(capsys)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(omni_tiny.path, checkpoint)
    arguments = (checkpoint, "--frames", omni_tiny.frames_file, "--executor", "cpu", "--spec-verify-size", 4)
    out, missing, drafts = (
        tmp_path / "codes.safetensors",
        tmp_path / "none.safetensors",
        checkpoint / "drafts.safetensors",
    )
    assert_refused(overtone("predict", *arguments, "--out", out, "--drafts", missing), f"{missing}: no such file")
    drafts.write_bytes(b"no drafts")
    assert_refused(overtone("predict", *arguments, "--out", out), str(drafts))
    assert overtone("predict", *arguments, "--out", out, "--drafts", "none").code == 0
    outcome = overtone("predict", *arguments, "--out", drafts, "--drafts", "none")
    assert_refused(outcome, f"{drafts}: also an input of this command")
    assert drafts.read_bytes() == b"no drafts"
