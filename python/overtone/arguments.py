"""Arguments of a call, checked where they come in: what the compiled module cannot name as well."""

from __future__ import annotations

from operator import index

from overtone.errors import InputError

__all__ = ["refused", "whole_number"]

_SHOWN = 200
"""Characters of a wrong argument that a message shows."""


def refused(name: str, value: object, expected: str) -> InputError:
    """The error for an argument that is something else; its message is one line, however long the value."""
    found = " ".join(repr(value).split())[:_SHOWN]
    return InputError(f"{name}: found {found}, expected {expected}", key=name, found=found, expected=expected)


def whole_number(name: str, value: object) -> int:
    """An argument as a 64-bit integer; NumPy's integers count.

    Raises:
        InputError: It is something else; the message names it.
    """
    try:
        number = index(value)  # type: ignore[arg-type] # what is no number is refused right below
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise refused(name, value, "a whole number of at most 64 bits")
    return number
