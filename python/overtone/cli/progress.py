"""Progress bars: on standard error, and only where that is a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["byte_progress", "count_progress"]

_USUAL_SIZE = os.terminal_size((80, 24))


@contextlib.contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over bytes. Yields what to call with (bytes done, bytes in all), or None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar(desc=label, unit="B", unit_scale=True, unit_divisor=1000) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report


@contextlib.contextmanager
def count_progress(label: str, total: int, unit: str) -> Iterator[Callable[..., object]]:
    """A bar over `total` pieces of work.

    Yields what to call after each, or after several with their number; it does nothing where there is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _count=1: None
        return
    with _bar(desc=label, total=total, unit=unit) as bar:
        yield bar.update


def _bar(**options: Any) -> tqdm[Any]:
    """A bar as wide as the terminal, that is gone afterwards."""
    size: dict[str, Any] = {"dynamic_ncols": True}
    if 0 in os.get_terminal_size(sys.stderr.fileno()):
        # A terminal of unknown size, as some containers have, where tqdm would show nothing.
        size = {"ncols": _USUAL_SIZE.columns, "nrows": _USUAL_SIZE.lines}
    return tqdm(file=sys.stderr, leave=False, **size, **options)
