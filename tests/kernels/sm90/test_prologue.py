"""Products of a function of A's elements: proven, by the NumPy executor, and compiled in the emulator."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.atoms import MmaAtom, wgmma
from layoutgemm.dtypes import dtype
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Prologue, PrologueOperand, Promoted, Sm90Config, Sm90Plan, Triangles
from layoutgemm.kernels.epilogue.chain import Activation, Bias, Epilogue
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.ragged import AlongK, Ragged
from layoutgemm.kernels.sm90.choose.prologue import prologue_config
from layoutgemm.kernels.sm90.operands import fragment_loads
from layoutgemm.kernels.sm90.operands.fragment_loads import FragmentLoads, fragment_load_checks, load_checks
from tests import needs

# Of an element of 0 beyond K it makes 1, or a NaN of 0 * inf: neither may reach the sums.
NORM = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w + ops.where(k > i, 1.0, 0.0), rstd="m", w="k:bf16")
CLAMPED = Prologue.of(lambda x, i, k, ops, rstd, w: ops.minimum(x * rstd * w, 2.0) + 1.0 / x, rstd="m", w="k:bf16")
# Its results are a triangle, and its A is full.
MASKED = Prologue.of(lambda x, i, k, ops, rstd, w: ops.where(k >= i, x * rstd * w, 0.0), rstd="m", w="k:bf16")
INVERSE = Prologue.of(lambda x, i, k, ops: 1.0 / x)
ONE = Sm90Config((64, 32), consumers=1, loader="warp", stages=2)
TURNED = Sm90Config((64, 32), consumers=1, loader="warp", stages=2, cluster=(2, 1), turn_last_pair=True)
CASES: dict[str, tuple[Prologue, dict[str, Any]]] = {
    "one block": (NORM, {"config": ONE}),
    "columns": (NORM, {"a": "bf16:col", "b": "bf16", "config": Sm90Config((128, 64), loader="warpgroup")}),
    "blocks, cluster": (NORM, {"m": 300, "config": Sm90Config((256, 32), cluster=(2, 1), stages=2)}),
    "parts of K": (NORM, {"k": 200, "config": Sm90Config((64, 32), consumers=1, loader="warp", split=2,
                                                       one_tile_per_cluster=True)}),
    "batch": (NORM, {"batch": 3, "config": ONE}),
    "half precision": (INVERSE, {"a": "f16", "b": "f16:col", "config": Sm90Config((64, 32), consumers=1, stages=3,
                                                                                  store="direct")}),
    "8 bits": (CLAMPED, {"a": "e4m3", "b": "e4m3:col", "config": ONE}),
    "8 bits, two blocks": (CLAMPED, {"a": "e5m2", "b": "e4m3:col", "m": 140, "config": Sm90Config((128, 64),
                                                                                               loader="warpgroup")}),
    "order": (NORM, {"m": 100, "n": 100, "config": ONE, "order": "lower"}),
    "triangle": (MASKED, {"config": ONE, "triangles": Triangles("upper")}),
    "an odd K tile": (NORM, {"config": Sm90Config((64, 32), consumers=1, tile_k=48, stages=3)}),
    "short K tiles": (NORM, {"config": Sm90Config((64, 32), consumers=1, tile_k=32, stages=3)}),
}  # fmt: skip
WITH_LOADER = Sm90Config((128, 64), loader="warpgroup")
EMULATED = ("one block", "columns", "blocks, cluster", "half precision")
EMULATED_LATE = ("triangle", "an odd K tile", "8 bits, two blocks")


def derived(name: str) -> Sm90Plan:
    prologue, given = CASES[name]
    sizes = {"m": 72, "n": 40, "k": 136, "b": "bf16:col", **given}
    return Sm90Plan.derive(**sizes, c="f32", prologue=prologue)


def operands(made: Sm90Plan) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """A, B, the prologue's vectors, and the product in float64."""
    rng, kind = np.random.default_rng(0), made.a.dtype

    def drawn(*shape: int, like: Any = kind) -> np.ndarray:
        lead = (made.batch,) if made.batch > 1 else ()
        return like.decode(like.encode(rng.uniform(0.5, 2, (*lead, *shape)).astype(np.float32))).astype(np.float32)

    a, b = drawn(made.m, made.k), drawn(made.k, made.n, like=made.b.dtype)
    names = made.prologue.names if made.prologue is not None else ()
    given = {"rstd": drawn(made.m, like=dtype("f32")), "w": drawn(made.k, like=dtype("bf16"))} if names else {}
    assert made.prologue is not None
    computed = kind.decode(kind.encode(made.prologue.reference(a, given))).astype(np.float64)
    return a, b, given, computed @ b.astype(np.float64)


