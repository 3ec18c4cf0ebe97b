"""Block-scaled products of the Blackwell kernel: exact in the executor and the emulator, their places proven."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.dtypes import dtype
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Ragged
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale
from layoutgemm.kernels.operands.block_scales import FORMATS, blocked, scale_format
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.kernels.run.arrays import check_shapes
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.run.epilogue_operands import values_read, words_of_tensors, words_read
from layoutgemm.kernels.run.torch_tensors import launch_of
from layoutgemm.kernels.sm100.choose import choose_sm100
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests import needs

ALONE, WIDE = Sm100Config((128, 128), stages=2), Sm100Config((128, 256), stages=2, accumulators=1)
PAIR, WIDEST = Sm100Config((256, 128), stages=2), Sm100Config((256, 256), stages=2, accumulators=1)
FORMS: dict[str, tuple[str, tuple[int, int, int, int], Sm100Config, dict[str, Any]]] = {
    "nvfp4": ("nvfp4", (130, 72, 200, 1), ALONE, {}),
    "nvfp4, a pair, 256 columns": ("nvfp4", (300, 300, 540, 1), WIDEST, {}),
    "mxfp4, 256 columns, a batch": ("mxfp4", (30, 300, 540, 2), WIDE, {}),
    "mxfp4, a pair": ("mxfp4", (300, 72, 200, 1), PAIR, {"c": "bf16:col"}),
    "mxfp8 of two types": ("mxfp8", (40, 72, 264, 1), ALONE, {"a": "e5m2", "b": "e4m3:col"}),
    "mxfp8, a pair, a batch": ("mxfp8", (300, 140, 136, 2), PAIR, {"order": "lower"}),
    "nvfp4, a gate, a batch": ("nvfp4", (130, 256, 200, 2), Sm100Config(stages=2), {"gated": "relu"}),
    "e3m2 times e4m3": ("mxf8f6f4", (130, 72, 256, 1), ALONE, {"a": "e3m2", "b": "e4m3:col"}),
    "e5m2 times e2m1, a pair": ("mxf8f6f4", (140, 72, 128, 1), PAIR, {"a": "e5m2", "b": "e2m1:col", "c": "bf16"}),
    "mxfp8, 256 columns": ("mxfp8", (100, 300, 264, 1), WIDE, {"epilogue": Epilogue(Scale())}),
}


def derived(name: str) -> Sm100Plan:
    scales, (m, n, k, batch), config, more = FORMS[name]
    kind = FORMATS[scales].types[0]
    given = {"a": kind, "b": f"{kind}:col", "c": "f32", "arch": "sm_103a", **more}
    made = plan(m, n, k, batch=batch, scales=scales, config=config, **given)
    assert isinstance(made, Sm100Plan)
    return made


def operands(made: Sm100Plan) -> tuple[np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """A, B, scales of powers of two, and the exact product."""
    rng, scales = np.random.default_rng(3), made.scales
    assert scales is not None
    front = (made.batch,) * (made.batch > 1)
    a = rng.integers(-2, 3, (*front, made.m, made.k)).astype(np.float32)
    b = rng.integers(-2, 3, (*front, made.k, made.n * made.halves)).astype(np.float32)
    shapes = scales.shapes((made.m, made.n, made.k, made.batch))
    given = {name: 2.0 ** rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    each = [np.repeat(x, scales.format.vector, -1)[..., : made.k].astype(np.float64) for x in given.values()]
    want = (a * each[0]) @ (b * each[1].swapaxes(-1, -2))
    if made.gated is not None:
        want = np.maximum(want[..., : made.n], 0) * want[..., made.n :]
    return a, b, given, want


def is_exact(name: str, device: str) -> None:
    made = derived(name)
    made.check().require()
    a, b, given, want = operands(made)
    if made.epilogue:
        given, want = {**given, "alpha": 0.5}, want / 2
    out = np.zeros(want.shape, np.float32)
    found = made.run(a, b, given=given, device=device, out=out).c
    want = np.where(np.asarray(found) == 0, 0, want) if "order" in FORMS[name][3] else want
    assert np.array_equal(found, made.c.dtype.decode(made.c.dtype.encode(want)))
    assert np.count_nonzero(found) > want.size / 5


WITHOUT_STEPS = [name for name, (*_, more) in FORMS.items() if "epilogue" not in more]


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * ("two types" not in x)) for x in WITHOUT_STEPS]
)
def test_the_executor_is_exact(name: str) -> None:
    is_exact(name, "reference")


@needs.DSL
@needs.C_COMPILER
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "nvfp4")) for x in FORMS])
def test_the_kernel_is_exact(name: str) -> None:
    is_exact(name, "emulator")


PADDED: dict[str, dict[str, Any]] = {
    "e3m2 times e4m3": {"a": "e3m2", "b": "e4m3:col"},
    "e2m3, a batch": {"a": "e2m3", "b": "e2m3:col", "batch": 2},
    "e5m2 times e2m1, a pair": {"a": "e5m2", "b": "e2m1:col", "config": Sm100Config((256, 64), stages=2)},
    "e2m1 times rows of e4m3": {"a": "e2m1", "b": "e4m3", "epilogue": Epilogue(Scale())},
}


def is_padded_exact(name: str, device: str) -> None:
    options = {"config": Sm100Config((128, 32), stages=2), "c": "f32", "batch": 1, **PADDED[name]}
    made = plan(140, 72, 256, arch="b200", **options)
    assert made.check().require() and made.explain()
    front, rng = (made.batch,) * (made.batch > 1), np.random.default_rng(5)
    kinds = made.a.dtype, made.b.dtype  # all of their values, whose sums are exact in float32
    a, b = (
        np.asarray(kind.decode(rng.integers(0, 1 << kind.bits, (*front, *shape)).astype(np.uint8)), np.float32)
        if kind.bits < 8
        else rng.integers(-3, 4, (*front, *shape)).astype(np.float32)
        for kind, shape in zip(kinds, ((140, 256), (256, 72)), strict=True)
    )
    found = made.run(a, b, given={"alpha": 0.5} if made.epilogue else {}, device=device).c
    assert np.array_equal(found, np.matmul(a, b, dtype=np.float64) * (0.5 if made.epilogue else 1))


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * ("batch" in x)) for x in PADDED])
def test_elements_of_six_and_four_bits_are_padded(name: str) -> None:
    is_padded_exact(name, "reference")


def test_groups_of_rows_have_padded_elements() -> None:
    ends, rng = np.array([0, 3, 133, 140], np.int32), np.random.default_rng(0)
    a, b = rng.integers(-2, 3, (140, 256)).astype(np.float32), rng.integers(-2, 3, (3, 256, 24)).astype(np.float32)
    config = Sm100Config((128, 32), stages=2)
    made = plan(
        140, 24, 256, batch=3, arch="sm_103a", a="e2m3", b="e5m2:col", c="f32", ragged=Ragged.of(3), config=config
    )
    assert made.check().require()
    want = np.concatenate([a[first:end] @ b[e] for e, (first, end) in enumerate(pairwise(ends.tolist()))])
    assert np.array_equal(made.run(a, b, given={"offsets": ends}, device="reference").c, want)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) for x in PADDED])
def test_the_kernel_multiplies_padded_elements(name: str) -> None:
    is_padded_exact(name, "emulator")


def test_a_factor_elsewhere_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived("nvfp4")
    assert made.scales is not None and made.check().require()
    for changed in (
        replace(made.scales, column=made.scales.column - 4),
        replace(made.scales, chunks=made.scales.chunks // 2),
        replace(made.scales, groups=(2, 1)),
    ):
        assert not replace(made, scales=changed).check()
    gated = derived("nvfp4, a gate, a batch")
    assert gated.check().require() and not replace(gated, scales=replace(gated.scales, halves=1)).check()  # type: ignore[type-var]


def test_blocked_factors_are_cublas() -> None:
    """cuBLAS: the factor of row r and block c of a chunk lies at (r % 32) * 16 + r // 32 * 4 + c."""
    bits = np.arange(200 * 7, dtype=np.int64).reshape(200, 7).astype(np.uint8)
    found = blocked(bits)
    row, block = np.meshgrid(np.arange(200), np.arange(7), indexing="ij")
    chunk = row // 128 * 2 + block // 4
    at = chunk * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
    assert found.size == 2 * 2 * 512 and np.array_equal(found[at], bits)
    assert np.count_nonzero(found) == np.count_nonzero(bits)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scales": "nvfp"}, "do you mean 'nvfp4'"),
        ({"scales": "nvfp4", "a": "e4m3"}, "a is e4m3; scales = 'nvfp4': the kernel multiplies e2m1"),
        ({"scales": "mxfp8", "a": "e4m3"}, "b is e4m3 row-major: factors lie along K"),
        ({"scales": "mxfp4", "a": "e2m1", "b": "e2m1:col", "k": 65}, "pad K to 66"),
        ({"scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", "pair": 8}, "pair: no kernel has it with block scales"),
        ({"scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", "config": Sm100Config((128, 96))}, "chunks of 128"),
        ({"scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", "config": Sm100Config((128, 256))}, "tensor memory has 512"),
        ({"scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", "gated": "silu"}, "n = 64: the second half's factors begin"),
        (
            {"scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", "gated": "silu", "config": PAIR},
            "whole chunks of 128 .*128x256",
        ),
        (
            {"a": "e2m1", "k": 128},
            "b is e2m1 row-major: padded elements are copied along K here; a 'row' A and a 'col' B",
        ),
        (
            {"a": "e4m3", "b": "e2m3:col"},
            "k = 64: a tensor map of padded e2m3 has lines of whole 128 elements; pad K to 128",
        ),
        (
            {"a": "e3m2", "b": "e3m2:col", "k": 256, "config": Sm100Config(tile_k=256)},
            "tile_k = 256: a box of padded e3m2",
        ),
        ({"a": "e3m2", "b": "e4m3:col", "k": 128, "gated": "silu"}, "gated: no kernel has it with padded e3m2"),
        ({"a": "e3m2", "b": "bf16:col", "k": 128}, "a is e3m2 and b bf16: no instruction multiplies them"),
        (
            {"scales": "mxfp8", "a": "e3m2", "b": "e4m3:col"},
            "a is e3m2; scales = 'mxfp8': the kernel multiplies e4m3, e5m2",
        ),
        ({"scales": "mxfp8", "a": "e4m3", "arch": "hopper"}, "no wgmma has block scales"),
        ({"scales": "mxfp8", "a": "e4m3", "arch": "sm_121a"}, "b is e4m3 row-major: factors lie along K"),
        ({"scales": "mxfp8", "a": "e4m3", "arch": "ada"}, "before sm_120a"),
    ],
)
def test_refusals(options: dict[str, Any], text: str) -> None:
    given = {"k": 64, "arch": "blackwell", **options}
    with pytest.raises(PlanError, match=text):
        plan(64, 64, given.pop("k"), **given)


