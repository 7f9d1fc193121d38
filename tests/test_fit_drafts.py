"""Fitted drafts: what the fit finds, the file that `overtone fit-drafts` writes, and frames that use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from command_line import CommandLine, assert_refused
from golden import GoldenDirectory
from models import row_bits
from overtone import CheckpointError, CodePredictor, InputError, SamplingParams, SpecParams, _core
from overtone.drafts.fit import RIDGES, DraftFit, Drafts, FitWeights
from overtone.drafts.quality import DraftQuality, rounds_per_frame

Array = npt.NDArray[Any]

FRAMES, STREAMS = 40, 50


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny synthetic checkpoint. Its drafts are worth fitting: each hidden row depends much on the code fed."""
    directory = tmp_path_factory.mktemp("drafts") / "tiny"
    _core.make_checkpoint(directory, "tiny", 0, FRAMES, STREAMS, None)
    return directory


@pytest.fixture(scope="session")
def fitted(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its drafts, fitted by the command."""
    directory = tmp_path_factory.mktemp("drafts") / "fitted"
    shutil.copytree(made, directory)
    from overtone.cli import main  # noqa: PLC0415 - needs the command's packages

    assert main(["fit-drafts", str(directory), "--frames", str(directory / "frames.safetensors")]) == 0
    return directory


@pytest.fixture
def overtone(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


class LinearProcess:
    """Hidden rows that follow each other by a known linear map, and the codes of their largest logits."""

    def __init__(self, codebooks: int = 5, size: int = 40, width: int = 24) -> None:
        generator = np.random.default_rng(0)

        def matrices(rows: int, scale: float = 1.0) -> list[Array]:
            return [generator.standard_normal((rows, width)).astype(np.float32) * scale for _ in range(codebooks)]

        self.weights = FitWeights(matrices(size), matrices(size))
        self._to_hidden, self._to_embedded = matrices(width, width**-0.5), matrices(width, width**-0.5)
        self._offsets = matrices(1)
        self._generator = generator

    def frames(self, count: int) -> tuple[Array, Array]:
        """Hidden rows [N, R, H] and codes [N, C]."""
        hidden = self._generator.standard_normal((count, self.weights.heads[0].shape[1]), np.float32)
        rows, codes = [], np.zeros((count, self.weights.codebooks + 1), np.int32)
        for index, head in enumerate(self.weights.heads):
            rows.append(hidden)
            codes[:, index + 1] = (hidden @ head.T).argmax(1)
            fed = self.weights.embeddings[index][codes[:, index + 1]]
            hidden = hidden @ self._to_hidden[index].T + fed @ self._to_embedded[index].T + self._offsets[index]
        return np.stack(rows, 1), codes

    def fit(self, ridge: float, pieces: int = 4) -> Drafts:
        fit = DraftFit(self.weights)
        for _ in range(pieces):
            fit.add(*self.frames(100))
        solved = [fit.solve(pending, ridge) for pending in range(1, self.weights.codebooks)]
        return Drafts([head for head, _ in solved], [table for _, table in solved], fit.frames, ridge)


def test_a_linear_process_is_found_whole() -> None:
    process = LinearProcess()
    drafts = process.fit(1e-9)
    assert drafts.frames == 400
    hidden_rows, codes = process.frames(50)
    for pending in range(1, process.weights.codebooks):
        expected = hidden_rows[:, pending] @ process.weights.heads[pending].T
        found = drafts.logits(pending, hidden_rows[:, pending - 1], codes[:, pending])
        np.testing.assert_allclose(found, expected, atol=2e-3)
    quality = DraftQuality(process.weights, drafts)
    quality.add(hidden_rows, codes, [(0.0, 0, 1.0, 0)] * 50, [0] * 50)
    plain, fitted = quality.scores()
    assert fitted.best.tolist() == [1.0] * 3
    assert (fitted.chain_rounds, fitted.sibling_rounds) == (2.0, 2.0)
    assert plain.best.max() < 0.3
    assert plain.chain_rounds > 3.5


def test_few_frames_get_a_stronger_ridge_than_many() -> None:
    process = LinearProcess()
    rows, codes = process.frames(400)
    # Noise on what is fitted: a map that follows it misses other frames.
    generator = np.random.default_rng(5)
    noisy = rows + generator.standard_normal(rows.shape).astype(np.float32)
    chosen = []
    for count in (12, 300):
        fit = DraftFit(process.weights)
        fit.add(noisy[:count], codes[:count])
        chosen.append(fit.choose_ridge(noisy[300:], codes[300:]))
    assert chosen[0] > chosen[1]


def test_a_strong_ridge_leaves_the_next_head_and_a_constant() -> None:
    process = LinearProcess()
    drafts = process.fit(1e9)
    for pending in range(1, process.weights.codebooks):
        np.testing.assert_allclose(drafts.heads[pending - 1], process.weights.heads[pending], atol=1e-4)
        np.testing.assert_allclose(np.ptp(drafts.tables[pending - 1], axis=0), 0.0, atol=1e-4)


def test_inputs_that_never_vary_are_no_obstacle() -> None:
    process = LinearProcess()
    hidden_rows, codes = process.frames(1)
    fit = DraftFit(process.weights)
    fit.add(np.repeat(hidden_rows, 30, 0), np.repeat(codes, 30, 0))
    for pending in range(1, process.weights.codebooks):
        head, table = fit.solve(pending, 0.01)
        logits = head @ hidden_rows[0, pending - 1] + table[codes[0, pending]]
        np.testing.assert_allclose(logits, process.weights.heads[pending] @ hidden_rows[0, pending], atol=1e-3)


def test_pieces_do_not_change_the_fit() -> None:
    process = LinearProcess()
    hidden_rows, codes = process.frames(200)
    fits = [DraftFit(process.weights) for _ in range(2)]
    fits[0].add(hidden_rows, codes)
    for rows in np.array_split(np.arange(200), 7):
        fits[1].add(hidden_rows[rows], codes[rows])
    for found, expected in zip(fits[1].solve(2, 0.01), fits[0].solve(2, 0.01), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("hits", "rounds"),
    [([0, 0, 0], 4), ([1, 1, 1], 2), ([0, 1, 0], 3), ([1, 0, 1], 2), ([0, 0, 1], 3), ([1, 1, 0], 3)],
)
def test_rounds_are_counted_as_executors_run_them(hits: list[int], rounds: int) -> None:
    assert rounds_per_frame(np.array([hits], bool)) == rounds


def test_the_command_writes_drafts_that_fit_the_checkpoint(fitted: Path) -> None:
    dtype, frames, ridge = _core.check_drafts(fitted / "drafts.safetensors", fitted)
    assert (dtype, frames) == ("bfloat16", FRAMES * STREAMS * 9 // 10)
    assert ridge in RIDGES


def test_the_report_says_what_they_are_worth(overtone: CommandLine, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "any.safetensors"
    arguments = ("--frames", made / "frames.safetensors", "--out", out, "--max-frames", 1500, "--dtype", "float32")
    outcome = overtone("fit-drafts", made, *arguments, "--ridge", 0.25)
    assert (outcome.code, outcome.err) == (0, "")
    drawn = "sampled: temperature 0.9, top_k 50, top_p 1, seed 0"
    assert f"fitted to 1350 frames with ridge 0.25, {drawn}; judged on 150 others" in outcome.out
    rounds = next(line for line in outcome.out.splitlines() if line.startswith("rounds per frame")).split()[3:]
    plain_chain, fitted_chain, plain_siblings, fitted_siblings = map(float, rounds)
    assert fitted_chain < plain_chain - 0.5
    assert fitted_siblings < plain_siblings
    assert _core.check_drafts(out, made)[0] == "float32"
    assert not (made / "drafts.safetensors").exists()


def counted(directory: Path, golden_frames: int, **params: Any) -> tuple[list[tuple[bytes, ...]], dict[str, Any]]:
    """All that frames give, and what speculation counted."""
    size = 0 if not params else 2
    spec_params = SpecParams(draft="chain", off_below=0, **params) if params else None
    predictor = CodePredictor.from_pretrained(directory, "cpu", spec_verify_size=size, spec_params=spec_params)
    frames = load_file(directory / "frames.safetensors")
    given = []
    for index in range(golden_frames):
        hidden, code_zero = frames["talker_last_hidden"][index, :8], frames["code_zero"][index, :8]
        frame = predictor.predict_frame(
            hidden, code_zero, sampling=SamplingParams(0.9, 50, seed=5), frame_idx=index, logits=True
        )
        given += [row_bits(frame, row) for row in range(8)]
    return given, predictor.stats()


def test_frames_are_done_sooner_with_the_same_bits(fitted: Path) -> None:
    expected, _ = counted(fitted, 10)
    plain, plain_stats = counted(fitted, 10, drafts=False)
    found, stats = counted(fitted, 10, drafts=True)
    named, named_stats = counted(fitted, 10, drafts=fitted / "drafts.safetensors")
    assert expected == plain == found == named
    assert stats["spec_rounds"] == named_stats["spec_rounds"]
    share = stats["spec_accepted"] / stats["spec_drafted"]
    assert share > 1.3 * plain_stats["spec_accepted"] / plain_stats["spec_drafted"]


def test_drafts_of_a_golden_leave_its_codes(omni_tiny: GoldenDirectory, overtone: CommandLine, tmp_path: Path) -> None:
    directory = tmp_path / "golden"
    shutil.copytree(omni_tiny.path, directory)
    outcome = overtone("fit-drafts", directory, "--frames", omni_tiny.frames_file, "--seed", 3)
    assert (outcome.code, outcome.err) == (0, "")
    predictor = CodePredictor.from_pretrained(directory, "cpu", spec_verify_size=8, spec_params=SpecParams(off_below=0))
    for index, (hidden, code_zero) in enumerate(zip(omni_tiny.talker_last_hidden, omni_tiny.code_zero, strict=True)):
        frame = predictor.predict_frame(hidden, code_zero, frame_idx=index)
        np.testing.assert_array_equal(frame.codes.numpy(), omni_tiny.expected("greedy", "codes")[index])
    assert predictor.stats()["spec_rounds"] > 0


def test_drafts_of_another_checkpoint_are_refused(fitted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    _core.make_checkpoint(other, "tiny", 1, 1, 1, None)
    shutil.copy(fitted / "drafts.safetensors", other)
    with pytest.raises(CheckpointError, match="drafts of another predictor") as caught:
        CodePredictor.from_pretrained(other, "cpu", spec_verify_size=4)
    assert caught.value.file == str(other / "drafts.safetensors")
    CodePredictor.from_pretrained(other, "cpu", spec_verify_size=4, spec_params=SpecParams(drafts=False))
    CodePredictor.from_pretrained(other, "cpu")


def test_a_named_file_must_be_there(made: Path) -> None:
    params = SpecParams(drafts=made / "nowhere.safetensors")
    with pytest.raises(CheckpointError, match="no such file"):
        CodePredictor.from_pretrained(made, "cpu", spec_verify_size=4, spec_params=params)
    with pytest.raises(InputError, match="drafts"):
        SpecParams(drafts=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("--ridge", "0"), ("--ridge",)),
        (("--ridge", "nan"), ("--ridge",)),
        (("--max-frames", "9"), ("--max-frames",)),
        (("--dtype", "int8"), ("--dtype",)),
        (("--out", "/nowhere/at/all.safetensors"), ("--out", "/nowhere/at")),
        (("--temperature", "-1"), ("temperature",)),
    ],
)
def test_bad_usage_is_refused(
    overtone: CommandLine, made: Path, options: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    assert_refused(overtone("fit-drafts", made, "--frames", made / "frames.safetensors", *options), *fragments)


def test_outputs_that_are_inputs_are_refused(overtone: CommandLine, made: Path) -> None:
    frames = made / "frames.safetensors"
    for file in (frames, made / "model.safetensors"):
        assert_refused(overtone("fit-drafts", made, "--frames", frames, "--out", file), "--out", str(file))


def test_frames_that_do_not_suit_are_refused(overtone: CommandLine, made: Path, tmp_path: Path) -> None:
    file = tmp_path / "frames.safetensors"
    frames = load_file(made / "frames.safetensors")

    def refused(hidden: Array, code_zero: Array, *fragments: str) -> None:
        save_file({"talker_last_hidden": np.ascontiguousarray(hidden), "code_zero": code_zero}, file)
        assert_refused(overtone("fit-drafts", made, "--frames", file), str(file), *fragments)
        assert not (made / "drafts.safetensors").exists()

    hidden, code_zero = frames["talker_last_hidden"], frames["code_zero"]
    refused(hidden[:3, :3], np.ascontiguousarray(code_zero[:3, :3]), "at least 10 frames")
    refused(hidden[:, :, :-1], code_zero, "talker_last_hidden")
    refused(np.where(np.arange(64) == 3, np.nan, hidden).astype(np.float32), code_zero, "nan")
    refused(hidden, code_zero + 96, "code_zero", "0 to 95")


def test_too_few_codebooks_leave_nothing_to_draft(overtone: CommandLine, made: Path, tmp_path: Path) -> None:
    directory = tmp_path / "two"
    shutil.copytree(made, directory)
    config = json.loads((directory / "config.json").read_text())
    text = json.dumps(config).replace('"num_code_groups": 16', '"num_code_groups": 3')
    (directory / "config.json").write_text(text)
    tensors = _core.read_tensors(directory / "model.safetensors")
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if not any(f".{index}.weight" in name for index in range(2, 15)) or "layers" in name
    }
    _core.write_tensors(directory / "model.safetensors", kept)
    outcome = overtone("fit-drafts", directory, "--frames", directory / "frames.safetensors")
    assert_refused(outcome, "2 residual codebooks", "at least 3")


def test_proposals_are_the_executors_own() -> None:
    logits = np.array([[1.0, 3.0, -np.inf, 3.0, 2.0], [np.nan] * 5], np.float32)
    found = _core.propose_drafts(logits, [(0.0, 0, 1.0, 0)] * 2, [0, 0], 2, 5).tolist()
    assert found == [[1, 3, 4, 0, -1], [-1] * 5]
    with pytest.raises(InputError, match="logits"):
        _core.propose_drafts(logits, [(0.0, 0, 1.0, 0)], [0], 2, 1)
    with pytest.raises(InputError, match="frame_idx"):
        _core.propose_drafts(logits, [(0.0, 0, 1.0, 0)] * 2, [0], 2, 1)