@pytest.mark.parametrize("name", CASES)
def test_the_executor_and_the_proofs(name: str) -> None:
    made = derived(name)
    assert made.check()
    a, b, given, want = operands(made)
    got = made.run(a, b, given=given, device="reference").c
    stored = np.asarray(got) != 0 if name == "order" else np.ones_like(want, bool)
    assert stored.any()
    assert np.abs((np.asarray(got) - want)[stored]).max() <= 1e-5 * np.abs(want).max()


@needs.DSL
@pytest.mark.parametrize("name", [*EMULATED, *[pytest.param(name, marks=pytest.mark.slow) for name in EMULATED_LATE]])
def test_the_compiled_kernel(name: str) -> None:
    made = derived(name)
    a, b, given, want = operands(made)
    got = made.run(a, b, given=given, device="emulator").c
    assert np.abs(np.asarray(got) - want).max() <= 1e-5 * np.abs(want).max()


@needs.DSL
def test_a_prologue_and_an_epilogue() -> None:
    """Words of both follow each other; four elements of 8 bits are a register."""
    epilogue = Epilogue(Bias(), Activation("relu"))
    asked = {"a": "e4m3", "b": "e4m3:col", "c": "f32", "config": ONE, "prologue": CLAMPED}
    made = Sm90Plan.derive(72, 40, 72, **asked, epilogue=epilogue)
    a, b, given, want = operands(made)
    bias = np.linspace(-200, 200, 40, dtype=np.float32)
    got = made.run(a, b, given={**given, "bias": bias}, device="emulator").c
    assert np.abs(np.asarray(got) - np.maximum(want + bias, 0)).max() <= 1e-5 * np.abs(want).max()


GROUPS: dict[str, tuple[Ragged, list[int], Sm90Config]] = {
    "offsets": (Ragged.of(4), [0, 70, 70, 75, 140], ONE),
    "one vector along K": (Ragged.of(4), [0, 1, 130, 200, 201], WITH_LOADER),
    "ends": (Ragged.of(4, ends=True), [0, 70, 70, 75, 140], ONE),
    "turns": (Ragged.of(4), [0, 70, 70, 75, 270], TURNED),
    "masked": (Ragged.of(4, masked=True), [70, 0, 100, 1], ONE),
}


