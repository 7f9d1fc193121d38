"""The picture of a run: milliseconds per frame of every contender, one panel for each batch size."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from benchmarks.peers.floor import FLOORS
from benchmarks.peers.measure import summary
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.peers.measure import Samples
    from benchmarks.peers.report import Report
    from matplotlib.axes import Axes

OURS, THEIRS, FLOOR = "#1f6fb4", "#7a7a7a", "#2e8b57"


def draw(report: Report) -> bytes:
    """A PNG: medians with their 5 to 95 % spread, on a logarithmic scale."""
    names = list(dict.fromkeys(name for found in report.samples.values() for name in found if name not in FLOORS))
    figure = Figure(figsize=(8, 0.9 + len(report.samples) * (0.6 + 0.25 * len(names))), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(report.samples), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (batch, found) in zip(panels, report.samples.items(), strict=True):
        _draw_batch(axes, batch, found, [name for name in names if name in found])
    panels[-1].set_xlabel("milliseconds per frame, sampling included (logarithmic)")
    figure.suptitle(report.title(), fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _draw_batch(axes: Axes, batch: int, found: dict[str, Samples], names: list[str]) -> None:
    timings = [summary(found[name].device) for name in names]
    for place, (name, timing) in enumerate(zip(names, timings, strict=True)):
        spread = ([max(0.0, timing.median - timing.p05)], [max(0.0, timing.p95 - timing.median)])
        colour = OURS if name.startswith("overtone") else THEIRS
        axes.errorbar(timing.median, place, xerr=spread, color=colour, marker="o", capsize=3)
        axes.annotate(
            f"{timing.median:.2f}", (timing.p95, place), (6, 0), textcoords="offset points", va="center", fontsize=8
        )
    floor = min(summary(found[name].device).median for name in FLOORS)
    axes.axvline(floor, color=FLOOR, linestyle=":")
    axes.set_title(f"batch {batch}", fontsize=9, loc="left")
    axes.set_title(f"dotted: moving the weights' bytes, {floor:.2f}", fontsize=8, loc="right", color=FLOOR)
    axes.set_xscale("log")
    axes.set_xlim(floor * 0.7, max(timing.p95 for timing in timings) * 2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