def test_scales_that_the_type_lacks_are_refused() -> None:
    made = derived("mxfp8 of two types")
    a, b, given, _ = operands(made)
    given["scale_b"][5, 2] = 3.0
    with pytest.raises(OperandError, match=r"scale_b\[5, 2\] is 3.0, and no ue8m0"):
        made.run(a, b, given=given, device="reference")
    with pytest.raises(OperandError, match=r"it takes float32 of shape \(40, 9\)"):
        made.run(a, b, given={**given, "scale_a": given["scale_a"][:, :8]}, device="reference")
    with pytest.raises(OperandError, match="scale_b is missing: the plan reads mxfp8 scales of A and B"):
        made.run(a, b, given={"scale_a": given["scale_a"]}, device="reference")


def test_a_tile_is_chosen_by_rounds_and_loads() -> None:
    assert choose_sm100(16, 4096)[0].tile == (128, 32)  # 16 tiles of 256 columns leave 132 SMs without one
    assert [choose_sm100(size, size)[0].tile for size in (512, 4096)] == [(256, 64), (256, 256)]
    assert choose_sm100(4096, 4096, scaled=True)[0].tile == (256, 128)
    assert choose_sm100(64, 512, unit=128)[0].tile[1] % 128 == 0
    assert scale_format("nvfp4").scale == dtype("ue4m3")