def of_groups(name: str, device: str) -> None:
    """Rows of each group by numbers and a matrix B of their own."""
    ragged, numbers, config = GROUPS[name]
    rng, count, (n, k) = np.random.default_rng(0), 4, (40, 136)
    m, lead = (100, (count,)) if ragged.masked else (numbers[-1], ())
    made = Sm90Plan.derive(m, n, k, batch=count, b="bf16:col", c="f32", config=config, prologue=NORM, ragged=ragged)
    assert made.check() and made.device_kernel.endswith("Sm90RaggedPrologueKernel")

    def drawn(*shape: int, kind: str = "bf16") -> np.ndarray:
        like = dtype(kind)
        return like.decode(like.encode(rng.uniform(0.5, 2, shape).astype(np.float32))).astype(np.float32)

    a, b, rstd = drawn(*lead, m, k), drawn(count, k, n), drawn(*lead, m, kind="f32")
    w = drawn(k) if name == "one vector along K" else drawn(count, k)
    words = np.asarray(numbers[1:] if ragged.ends else numbers, np.int32)
    given = {"rstd": rstd, "w": w, ragged.name: words}
    got = np.asarray(made.run(a, b, given=given, device=device).c)
    for e in range(count):
        rows = slice(0, numbers[e]) if ragged.masked else slice(numbers[e], numbers[e + 1])
        of_a, of_rows, found = (x[e] if ragged.masked else x for x in (a, rstd, got))
        computed = NORM.reference(of_a, {"rstd": of_rows, "w": w if w.ndim == 1 else w[e]})
        want = made.a.dtype.decode(made.a.dtype.encode(computed)).astype(np.float64)[rows] @ b[e].astype(np.float64)
        assert np.abs(found[rows] - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_rows(name: str) -> None:
    of_groups(name, "reference")


@pytest.mark.gpu
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_rows_on_a_gpu(name: str) -> None:
    of_groups(name, "cuda")


@needs.DSL
def test_the_compiled_kernel_of_groups() -> None:
    of_groups("turns", "emulator")


def test_several_products_of_one_function() -> None:
    how = Combined.of(lambda g, u, ops: g * u)
    config = Sm90Config((64, 64), consumers=1, loader="warp")
    made = Sm90Plan.derive(72, 40, 136, b="bf16:col", c="f32", config=config, prologue=NORM, gated=how)
    assert made.check()
    a, b, given, want = operands(made)
    got = made.run(a, b, given={**given, "b1": b}, device="reference").c
    assert np.abs(np.asarray(got) - want * want).max() <= 1e-5 * np.abs(want * want).max()


def test_the_front_door_says_what_it_costs() -> None:
    made = plan(4096, 4096, 4096, b="bf16:col", prologue=NORM)
    assert isinstance(made, Sm90Plan) and made.tile == (128, 256, 64) and made.check()
    said = made.explain()
    assert "a = ((x * rstd) * w) + where(k > i, 1.0, 0.0), rounded to bf16" in said
    assert "16 time(s) for each element: once for each tile of 256 columns" in said
    assert "w: bf16, a number a column, read in each K tile" in said and "fragments and numbers of a prologue" in str(
        made.check()
    )


# Infinite where A is filled with zeros: a NaN of B's zeros there.
DIVIDED = Prologue.of(lambda x, i, k, ops, rstd, w: rstd * w / x + ops.where(k > i, 1.0, 0.0), rstd="m", w="k:bf16")
IN_PARTS = Sm90Config((64, 32), consumers=1, loader="warp", split=2, one_tile_per_cluster=True)
# A's order, configuration; of groups along K the offsets, of two pairs the second K.
SHARES: dict[str, tuple[str, Sm90Config, list[int] | int]] = {
    "along K": ("col", ONE, [0, 70, 70, 75, 140]),
    "along K, two blocks": ("col", WITH_LOADER, [0, 1, 130, 139, 140]),
    "pairs": ("row", ONE, 72),
    "pairs, parts of K": ("row", IN_PARTS, 8),
}


def of_shares(name: str, device: str) -> None:
    """K in groups, whose first lines are in a K tile with others' last ones; or K of two pairs, the first computed."""
    order, config, share = SHARES[name]
    m, n, k, along_k = 72, 40, 140, isinstance(share, list)
    asked: dict[str, Any] = {"along_k": AlongK.of(4), "batch": 4} if along_k else {"pair": share}
    asked |= {"a": f"bf16:{order}", "b": "bf16" if along_k else "bf16:col"}
    made = Sm90Plan.derive(m, n, k, c="f32", config=config, prologue=DIVIDED, **asked)
    assert made.check() and ("the second pair's is multiplied as it is" in made.explain()) is not along_k
    rng, like = np.random.default_rng(0), dtype("bf16")

    def drawn(*shape: int) -> np.ndarray:
        return like.decode(like.encode(rng.uniform(0.5, 2, shape).astype(np.float32))).astype(np.float32)

    a, b, w, rstd = drawn(m, k), drawn(k, n), drawn(k), drawn(*[4] * along_k, m)
    given: dict[str, Any] = {"rstd": rstd, "w": w}
    if isinstance(share, list):
        given["offsets"] = np.asarray(share, np.int32)
        parts = [(rstd[e], slice(first, end)) for e, (first, end) in enumerate(pairwise(share))]
        more = 0.0
    else:
        given |= {"a2": -drawn(m, share), "b2": drawn(share, n)}
        parts, more = [(rstd, slice(k))], given["a2"].astype(np.float64) @ given["b2"]
    got = np.asarray(made.run(a, b, given=given, device=device).c).reshape(len(parts), m, n)
    # A GPU's quotient differs in its last bits, so that some elements round to the next bf16.
    room = 1e-6 if device == "emulator" else 2.0**-11
    for found, (numbers, of) in zip(got, parts, strict=True):
        computed = like.decode(like.encode(DIVIDED.reference(a, {"rstd": numbers, "w": w}))).astype(np.float64)
        want = computed[:, of] @ b[of].astype(np.float64) + more
        assert np.abs(found - want).max() <= room * max(1, np.abs(want).max())


@pytest.mark.parametrize("name", SHARES)
def test_groups_along_k_and_second_pairs(name: str) -> None:
    of_shares(name, "reference")


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHARES)
def test_groups_along_k_and_second_pairs_on_a_gpu(name: str) -> None:
    of_shares(name, "cuda")


