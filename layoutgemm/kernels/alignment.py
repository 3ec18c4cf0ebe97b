"""Lines of a matrix in memory. Why an instruction cannot read or write them where they lie.

A tensor map, cp.async or a vector access needs contiguous elements, lines that do not overlap, and distances and an
address that are multiples of a unit. Each function returns a sentence for the first rule that is broken, or "".
"""

from __future__ import annotations

from collections.abc import Iterable

from ..atoms.tma.rules import STRIDE_UNIT


def line_misfit(extent: int, step: int, count: int, leading: int, size: int, unit: int = STRIDE_UNIT) -> str:
    """Why lines cannot be read where they lie, or "".

    extent, step    elements of a line, and their distance in elements
    count, leading  lines, and their distance in elements: any, of a single line
    size, unit      bytes of an element, and of the unit whose multiple the distance of lines is

    >>> line_misfit(1000, 1, 64, 1023, 2), line_misfit(1000, 1, 1, 1023, 2)
    ('lines lie 1023 * 2 = 2046 bytes apart, no multiple of 16', '')
    """
    if extent > 1 and step != 1:
        return f"elements of a line lie {step} apart"
    if count > 1 and leading < extent:
        return f"lines of {extent} elements lie {leading} elements apart, so they overlap"
    if count > 1 and leading * size % unit:
        return f"lines lie {leading} * {size} = {leading * size} bytes apart, no multiple of {unit}"
    return ""


def batch_misfit(steps: Iterable[int], size: int, unit: int = STRIDE_UNIT) -> str:
    """Why matrices of a batch cannot be read where they lie, or "". `steps` are their distances in elements.

    >>> batch_misfit((4096, 4100), 2)
    'matrices of the batch lie 4100 * 2 = 8200 bytes apart, no multiple of 16'
    """
    uneven = next((step for step in steps if step * size % unit), None)
    if uneven is None:
        return ""
    return f"matrices of the batch lie {uneven} * {size} = {uneven * size} bytes apart, no multiple of {unit}"


def rows_misfit(leading: int, pitch: int) -> str:
    """Why the matrices of a batch are not rows of one matrix, or "". Distances of lines and matrices in elements.

    >>> rows_misfit(64, 640), rows_misfit(640, 64).partition(":")[0]
    ('', 'matrices of the batch lie 64 elements apart, no multiple of the 640 from row to row')
    """
    if pitch % leading == 0:
        return ""
    return (
        f"matrices of the batch lie {pitch} elements apart, no multiple of the {leading} from row to row: chosen rows "
        "are of one matrix"
    )


def address_misfit(address: int, unit: int = STRIDE_UNIT) -> str:
    """Why memory cannot be read from this address on, or "".

    >>> address_misfit(0x7F0002), address_misfit(0x7F0000), address_misfit(0)
    ('its address is a multiple of 2 bytes, not of 16', '', '')
    """
    return f"its address is a multiple of {address & -address} bytes, not of {unit}" if address % unit else ""
