"""The smallest product: one thread's fused multiply-add, as a 1x1x1 matrix atom."""

from __future__ import annotations

from collections.abc import Iterator

from ...arguments import checked
from ...dtypes import DType, dtype, f32
from ...errors import AtomError
from ...layouts import Layout
from ..targets import TARGETS
from .base import MmaAtom

_TYPES = ("f16", "f32", "f64")


@checked(AtomError)
def fma(of: DType | str = f32) -> MmaAtom:
    """The scalar product fma.rn of one thread: D = A*B + C. All are of one type, f16, f32 or f64.

    Raises AtomError for any other type. Source: PTX ISA, "Floating Point Instructions: fma" and "Half Precision
    Floating Point Instructions: fma".

    >>> fma().ptx, str(fma().layout_A), fma().shape_mnk
    ('fma.rn.f32', '(1,1):(0,0)', (1, 1, 1))
    """
    own = dtype(of)
    if own.name not in _TYPES:
        raise AtomError(f"fma.rn multiplies {', '.join(_TYPES)}, not {own}")
    one = Layout((1, 1), (0, 0))
    return MmaAtom(
        ptx=f"fma.rn.{own}",
        archs=TARGETS,
        shape_mnk=(1, 1, 1),
        a_dtype=own,
        b_dtype=own,
        c_dtype=own,
        threads=1,
        layout_A=one,
        layout_B=one,
        layout_C=one,
        a_source="rmem",
        b_source="rmem",
        source="PTX ISA, fma",
    )


def fma_atoms() -> Iterator[MmaAtom]:
    """fma.rn of every type."""
    return map(fma, _TYPES)