@needs.DSL
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if "," in x else ()) for x in SHARES])
def test_the_compiled_kernel_of_groups_along_k_and_second_pairs(name: str) -> None:
    of_shares(name, "emulator")


@needs.DSL
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [{"a": "e4m3", "b": "e4m3:col"}, {"pair": 16}, {"along_k": AlongK.of(8), "batch": 8, "a": "bf16:col", "b": "bf16"}],
    ids=["8 bits", "pair", "along K"],
)  # fmt: skip
def test_large_tiles_have_no_local_memory(asked: dict[str, Any]) -> None:
    config = prologue_config(4096, 4096, 4096)
    made = Sm90Plan.derive(4096, 4096, 4096, **{"b": "bf16:col", **asked}, config=config, prologue=NORM)
    compiled = made.compile()
    sass = compiled.sass()
    assert made.tile[:2] == (128, 256) and compiled.resources.local_bytes == compiled.resources.stack_bytes == 0
    assert sass.local_memory == () and sass.serialised_wgmma(1) is None


def test_loads_that_give_another_element_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived("columns")
    assert all(check.ok for check in fragment_load_checks(made))
    right = FragmentLoads.byte

    def wrong(self: FragmentLoads, thread: Any, j: int, block: int, step: int) -> Any:
        return right(self, thread ^ 8, j, block, step)

    monkeypatch.setattr(FragmentLoads, "byte", wrong)
    assert "the tile has it at byte" in fragment_load_checks(made)[0].witness


def test_values_that_lie_otherwise_in_another_thread_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived("columns")
    right = MmaAtom.coords

    def wrong(self: MmaAtom, operand: str) -> Any:
        of = right(self, operand)
        return lambda thread, v: (of(thread, v)[0], of(thread, v)[1] + (np.asarray(thread) == 5) * (np.asarray(v) == 3))

    monkeypatch.setattr(MmaAtom, "coords", wrong)
    found = next(check for check in fragment_load_checks(made) if check.name == "numbers of fragments")
    assert "thread 5, value 3: 2 along k from its first, thread 0's 1" in found.witness


