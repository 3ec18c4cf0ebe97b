"""Counts of accesses to each element, which checks expect to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_numpy import np

if TYPE_CHECKING:
    import numpy.typing as npt


def not_once(times: npt.NDArray[np.int64], text: str) -> str:
    """The first element whose count is not one, in words. "" if all counts are one.

    times  the counts, by coordinate
    text   with a pair of braces for each coordinate, and a last one for the count

    >>> not_once(np.array([[1, 1], [1, 3]]), "row {}, column {} is stored {} times")
    'row 1, column 1 is stored 3 times'
    """
    wrong = np.argwhere(times != 1)
    if not len(wrong):
        return ""
    at = tuple(int(x) for x in wrong[0])
    return text.format(*at, int(times[at]))
