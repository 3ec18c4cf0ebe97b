"""scaled_matmul with a quantised result: the bits of quantize, by the kernel in the emulator, and everywhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._subclasses.fake_tensor import FakeTensorMode

from layoutgemm import Sm90Config, quantize, scaled_matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels.sm90.choose.scaled_grouped import scaled_config
from layoutgemm.torch_op.scaled_grouped import api, kept, scaled
from tests.torch_op.test_operator import F32, emulated, integers
from tests.torch_op.test_scaled_kernels import E4M3, E5M2, scaled_case

BLOCK = "BlockWise1x128"
WIDE = Sm90Config((64, 128), consumers=1, stages=2, loader="warp", chunks=1)
N = 208  # more than one block, the last one ragged


def both(given: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """The quantised product, and the float32 one quantised, as floats and scales."""
    kind = options.pop("out_dtype", E4M3)
    c, scales = scaled_matmul(**given, out_dtype=kind, out_recipe=BLOCK, **options)
    assert c.dtype == kind and scales.dtype == F32
    wide = scaled_matmul(**given, out_dtype=F32, **options)
    want, of_want = quantize(wide.contiguous(), dtype=kind)
    assert scales.stride() == of_want.stride()
    return (c.float(), scales), (want.float(), of_want)


@pytest.mark.parametrize("name", ["rows", "tensors", "1x128, 128x128", "1x128, 1x128"])
def test_it_is_the_float32_product_quantised(name: str) -> None:
    given, _ = scaled_case(name, n=N)
    for options in ({}, {"bias": integers(N, dtype=F32), "activation": "gelu", "out_dtype": E5M2}):
        have, want = both(given, **options)
        assert torch.equal(have[0], want[0]) and torch.equal(have[1], want[1])


@pytest.mark.dsl
@pytest.mark.parametrize("name", ["rows", "1x128, 128x128"])
def test_the_kernel_has_the_same_bits_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept, into a new tensor and the caller's."""
    given, _ = scaled_case(name, n=N)
    bias = integers(N, dtype=F32)
    have, want = both(given, bias=bias)
    assert torch.equal(have[0], want[0]) and torch.equal(have[1], want[1])
    out = torch.zeros(70, 224).to(E4M3)[:, :N]
    with emulated(monkeypatch):
        for _ in (1, 2):
            c, scales = scaled_matmul(**given, bias=bias, out_dtype=E4M3, out_recipe=BLOCK, config=WIDE)
            assert torch.equal(c.float(), want[0]) and torch.equal(scales, want[1])
            c, scales = scaled_matmul(**given, bias=bias, out_dtype=E4M3, out_recipe=BLOCK, config=WIDE, out=out)
            assert c is out and torch.equal(c.float(), want[0]) and torch.equal(scales, want[1])
            monkeypatch.setattr(kept, "launch_of", None)
        assert kept.READY


@pytest.mark.dsl
def test_of_few_rows_a_kernel_of_its_own_quantises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's launch gives float32, and a second call checks nothing."""
    given, _ = scaled_case("1x128, 128x128", n=N)
    _, want = both(given)
    monkeypatch.setattr(scaled, "quantizes_apart", lambda *sizes, **options: True)
    with emulated(monkeypatch) as calls:
        for turn in (1, 2):
            c, scales = scaled_matmul(**given, out_dtype=E4M3, out_recipe=BLOCK)
            assert torch.equal(c.float(), want[0]) and torch.equal(scales, want[1])
            assert len(calls) == turn and {of.kind for every in kept.READY.values() for of in every.values()} == {F32}
            monkeypatch.setattr(api, "checked_scaled", None)


@pytest.mark.dsl
def test_a_batch_has_scales_of_each_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = scaled_case("1x128, 128x128", n=N)
    several = {name: torch.stack([x, x.flip(0)] if name == "scale_a" else [x, x]) for name, x in given.items()}
    several["b"] = several["b"].mT.contiguous().mT
    want = [both({**given, "scale_a": x})[1] for x in several["scale_a"]]
    with emulated(monkeypatch):
        c, scales = scaled_matmul(**several, out_dtype=E4M3, out_recipe=BLOCK, config=WIDE)
    for i in (0, 1):
        assert torch.equal(c[i].float(), want[i][0]) and torch.equal(scales[i], want[i][1])


def test_tiles_hold_whole_blocks() -> None:
    for m, n, k in ((16, 4096, 7168), (64, 512, 7168), (4096, 2112, 7168)):
        config = scaled_config(m, n, k, columns=128)
        assert config.tile[1] // config.split % 128 == 0
    assert scaled_config(4096, 2112, 7168).tile[1] % 128


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out_recipe": "RowWise"}, "out_recipe RowWise: a result is quantised by BlockWise1x128"),
        ({"out_recipe": BLOCK, "out_dtype": torch.bfloat16}, "out_recipe: out_dtype is torch.bfloat16"),
        ({"out_recipe": 3}, "out_recipe is a int"),
        ({"out_recipe": BLOCK, "activation": "swish"}, "activation 'swish'"),
    ],
)
def test_refusals_name_the_argument(options: Any, said: str) -> None:
    given, _ = scaled_case("rows", n=N)
    with pytest.raises(OperandError, match=said):
        scaled_matmul(**given, **{"out_dtype": E4M3, **options})


def test_compiled_mapped_and_of_nothing() -> None:
    given, _ = scaled_case("1x128, 128x128", n=N)
    options = {"out_dtype": E4M3, "out_recipe": BLOCK}
    want = scaled_matmul(**given, **options)
    compiled = torch.compile(lambda x: scaled_matmul(**x, **options), backend="aot_eager", fullgraph=True)
    for have, right in zip(compiled(given), want):
        assert torch.equal(have.float(), right.float())
    twice = {**given, "scale_a": torch.stack([given["scale_a"], 2 * given["scale_a"]])}
    c, scales = torch.vmap(lambda x: scaled_matmul(**{**given, "scale_a": x}, **options))(twice["scale_a"])
    assert torch.equal(c[1].float(), want[0].float()) and torch.equal(scales[1], 2 * want[1])
    empty = {**given, "a": given["a"][:0], "scale_a": given["scale_a"][:0]}
    assert [x.shape for x in scaled_matmul(**empty, **options)] == [(0, N), (0, 2)]


@pytest.mark.parametrize("activation", [None, "swiglu"])
def test_rows_of_every_way_have_the_pitch_that_quantize_gives(activation: Any) -> None:
    """A multiple of 16 bytes, as the next product's TMA needs: eager, traced without memory, and by the operator."""
    given, _ = scaled_case("1x128, 128x128", n=N)
    options = {"out_dtype": E4M3, "out_recipe": BLOCK, "activation": activation}
    pitch = -(-(N // (1 if activation is None else 2)) // 16) * 16

    def call(x: dict[str, Any]) -> Any:
        return scaled_matmul(**x, **options)

    with FakeTensorMode() as mode:
        traced = call({name: mode.from_tensor(x) for name, x in given.items()})
    operator, named = torch.ops.layoutgemm.scaled_matmul_quantized, {"out_dtype": E4M3, "activation": activation}
    ways = [call(given), traced, operator(**given, **named)]
    assert [[x.stride() for x in found] for found in ways] == [[(pitch, 1), ways[0][1].stride()]] * 3
    # torch's check of the schema multiplies results, which it does not with float8
    torch.library.opcheck(
        operator, (), {**given, **named}, test_utils=("test_faketensor", "test_autograd_registration")
    )