def test_groups_that_leave_a_fragment_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two groups of one instruction each were, of three."""
    made = derived("an odd K tile")
    assert all(check.ok for check in fragment_load_checks(made))
    monkeypatch.setattr(fragment_loads, "groups_of", lambda plan: (range(1), range(1, 2)))
    assert "of 3 instructions along K [0, 1] are issued" in fragment_load_checks(made)[2].witness


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": "i8", "b": "i8:col"}, "a is i8: a prologue is of bf16, f16, e4m3, e5m2; a function's results"),
        ({"config": Sm90Config((128, 64), schedule="pingpong", loader="warp")}, "takes 'cooperative'"),
        ({"mainloop": Promoted.of(lambda total, x: total + x, depth=64)}, "mainloop: no kernel has a main loop"),
        ({"weights": QuantizedFormat("int4", 128)}, "prologue: no kernel has a prologue and packed weights"),
        ({"prologue": lambda x: x}, "must be a Prologue or None"),
        ({"config": Sm90Config((64, 32), consumers=1, tile_k=16)}, "a K tile of 1 instruction(s), and one block"),
        ({"config": Sm90Config((64, 32), consumers=1, loaded_a_rows=8)}, "loaded_a_rows = 8"),
    ],
)  # fmt: skip
def test_what_has_no_prologue(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as found:
        Sm90Plan.derive(64, 64, 128, **{"b": "bf16:col", "config": ONE, "prologue": INVERSE, **arguments})
    assert message in str(found.value)


def test_a_prologue_is_restored_from_its_text() -> None:
    every = Prologue.of(
        lambda x, i, k, ops, s, w: ops.where((k // 3) % 5 ^ 1 < (i & 7 | 2), -x**3 / s, abs(ops.tanh(w)) + ops.float(i))
        * ops.largest(ops.minimum(x, 0.1), float("inf")),
        s="m:f16", w="k:bf16",
    )  # fmt: skip
    for prologue in (every, NORM, INVERSE):
        assert Prologue.from_json(prologue.to_json()) == prologue
    with pytest.raises(PlanError, match=r"an expression is \['add', \['x'\], \['i'\]\], and a trace would give"):
        Prologue.from_json('{"operands": {}, "value": ["add", ["x"], ["i"]]}')
    with pytest.raises(PlanError, match="mul of 1 parts"):
        Prologue.from_json('{"operands": {}, "value": ["mul", ["x"]]}')


def test_functions_and_operands_that_are_none() -> None:
    with pytest.raises(PlanError, match="axis 'n': 'm', a number a row of A, or 'k', one a column"):
        Prologue.of(lambda x, i, k, ops, s: x * s, s="n")
    with pytest.raises(PlanError, match="s is i8; a prologue's operand is one of f32, bf16, f16"):
        PrologueOperand("s", "m", "i8")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="named 'lda', as a parameter of every kernel is"):
        Prologue.of(lambda x, i, k, ops, lda: x * lda, lda="m")
    with pytest.raises(PlanError, match=r"^the function is called with \(x, i, k, ops, s\): "):
        Prologue.of(lambda x, i, k: x, s="m")
    made = derived("one block")
    a, b, given, _ = operands(made)
    with pytest.raises(OperandError, match="w is missing: the prologue reads rstd, w"):
        made.run(a, b, given={"rstd": given["rstd"]}, device="reference")
    with pytest.raises(OperandError, match=r"it takes f32 of shape \(72,\), one for each row of a"):
        made.run(a, b, given={**given, "rstd": given["rstd"][:-1]}, device="reference")
    with pytest.raises(PlanError, match="by the kernel of sm_100a: it multiplies A as it lies"):
        plan(64, 64, 64, arch="sm_100a", prologue=INVERSE)


def test_a_kernel_of_ones_own_takes_a_from_registers() -> None:
    registers = wgmma(64, "bf16", a_source="rmem")
    a, b = (levels.operand(name, 64, 64, registers) for name in "AB")
    assert a == levels.operand("A", 64, 64, wgmma(64, "bf16"))
    smem = levels.SharedMap.of(a.smem, b.smem, 4)
    assert levels.wgmma_report(registers, a, b, smem, None, *load_checks(FragmentLoads(registers, a.smem)))
