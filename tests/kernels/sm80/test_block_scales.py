"""Block-scaled products by mma.sync: exact in the executor and the emulator, their places proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import PlanError
from layoutgemm.kernels import Ragged, Sm80Config, Sm80Plan, Sm100Config
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale
from layoutgemm.kernels.operands.block_scales import FORMATS, blocked
from layoutgemm.kernels.run import ampere, tensor_maps
from layoutgemm.kernels.run.arrays import check_shapes, raw_bits
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.run.epilogue_operands import words_of_tensors
from layoutgemm.kernels.run.torch_tensors import launch_of, torch_type
from layoutgemm.kernels.sm80.block_scales import Sm80Scales
from tests import needs

PART, BYTES = Sm80Config((32, 64), warps=(2, 2), ahead=False), Sm80Config((64, 32), warps=(4, 1), align=(1, 1, 4))
SMALL, WIDE = Sm80Config((64, 64), warps=(2, 2)), Sm80Config((128, 128), warps=(2, 4))
HALVED: dict[str, Any] = {"epilogue": Epilogue(Scale())}
slow = [needs.DSL, needs.C_COMPILER, pytest.mark.slow]
STEPS: dict[str, Any] = {"epilogue": Epilogue(Scale()), "order": "lower"}
DEEP, LARGE = Sm80Config((64, 32), 256, warps=(4, 1)), Sm80Config((128, 256), warps=(2, 4))
FORMS: dict[str, tuple[str, tuple[int, int, int, int], Sm80Config | None, dict[str, Any]]] = {
    "nvfp4": ("nvfp4", (100, 72, 200, 1), SMALL, {}),
    "nvfp4 of two chunks of rows": ("nvfp4", (140, 260, 132, 1), LARGE, {}),
    "mxfp4, parts of a chunk, a batch": ("mxfp4", (70, 40, 540, 2), PART, {}),
    "mxfp4, 256 of K a stage": ("mxfp4", (40, 24, 520, 1), DEEP, {"c": "bf16"}),
    "mxfp8": ("mxfp8", (130, 72, 264, 1), WIDE, {}),
    "mxfp8 of two types, few rows": ("mxfp8", (10, 140, 136, 1), None, {"a": "e5m2", "b": "e4m3:col"}),
    "mxfp8, bytes of any alignment": ("mxfp8", (50, 33, 99, 1), BYTES, {}),
    "e4m3 times e2m1": ("mxf8f6f4", (130, 72, 272, 1), None, {"a": "e4m3", "b": "e2m1:col"}),
    "e3m2 times e2m3, a batch": ("mxf8f6f4", (40, 72, 144, 2), PART, {"a": "e3m2", "b": "e2m3:col"}),
    "mxfp8, an epilogue, an order": ("mxfp8", (80, 90, 72, 1), SMALL, STEPS),
}


def derived(name: str, arch: str = "sm_120a") -> Sm80Plan:
    scales, (m, n, k, batch), config, more = FORMS[name]
    kind = FORMATS[scales].types[0]
    made = plan(m, n, k, batch=batch, scales=scales, config=config, arch=arch,
                **{"a": kind, "b": f"{kind}:col", "c": "f32", **more})  # fmt: skip
    assert isinstance(made, Sm80Plan)
    return made


def operands(made: Sm80Plan) -> tuple[np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """A, B, scales of powers of two, and the exact product."""
    rng, scales = np.random.default_rng(3), made.scales
    assert scales is not None
    front = (made.batch,) * (made.batch > 1)
    a = rng.integers(-2, 3, (*front, made.m, made.k)).astype(np.float32)
    b = rng.integers(-2, 3, (*front, made.k, made.n)).astype(np.float32)
    shapes = scales.shapes((made.m, made.n, made.k, made.batch))
    given = {name: 2.0 ** rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    each = [np.repeat(x, scales.format.vector, -1)[..., : made.k].astype(np.float64) for x in given.values()]
    return a, b, given, (a * each[0]) @ (b * each[1].swapaxes(-1, -2))


def is_exact(name: str, device: str) -> None:
    made = derived(name)
    a, b, given, want = operands(made)
    if made.epilogue:
        given, want = {**given, "alpha": 0.5}, want / 2
    found = made.run(a, b, given=given, device=device, out=np.zeros(want.shape, np.float32)).c
    want = np.where(np.asarray(found) == 0, 0, want) if "order" in FORMS[name][3] else want
    assert np.array_equal(found, made.c.dtype.decode(made.c.dtype.encode(want)))
    assert np.count_nonzero(found) > want.size / 5


@pytest.mark.parametrize("name", FORMS)
def test_plans_hold_and_say_what_they_load(name: str) -> None:
    made = derived(name)
    assert made.check().require()
    assert "a word a lane for" in made.explain() and made.words[-2:] == ("scale_a", "scale_b")


@pytest.mark.parametrize("name", [x for x in FORMS if "epilogue" not in x])
def test_the_executor_is_exact(name: str) -> None:
    is_exact(name, "reference")


@needs.DSL
@needs.C_COMPILER
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "nvfp4")) for x in FORMS])
def test_the_kernel_is_exact(name: str) -> None:
    is_exact(name, "emulator")


NARROW: dict[str, tuple[tuple[int, int, int, int], Sm80Config | None, dict[str, Any]]] = {
    "e2m1 times rows of e5m2": ((70, 40, 176, 1), SMALL, {"a": "e2m1", "b": "e5m2"}),
    "e2m3 times e3m2, a batch": ((70, 40, 208, 2), PART, {"a": "e2m3", "b": "e3m2:col"}),
    "columns of e4m3 times e2m1": ((40, 136, 144, 1), None, {"a": "e4m3:col", "b": "e2m1:col", **HALVED}),
}


@pytest.mark.parametrize("device", ["reference", pytest.param("emulator", marks=[*slow])])
@pytest.mark.parametrize("name", NARROW)
def test_elements_of_six_and_four_bits_are_padded(name: str, device: str) -> None:
    (m, n, k, batch), config, more = NARROW[name]
    made = plan(m, n, k, batch=batch, arch="rtx-5090", config=config, **{"c": "f32", **more})
    assert made.check().require() and "kind::f8f6f4" in made.explain()
    front, rng = (batch,) * (batch > 1), np.random.default_rng(5)
    a, b = (  # all values of narrow types, whose sums are exact in float32
        np.asarray(kind.decode(rng.integers(0, 1 << kind.bits, (*front, *shape)).astype(np.uint8)), np.float32)
        if kind.bits < 8
        else rng.integers(-3, 4, (*front, *shape)).astype(np.float32)
        for kind, shape in zip((made.a.dtype, made.b.dtype), ((m, k), (k, n)), strict=True)
    )
    found = made.run(a, b, given={"alpha": 0.5} if made.epilogue else {}, device=device).c
    assert np.array_equal(found, np.matmul(a, b, dtype=np.float64) * (0.5 if made.epilogue else 1))


def test_values_elsewhere_fail_their_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived("mxfp4, parts of a chunk, a batch")
    wrong: dict[str, Any] = {
        "row": lambda self, operand, lane, warp, register: right["row"](self, operand, lane ^ 1, warp, register),
        "selected": lambda self, *at: (*right["selected"](self, *at)[:2], 0),
        "inside": lambda self, operand, first: first * 0,
        "vector": lambda self, operand, thread, number: right["vector"](self, operand, thread ^ 1, number),
    }
    right = {name: getattr(Sm80Scales, name) for name in wrong}
    for name, method in wrong.items():
        with monkeypatch.context() as patch:
            patch.setattr(Sm80Scales, name, method)
            failed = [check.name for check in made.check().checks if not check.ok]
        assert failed and all("SF" in check for check in failed), name
    smem = replace(made.smem, scales_offset=made.smem.scales_offset - 16)
    assert not replace(made, smem=smem).check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"a": "e4m3"}, "b is e4m3 row-major: factors lie along K"),
        ({"a": "e2m1", "b": "e2m1:col"}, "a is e2m1; scales = 'mxfp8': the kernel multiplies e4m3, e5m2"),
        ({"scales": "mxfp4", "a": "e2m1", "b": "e2m1:col", "k": 65}, "pad K to 66"),
        ({"scales": "mxf8f6f4", "b": "e2m3:col", "k": 72}, "16 elements of e2m3 are copied together; pad K to 80"),
        ({"scales": None, "a": "e2m1", "k": 64, "b": "bf16:col"}, "a is e2m1 and b bf16: no instruction multiplies"),
        ({"scales": None, "a": "e3m2:col"}, "a is e3m2 col-major: padded elements are copied along K here"),
        ({"scales": None, "a": "e3m2", "arch": "ada"}, "sm_89 has no mma.sync.*kind::f8f6f4"),
        ({"scales": None, "a": "e3m2", "gated": "silu"}, "gated: the mma.sync kernel has none of e3m2 and e4m3"),
        ({"scales": None, "a": "e2m1", "config": replace(SMALL, align=(4, 16, 16))}, "are 8 bytes; align A and B to 8"),
        ({"arch": "ada"}, "no mma.sync has block scales before sm_120a"),
        ({"config": Sm80Config((96, 128), warps=(2, 4))}, "96 of M in a tile: .* a multiple of that, or 16, 32 or 64"),
        ({"config": replace(SMALL, tile_k=64)}, "tile_k = 64: a chunk of mxfp8 has .* 128 of K"),
        (
            {"config": Sm80Config((64, 64), warps=(2, 2), loads="tma")},
            "loads = 'tma': .* block scales takes 'cp.async'",
        ),
        ({"config": Sm80Config((64, 64), warps=(2, 2), persistent=True)}, "persistent = True: .* takes False"),
        ({"ragged": Ragged.of(2), "batch": 2}, "ragged: the mma.sync kernel has none with scales = 'mxfp8'"),
        ({"gated": "silu"}, "gated: the mma.sync kernel has none"),
        ({"pair": 8}, "pair: the mma.sync kernel has none"),
    ],
)
def test_refusals(options: dict[str, Any], text: str) -> None:
    given = {"k": 128, "arch": "rtx-5090", "scales": "mxfp8", "a": "e4m3", "b": "e4m3:col", **options}
    if options.get("a") == "e4m3":
        del given["b"]
    with pytest.raises(PlanError, match=text):
        plan(64, 64, given.pop("k"), **given)


def test_the_rule_has_a_plan_for_few_rows_and_few_tiles() -> None:
    for form in FORMATS.values():
        kind = form.types[0]
        tiles = [
            plan(m, 4096, 512, arch="spark", a=kind, b=f"{kind}:col", c="bf16", scales=form).tile[:2]
            for m in (1, 16, 300, 4096)
        ]
        assert tiles == [(16, 128), (16, 128), (64, 64), (128, 128)]


@needs.DSL
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "e4m3 times e2m1"])
def test_the_code_matches_the_plan(name: str) -> None:
    made = derived(name, "sm_121a")
    compiled = made.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    assert sass.count("QMMA") + sass.count("OMMA") >= len(made.products) * made.steps
    words = [x for x in sass.instructions if x.opcode == "LDS" and not x.predicate]
    assert made.scales is not None and len(words) == (made.scales.chunks + 1) * made.scale_registers


@needs.DSL
@needs.C_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvfp4", "e4m3 times e2m1", "e3m2 times e2m3, a batch", "sm_100a"])
def test_torchs_tensors_are_read_where_they_lie(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """float4_e2m1fn_x2 has two elements of K, uint8 packed ones of 6 bits, and factors are blocked: CPU tensors."""
    torch = needs.module("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("torch has no 4-bit floats before 2.8: pip install -U torch")
    for path in (ampere, tensor_maps):
        monkeypatch.setattr(path, "resident", lambda index, blocks: 2)
    made: Any = (
        derived(name)
        if name != "sm_100a"
        else plan(
            40, 24, 128, arch="b200", a="e3m2", b="e2m1:col", c="f32", scales="mxf8f6f4", config=Sm100Config((128, 128))
        )
    )
    a, b, given, want = operands(made)

    def lying(operand: Any, lines: np.ndarray) -> Any:
        bits = raw_bits(operand, lines)
        pitch = -(-bits.shape[-1] // 32) * 32
        memory = torch.zeros(*bits.shape[:-1], pitch, dtype=torch.uint8)[..., : bits.shape[-1]]
        memory.copy_(torch.from_numpy(bits))
        return memory.view(torch_type(operand.dtype))

    factors = torch_type(made.scales.format.scale)
    scales = {
        name: torch.from_numpy(blocked(made.scales.format.scale.encode(x))).view(factors) for name, x in given.items()
    }
    left, right = lying(made.a, a), lying(made.b, b.swapaxes(-1, -2)).mT
    check_shapes(made, left, right)
    ready = launch_of(made, left, right, None, True, words_of_tensors(made, scales, left.device))
    memory = {x.data_ptr(): x.view(torch.uint8).numpy() for x in (*ready.read, *scales.values())}
    memory[ready.c.data_ptr()] = ready.c.numpy()
    done = emulate_launch(made, tuple([memory.get(word, word) for word in ready.arguments]), progress=False)
    assert not done.findings and not ready.copies and np.array_equal(ready.c.numpy(), want)
