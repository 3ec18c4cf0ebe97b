"""Operands of 6 and 4 bits of mma.sync, in a byte each.

Kinds f8f6f4 and mxf8f6f4 of sm_120a:

    16 elements, 12 or 8 bytes --cp.async--> the start of 16 bytes --ldmatrix.b8x16--> a byte each --shl--> mma.sync

The instruction takes e2m1 in the middle four bits of a byte, and six-bit elements in the lower six: an atom's
`Container`. ldmatrix leaves both in the low bits. A line is whole groups of 16 elements.

Sources: PTX ISA, "ldmatrix" and "mma", alternate floating-point formats; cute/atom/mma_traits_sm120.hpp. No device of
this architecture has run it: the emulator and ptxas have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...atoms import MmaAtom
from ...atoms.mma.base import NARROW
from ...dtypes import u8
from ...errors import PlanError
from ..derive import ORDERS, Operand
from ..operands.combinations import PARTS, Asked
from ..plan import check_settings, rounded_up
from .block_scales import BESIDE
from .operand import ELEMENTS_TOGETHER

if TYPE_CHECKING:
    from .plan import Sm80Config


def narrow_types(*operands: Operand) -> bool:
    """True for floats of 8 bits or fewer of which one has fewer.

    >>> narrow_types(Operand.parse("e2m1"), Operand.parse("e4m3")), narrow_types(Operand.parse("e5m2"))
    (True, False)
    """
    kinds = [spec.dtype for spec in operands]
    return all(kind.name in NARROW for kind in kinds) and any(kind.bits < u8.bits for kind in kinds)


def check_padded(operands: tuple[Operand, Operand], atom: MmaAtom, k: int) -> None:
    """Raise PlanError for padded elements that do not lie along K, in whole groups of 16."""
    for name, spec, order, container in zip(
        "ab", operands, ORDERS, (atom.a_container, atom.b_container), strict=True
    ):  # fmt: skip
        if container is None:
            continue
        if spec.order != order:
            raise PlanError(f"{name} is {spec}: padded elements are copied along K here; a 'row' A and a 'col' B")
        if k % ELEMENTS_TOGETHER:
            raise PlanError(
                f"k = {k}: {ELEMENTS_TOGETHER} elements of {spec.dtype} are copied together; pad K to "
                f"{rounded_up(k, ELEMENTS_TOGETHER)}"
            )


def check_narrow(operands: tuple[Operand, Operand], asked: Asked, config: Sm80Config) -> None:
    """Raise PlanError for parts or a configuration without a kernel of narrow elements."""
    if not narrow_types(*operands):
        return
    if taken := [PARTS[part][0] for part in asked.parts if part not in BESIDE]:
        kinds = " and ".join([str(spec.dtype) for spec in operands])
        raise PlanError(f"{taken[0]}: the mma.sync kernel has none of {kinds}; it takes an epilogue, an order, a batch")
    check_settings(config, "a product of narrow elements takes", loads="cp.async", persistent=False)
    if min(config.align[:2]) < 8:
        raise PlanError(f"align = {config.align}: 16 elements of 4 bits are 8 bytes; align A and B to 8 bytes or 16")
