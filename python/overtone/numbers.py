"""Whole numbers among the arguments of a call, checked where they come in."""

from __future__ import annotations

from operator import index

from overtone.errors import InputError

__all__ = ["whole_number"]


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
        found, expected = repr(value)[:200], "a whole number of at most 64 bits"
        raise InputError(f"{name}: found {found}, expected {expected}", key=name, found=found, expected=expected)
    return number
