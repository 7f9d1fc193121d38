"""The picture that `overtone bench --plot` draws: milliseconds per frame over the batch size."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

import overtone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from overtone.cli.bench import Measurement

__all__ = ["draw"]

_COLOURS = {"float32": "#7a7a7a", "bfloat16": "#1f6fb4", "float16": "#5a3fa0", "int8": "#c4601d"}
_REAL_TIME_MILLISECONDS = 80.0


def draw(device: str, measured: list[Measurement]) -> bytes:
    """A PNG of the measurements: medians with their 5 to 95 % spread, and the read floors."""
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for dtype in dict.fromkeys(each.dtype for each in measured):
        _draw_type(axes, dtype, sorted((each for each in measured if each.dtype == dtype), key=lambda each: each.batch))
    if max(each.frame.p95 for each in measured) >= _REAL_TIME_MILLISECONDS / 2:
        _draw_real_time(axes)
    batches = sorted({each.batch for each in measured})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(batches))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(bottom=0)
    axes.margins(x=0.06)
    axes.set_xlabel("batch (streams)")
    axes.set_ylabel("milliseconds per frame")
    axes.set_title(f"overtone {overtone.__version__} on {device}", fontsize=9, loc="left")
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _draw_real_time(axes: Axes) -> None:
    axes.axhline(_REAL_TIME_MILLISECONDS, color="#2e8b57", linewidth=1, zorder=1)
    axes.annotate(
        "real time: 80 ms",
        (1, _REAL_TIME_MILLISECONDS),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color="#2e8b57",
        fontsize=9,
    )


def _draw_type(axes: Axes, dtype: str, measured: list[Measurement]) -> None:
    batches = [each.batch for each in measured]
    medians = [each.frame.median for each in measured]
    below = [max(0.0, each.frame.median - each.frame.p05) for each in measured]
    above = [max(0.0, each.frame.p95 - each.frame.median) for each in measured]
    colour = _COLOURS[dtype]
    axes.errorbar(
        batches,
        medians,
        yerr=(below, above),
        color=colour,
        marker="o",
        capsize=3,
        label=f"{dtype}, median and 5 to 95 %",
    )
    floors = [each.floor.median for each in measured if each.floor is not None]
    if floors:
        axes.plot(batches, floors, color=colour, linestyle=":", marker="_", label=f"{dtype}, only reading its weights")
