"""Progress bars: on standard error, and only where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["byte_progress", "count_progress"]


@contextlib.contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over bytes. Yields what to call with (bytes done, bytes in all), or None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with tqdm(
        desc=label, unit="B", unit_scale=True, unit_divisor=1000, file=sys.stderr, leave=False, dynamic_ncols=True
    ) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report


@contextlib.contextmanager
def count_progress(label: str, total: int, unit: str) -> Iterator[Callable[[], object]]:
    """A bar over `total` pieces of work. Yields what to call after each; it does nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with tqdm(desc=label, total=total, unit=unit, file=sys.stderr, leave=False, dynamic_ncols=True) as bar:
        yield bar.update
