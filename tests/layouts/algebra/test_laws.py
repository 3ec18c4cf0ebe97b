"""Every operation of the algebra against its definition, on random layouts: nested, ragged and degenerate ones.

A law draws operands, asks the library, and judges the answer with `reference`, which knows no algebra. It returns
whether the operation answered. A refusal is judged too where the operation promises to answer whenever it can.

    python -m tests.layouts.algebra.test_laws [FACTOR] [SEED]     FACTOR times as many cases as the tests take
"""

from __future__ import annotations

import sys

import pytest

from tests.layouts.algebra import laws_modes, laws_tiling
from tests.layouts.algebra.law_tools import LAWS, run

assert laws_modes and laws_tiling  # they register the laws

# Operations that refuse; the cases must show them refuse, too.
PARTIAL = {
    "compose",
    "compose_after_a_swizzle",
    "with_shape",
    "divides",
    "products",
    "products_by_mode",
    "blocked_and_raked_products",
    "tile_to_shape",
    "complement",
    "left_inverse",
    "upcast",
    "recast",
}


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    answered, drawn = run(name)
    assert answered > drawn // 10, f"{answered} of {drawn} answered"
    assert answered < drawn or name not in PARTIAL, f"all {drawn} answered"


if __name__ == "__main__":
    for law_name in LAWS:
        print(law_name, *run(law_name, *map(int, sys.argv[1:3])), flush=True)