def test_a_second_pair_of_one_line_has_a_pitch_that_its_map_takes() -> None:
    values = {"a2": np.ones((33, 1), np.float32), "b2": np.ones((1, 41), np.float32)}
    for arch in ("sm_90a", "sm_100a"):
        made: Any = plan(33, 41, 1, arch=arch, pair=1, b="bf16:row")
        words = dict(zip(made.words, words_read(made, values_read(made, values))))
        assert words["ldb2"] * 2 % 16 == 0


@needs.DSL
@needs.C_COMPILER
@pytest.mark.slow
def test_torchs_tensors_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """float4_e2m1fn_x2 and float8_e4m3fn, two elements of K and blocked factors to a byte: CPU tensors for a GPU's."""
    torch = needs.module("torch")
    monkeypatch.setattr(tensor_maps, "resident", lambda index, blocks: 2)
    made = plan(130, 72, 192, arch="b200", a="e2m1", b="e2m1:col", c="f32", scales="nvfp4", config=ALONE)
    assert isinstance(made, Sm100Plan) and made.scales is not None
    a, b, given, want = operands(made)

    def packed(x: np.ndarray) -> Any:
        codes = made.a.dtype.encode(x)
        return torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)

    scales = {
        name: torch.from_numpy(blocked(made.scales.format.scale.encode(x))).view(torch.float8_e4m3fn)
        for name, x in given.items()
    }
    left, right = packed(a), packed(np.ascontiguousarray(b.T)).T
    check_shapes(made, left, right)
    ready = launch_of(made, left, right, None, True, words_of_tensors(made, scales, left.device))
    memory = {x.data_ptr(): x.view(torch.uint8).numpy() for x in (*ready.read, *scales.values())}
    memory[ready.c.data_ptr()] = ready.c.numpy()
    done = emulate_launch(made, tuple([memory.get(word, word) for word in ready.arguments]), progress=False)
    assert not done.findings and not ready.copies and np.array_equal(ready.c.numpy(), want)
