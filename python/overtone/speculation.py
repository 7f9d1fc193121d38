"""Speculation: how it is asked for, and what it counted.

A frame in speculative rounds has the codes of the step-by-step loop, bit for bit; ``docs/speculation.md`` says how it
works and when it pays.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from numbers import Real
from os import PathLike, fsdecode
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from overtone.arguments import refused, whole_number

if TYPE_CHECKING:
    from overtone._typing import Executor, GivenSpeculation, Path

__all__ = [
    "DRAFT_SHAPES",
    "LARGEST_WINDOW",
    "DraftShape",
    "SpecCounters",
    "SpecParams",
    "given_speculation",
    "log_counters",
    "read_counters",
    "spec_stats",
    "warn_unless_speculating",
]

_logger = logging.getLogger("overtone")

LARGEST_WINDOW = 8
"""The most rows of one stream in a verify pass."""

DraftShape = Literal["chain", "siblings"]
DRAFT_SHAPES = get_args(DraftShape)
"""Shapes that drafts may take."""


@dataclass(frozen=True)
class SpecParams:
    """How a predictor speculates where ``spec_verify_size`` asks for it. No parameter changes a code.

    Args:
        p_min: A draft whose probability, before any filter, is below this is not verified, nor is what hangs under it.
            None verifies all.
        draft: ``siblings``: the best draws for the next code alone. ``chain``: the best draw of each of the next codes.
        off_below: Codes per round below which speculation is switched off for good; it is looked at after every 256
            rounds. None is the executor's own break-even, 0 never switches off.
        drafts: Fitted drafts for the next code (``docs/fitted-drafts.md``): True for those beside the weights, where
            there are any; the path of a file; False for the plain next head. None is True on the cpu executor and False
            on the cuda executor, where they cost more than they save.

    Raises:
        InputError: A parameter is out of range; the message names it.

    >>> SpecParams(p_min=0.0)
    Traceback (most recent call last):
    overtone.errors.InputError: p_min: found 0.0, expected None, or a number above 0 and at most 1
    """

    p_min: float | None = None
    draft: DraftShape = "siblings"
    off_below: float | None = None
    drafts: Path | bool | None = None

    def __post_init__(self) -> None:
        if self.p_min is not None and not (_is_number(self.p_min) and 0 < self.p_min <= 1):
            raise refused("p_min", self.p_min, "None, or a number above 0 and at most 1")
        if self.draft not in DRAFT_SHAPES:
            raise refused("draft", self.draft, " or ".join(map(repr, DRAFT_SHAPES)))
        if self.off_below is not None and not (_is_number(self.off_below) and self.off_below >= 0):
            raise refused("off_below", self.off_below, "None, or a number from 0 (never) on")
        if not isinstance(self.drafts, bool | str | bytes | PathLike | None):
            raise refused("drafts", self.drafts, "True, False, None or the path of a file")


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def given_speculation(spec_verify_size: int, spec_params: SpecParams | None) -> GivenSpeculation | None:
    """What the compiled module is asked for; None, and a word in the log, where frames run step by step.

    Raises:
        InputError: The size is negative or no whole number, or the parameters are something else.
    """
    rows = whole_number("spec_verify_size", spec_verify_size)
    if rows < 0:
        raise refused("spec_verify_size", rows, "0 (off) or above")
    if not isinstance(spec_params, SpecParams | None):
        raise refused("spec_params", spec_params, "SpecParams or None")
    if 2 <= rows <= LARGEST_WINDOW:
        params = spec_params or SpecParams()
        p_min = None if params.p_min is None else float(params.p_min)
        off_below = None if params.off_below is None else float(params.off_below)
        drafts = params.drafts if isinstance(params.drafts, bool | None) else fsdecode(params.drafts)
        return (params.draft, rows, p_min, off_below, drafts)
    if rows == 0:
        _logger.debug("spec_verify_size=0: frames run step by step")
    else:
        _logger.warning(
            "spec_verify_size=%d: speculation needs 2 to %d; frames run step by step, with the same codes",
            rows,
            LARGEST_WINDOW,
        )
    return None


def warn_unless_speculating(executor: Executor, name: str, given: GivenSpeculation | None) -> None:
    """Say that an executor has loaded a checkpoint with which it cannot speculate."""
    if given is not None and not executor.speculating:
        _logger.warning(
            "spec_verify_size=%d: the %s executor cannot speculate with this checkpoint; frames run step by step, with "
            "the same codes",
            given[1],
            name,
        )


class SpecCounters(NamedTuple):
    """What speculation counted for one row of the batch, or for several."""

    frames: int = 0
    rounds: int = 0
    codes: int = 0
    drafted: int = 0
    accepted: int = 0

    def since(self, before: SpecCounters) -> SpecCounters:
        """What was counted after ``before``."""
        return SpecCounters(*(now - then for now, then in zip(self, before, strict=True)))

    @classmethod
    def total(cls, rows: list[SpecCounters]) -> SpecCounters:
        """Several rows together; their frames are counted for each."""
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls()

    def __str__(self) -> str:
        share = self.accepted / self.drafted if self.drafted else 0.0
        return (
            f"{self.frames} frames, {self.rounds / self.frames:.2f} rounds per frame, "
            f"{self.codes / self.rounds:.2f} codes per round, {self.drafted} drafts verified, {share:.1%} accepted"
        )


def read_counters(executor: Executor) -> list[SpecCounters]:
    """The counters of each row since loading; none without speculation."""
    return [SpecCounters(*row) for row in executor.spec_counters()]


def spec_stats(executor: Executor) -> dict[str, int | float]:
    """What :meth:`CodePredictor.stats` tells of speculation."""
    total = SpecCounters.total(read_counters(executor))
    return {
        "spec_rounds": total.rounds,
        "spec_codes": total.codes,
        "spec_drafted": total.drafted,
        "spec_accepted": total.accepted,
        "speculating": executor.speculating,
    }


def log_counters(executor: Executor, before: list[SpecCounters]) -> list[SpecCounters]:
    """Log what was counted after ``before``: a line for each row that took part in rounds, and one for all of them.

    Returns:
        The counters now.
    """
    now = read_counters(executor)
    since = [row.since(then) for row, then in zip(now, before or [SpecCounters()] * len(now), strict=True)]
    if any(row.rounds and row.frames for row in since):
        for index, row in enumerate(since):
            if row.rounds and row.frames:
                _logger.info("speculation, row %d: %s", index, row)
        switch = "" if executor.speculating else "; switched off since"
        _logger.info("speculation, all rows: %s%s", SpecCounters.total(since), switch)
    return now
