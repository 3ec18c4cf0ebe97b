"""Public functions refuse objects of foreign types by the argument's name.

No error of Python, NumPy or torch comes instead.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy

from layoutgemm import E, Layout, LayoutError, Swizzle, atoms, checks, dim, emulate, plan, schedule, view
from layoutgemm.emulator.mutation.api import mutate
from layoutgemm.errors import NotCompiledError
from layoutgemm.kernels.epilogue.chain import Custom
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.operands.prologue import Prologue
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.streamed.plan import StreamedPlan
from layoutgemm.layouts import LinearLayout, functions
from layoutgemm.layouts.swizzle import ComposedLayout
from layoutgemm.schedule.listed import encoded

L = Layout((4, 8), (8, 1))
TILE = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
PLAN = plan(128, 128, 64, b="bf16:col")
FAR, INT4 = (1 << 63) - 1, QuantizedFormat("int4", 128)


class Unreadable:
    """An array of a type that NumPy lacks, as a tensor of bfloat16 is."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("no such type")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # a coordinate is a whole number: these have // and %, and were multiplied
    "Fraction": (lambda: Layout(8, 2)(Fraction(1, 2)), r"a coordinate must be an integer, not Fraction\(1, 2\)"),
    "Decimal": (lambda: L(1, Decimal(3)), r"a coordinate must be an integer, not Decimal\('3'\)"),
    "class": (lambda: L(int), r"a coordinate must be an integer, not <class 'int'>"),
    "Fraction, coord": (lambda: L.coord(Fraction(9, 2)), "a coordinate must be an integer"),
    "symbol under a swizzle": (lambda: Swizzle(3, 4, 3)(sympy.Symbol("M")), "an offset must be an integer, not M"),
    # 64 bits: NumPy wraps in silence
    "array": (lambda: Layout(8, 3)(np.array([1 << 62])), "offsets up to 13835058055282163712 do not fit 64 bits"),
    "offset": (lambda: ComposedLayout(Swizzle(0, 0, 0), FAR, L).offsets(), r"offsets\(\) of .* do not fit 64 bits"),
    "wide swizzle": (lambda: Swizzle(3, 2, -60)(np.arange(40)), "S<3,2,-60> of an array: .* do not fit 64 bits"),
    # free functions
    "make_layout": (lambda: functions.make_layout(stride=(1, 2)), "takes a shape and a stride, or layouts, not 0"),
    "recast_layout": (lambda: functions.recast_layout(8, 16, Swizzle(3, 4, 3)), "the layout of recast_layout must be"),
    "local_partition": (lambda: functions.local_partition(L, L, np.arange(4)), "the index of local_partition must be"),
    "from_expr": (lambda: Layout.from_expr(int, 4), "does not say its variables"),
    "Swizzle.each": (lambda: Swizzle(3, 4, 3).each(7), "offsets must be integers in a list, not 7"),
    "from_matrix": (lambda: LinearLayout.from_matrix(Unreadable()), "a matrix over GF"),
    # plans and the functions that they trace
    "epilogue": (lambda: plan(128, 128, 128, epilogue=7), "epilogue is a int, not an Epilogue of .*made of steps"),  # type: ignore[arg-type]
    "epilogue, sm_80": (lambda: plan(64, 64, 64, arch="sm_80", epilogue=7), "epilogue is a int, not an"),  # type: ignore[arg-type]
    "streamed": (lambda: StreamedPlan.derive(64, 1, 256, weights=INT4, epilogue=7), "epilogue is a int, not an"),  # type: ignore[arg-type]
    "Combined": (lambda: Combined(b"x"), "expression of Combined must be a tuple"),  # type: ignore[arg-type]
    "Combined.of": (lambda: Combined.of(int), "a function of sums, ops and numbers: no signature found"),
    "Prologue": (lambda: Prologue(("x",), None), "operands of Prologue must be a tuple"),  # type: ignore[arg-type]
    "Prologue.of": (lambda: Prologue.of(max), "the function is called with .* no signature found"),
    "Custom.of": (lambda: Custom.of(max), "the function is called with .* no signature found"),
    "order": (lambda: plan(128, 128, 128, order=int), "order = <class 'int'>: a function of number, rows, columns"),
    # pictures
    "layout_svg": (lambda: view.layout_svg((4, 8)), r"what is drawn must be a layout, not \(4, 8\)"),
    "layout_table": (lambda: view.layout_table("4:1"), "what is drawn must be a layout"),
    "swizzle_svg": (lambda: view.swizzle_svg(np.zeros((2, 2))), "what is drawn must be a layout"),
    "tv_svg": (lambda: view.tv_svg((64, 64), (4, 8)), "what is drawn must be a layout"),
    "fragment_svg": (lambda: view.fragment_svg(3), "atom of fragment_svg must be a matrix atom, not 3"),
    "product_table": (lambda: view.product_table("sm_90a"), "atom of product_table must be a MmaAtom or a TiledMma"),
    "timeline_svg": (lambda: view.timeline_svg({}), 'a timeline must be a dict with "rows"'),
    "svg, path": (lambda: L.svg(3), "path of svg must be a path, as text or a pathlib.Path, not 3"),
    "svg, bytes": (lambda: L.svg(b"x.svg"), "path of svg must be a path"),
    "svg, null": (lambda: L.svg("\0.svg"), "path of svg must name a file"),
    "html, path": (lambda: PLAN.html({}), "path of html must be a path"),
    "html, empty": (lambda: L.html(""), "path of html must name a file, not ''"),
    "save": (lambda: view.save("<svg/>", ""), "path of save must name a file"),
    # orders of tiles: a fraction of a tile was cut off
    "visits_once": (
        lambda: schedule.visits_once([(0.9, 0), (1.2, 0)], (2, 1)),
        "an order of tiles must be an array of",
    ),
    "visits_once, text": (lambda: schedule.visits_once("f32", (2, 1)), "an order of tiles must be"),
    "visits_once, flat": (lambda: schedule.visits_once([0, 0, 1, 0], (2, 1)), "an order of tiles must be"),
    "reuse": (lambda: schedule.reuse([(0, 0.5)], 4), "an order of tiles must be an array of integers"),
    "schedule_svg": (lambda: view.schedule_svg([(0.5, 0)], (1, 1)), "an order of tiles must be an array of integers"),
    "encoded": (lambda: encoded([(0, 70000)]), "rows and columns 0 to 32767, not 0 to 70000"),
    "along": (lambda: schedule.Linear(np.zeros(2)), 'a schedule runs along "M" or "N", not array'),
    # checks
    "bank_conflicts": (lambda: checks.bank_conflicts(7, 4), "what is accessed must be byte addresses in a list"),
    "bank_conflicts, how": (
        lambda: checks.bank_conflicts([0, 4], L),
        "how, the bytes of each lane, must be",
    ),
    "bank_conflicts, array": (lambda: checks.bank_conflicts(L, np.array(4)), "accesses are AccessPatterns"),
    "bank_conflicts, far": (lambda: checks.bank_conflicts([1 << 63], 4), "an address must be at most"),
    "sectors": (lambda: checks.sectors(7, 4), "what is accessed must be byte addresses in a list"),
    "AccessPattern": (lambda: checks.AccessPattern("x", "ldmatrix", [[[0]]]), "coords of 'x' must be an int64 array"),
    "AccessPattern, kind": (
        lambda: checks.AccessPattern("x", np.zeros(2), np.zeros((1, 1, 1))),
        "no access of kind",
    ),
    "thread_access": (lambda: checks.thread_access(Layout((4, 8), (E(0), E(1)))), "leads to coordinates"),
    "shared_memory_of": (
        lambda: checks.shared_memory_of("sm_90a", (1,), 4, 4),
        "parts of shared_memory_of must be",
    ),
    # atoms
    "instruction_descriptor": (lambda: atoms.instruction_descriptor(64), "atom must be a matrix atom"),
    "operand_read": (lambda: atoms.operand_read({}, "A"), "atom must be a matrix atom, as wgmma makes, not {}"),
    "atoms": (lambda: atoms.atoms(np.arange(4)), r"no target array\(\[0, 1, 2, 3\]\)"),
    "widest": (lambda: atoms.widest(Layout((dim("M"), 4)), "bf16"), "needs offsets that are numbers"),
    # plans and the emulator
    "does": (lambda: PLAN.does([]), r"a Sm90Plan has no verb \[\]: .*check"),
    "emulate": (lambda: emulate(L), "the emulator takes what cute.compile returned, not Layout"),
    "emulate, text": (lambda: emulate(".version 8.0"), "PTX, as text or as a file, is for emulate_ptx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_foreign_object_is_refused_by_name(name: str) -> None:
    call, said = REFUSED[name]
    with pytest.raises(LayoutError, match=said) as refused:
        call()
    assert len(str(refused.value)) < 600


def test_what_is_no_compiled_function_is_a_type_error_too() -> None:
    for call in (emulate, mutate):
        with pytest.raises(TypeError) as refused:
            call(datetime.timedelta(1))
        assert isinstance(refused.value, NotCompiledError)


def test_arrays_under_wide_swizzles_have_the_values_of_ints() -> None:
    x = np.array([0, 5, 1 << 40, (1 << 62) + 3])
    for swizzle in (Swizzle(3, 100, 3), Swizzle(3, 58, 3), Swizzle(2, 0, -40)):
        assert swizzle(x % (1 << 20)).tolist() == [swizzle(int(i)) for i in x % (1 << 20)], swizzle


def test_values_that_leave_64_bits_are_compared_exactly() -> None:
    """The sums of offset and value wrapped in silence, or ended in an OverflowError."""
    tile, far = Swizzle(1, 0, 1) @ Layout(4), Layout(2, 1 << 62)
    assert tile.disjoint(Layout(4), 10**30).ok
    assert tile.disjoint(far, FAR).ok
    assert not (Swizzle(1, 0, 1) @ far).disjoint(Layout(2), 1 << 62).ok
    assert TILE.disjoint(TILE, 512).ok
