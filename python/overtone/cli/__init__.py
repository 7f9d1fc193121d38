"""The `overtone` command.

Its optional packages are looked for here, so that a bare installation can say what it lacks; the command itself is
`application`'s.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the command's name; None for the process's own.

    Returns:
        The exit code: 0, 2 for bad input or usage, 1 for any other failure, 130 after Ctrl-C.
    """
    missing = [name for name in ("click", "tqdm") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}, not installed here: pip install 'overtone[cli]'\n"
        )
        return 2
    from overtone.cli.application import run  # noqa: PLC0415 - only now are its packages known to be there

    return run(sys.argv[1:] if arguments is None else arguments)
