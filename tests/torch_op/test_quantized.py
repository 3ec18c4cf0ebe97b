"""quantized_matmul and QuantizedLinear: values, gradients, compilers, checkpoints, refusals."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    explain_matmul,
    quantized_matmul,
)
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import FeatureParts, Sm90Config, StreamedConfig
from layoutgemm.kernels.quantized.checkpoints import (
    from_awq,
    from_awq_gemv,
    from_compressed_tensors,
    from_gptq,
    order_of_groups,
)
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.nn import QuantizedLinear
from layoutgemm.torch_op import launch as launches
from layoutgemm.torch_op.emulated import memory_at
from layoutgemm.torch_op.quantized import (
    QuantizedExperts,
    experts,
    launch,
    operators,
    quantized_grouped_matmul,
)
from layoutgemm.torch_op.quantized import dense as unpacking
from layoutgemm.torch_op.quantized.configs import packed_config_of, packed_text
from layoutgemm.torch_op.quantized.dense import facts_of
from layoutgemm.torch_op.quantized.experts import experts_plan
from layoutgemm.torch_op.quantized.launch import (
    QuantizedCall,
    arguments_of,
    mma_arguments_of,
    mma_plan_of,
    plan_of,
    readable,
    streamed_plan_of,
)
from tests.torch_op.host_launches import bare_launches

FORMATS = [
    QuantizedFormat("int4", 128), QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("e4m3"),
    QuantizedFormat("int8", 64),
]  # fmt: skip


def weight_of(fmt: QuantizedFormat, kind: torch.dtype = torch.bfloat16) -> QuantizedWeight:
    dense = torch.randn(100, 384, generator=torch.Generator().manual_seed(0))
    return QuantizedWeight.quantize(dense, fmt, kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_and_gradients_match_float64(fmt: QuantizedFormat, kind: torch.dtype) -> None:
    weight = weight_of(fmt, kind)
    dense = weight.dense(torch.float64)
    assert np.array_equal(weight.plain().dense().astype(np.float32), dense.numpy().astype(np.float32))
    exact = fmt.group is None or (fmt.code, fmt.group) == ("int4", 128)  # ten rows: scales multiply sums
    rounded = dense if exact else dense.to(kind).double()  # what is multiplied
    x = torch.randn(2, 5, 384).to(kind).requires_grad_()
    bias = torch.randn(100).to(kind).requires_grad_()
    found = quantized_matmul(x, weight, bias=bias, activation="silu")
    found.sum().backward()
    wide, other = x.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    before = wide @ rounded.T + other
    before.retain_grad()
    want = torch.nn.functional.silu(before)
    want.sum().backward()
    unit = torch.finfo(kind).eps
    assert torch.allclose(found.double(), want, rtol=unit, atol=unit)
    sums = quantized_matmul(x.detach(), weight, out_dtype=torch.float32)
    assert torch.allclose(sums.double(), wide.detach() @ rounded.T, rtol=2.0**-23, atol=1e-6)
    terms = before.grad.abs() @ rounded.abs()  # each of them is rounded, and their sum
    assert bool(((x.grad.double() - wide.grad).abs() <= unit * (terms + wide.grad.abs())).all())
    assert torch.allclose(bias.grad.double(), other.grad, rtol=8 * unit, atol=8 * unit)


def test_compilers_and_vmap_see_one_operator() -> None:
    weight, x = weight_of(FORMATS[0]), torch.randn(3, 4, 384).bfloat16()
    want = quantized_matmul(x, weight)
    compiled = torch.compile(lambda x: quantized_matmul(x, weight), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), want)
    assert torch.equal(torch.vmap(lambda x: quantized_matmul(x, weight))(x), want)
    assert quantized_matmul(x.to("meta"), weight.to("meta")).shape == (3, 4, 100)
    assert quantized_matmul(x[:, :0], weight).shape == (3, 0, 100)


def test_a_linear_layer_is_quantised_moved_and_saved() -> None:
    layer = torch.nn.Linear(256, 64, dtype=torch.bfloat16)
    made = QuantizedLinear.from_linear(layer, QuantizedFormat("int8"))
    x = torch.randn(7, 256).bfloat16()
    assert (made(x) - layer(x)).abs().max() < 0.05
    assert made.half().scales.dtype == torch.float32
    other = QuantizedLinear.from_linear(torch.nn.Linear(256, 64, dtype=torch.bfloat16), QuantizedFormat("int8"))
    other.load_state_dict(QuantizedLinear.from_linear(layer, QuantizedFormat("int8")).state_dict())
    assert torch.equal(other.dequantized(), QuantizedLinear.from_linear(layer, QuantizedFormat("int8")).dequantized())


def words(codes: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Codes as 32-bit words along an axis: nibble i holds the code of column order[i]."""
    moved = np.moveaxis(codes, axis, -1).astype(np.uint32)
    parts = moved.reshape(*moved.shape[:-1], -1, 8)[..., list(order)]
    return np.moveaxis((parts << (4 * np.arange(8, dtype=np.uint32))).sum(-1).astype(np.uint32), -1, axis).view(
        np.int32
    )


def test_checkpoints_become_the_weights_that_they_hold() -> None:
    rng = np.random.default_rng(5)
    codes, zeros = rng.integers(0, 16, (64, 256)).astype(np.uint8), rng.integers(1, 16, (64, 2))
    scales = rng.integers(1, 9, (64, 2)) / 64
    want = (codes - np.repeat(zeros, 128, axis=1).astype(float)) * np.repeat(scales, 128, axis=1)
    gptq = from_gptq(words(codes.T, 0), words(zeros.T - 1, 1), scales.T, np.arange(256) // 128)
    awq = from_awq(words(codes.T, 1, (0, 2, 4, 6, 1, 3, 5, 7)), words(zeros.T, 1, (0, 2, 4, 6, 1, 3, 5, 7)), scales.T)
    compressed = from_compressed_tensors(words(codes, 1), scales, words(zeros, 0))
    filled = [np.pad(x, ((0, 0), (0, 6))) for x in (zeros, scales)]
    gemv = from_awq_gemv(words(codes, 1), words(filled[0], 1), filled[1])
    for found in (gptq, awq, gemv, compressed):
        assert np.array_equal(found.dense(), want)
    assert from_compressed_tensors(words(codes, 1), scales).format == QuantizedFormat("int4", 128)
    tensors = {"qweight": words(codes.T, 0), "qzeros": words(zeros.T - 1, 1), "scales": scales.T}
    layer = QuantizedLinear.from_checkpoint({name: torch.from_numpy(x) for name, x in tensors.items()}, "gptq")
    assert np.array_equal(layer.weight.plain().dense(), want)
    for g_idx, said in (
        ((np.arange(256) // 128)[::-1], r"g_idx\[0\] = 1: groups are not in order"),
        (np.zeros(256, np.int64), "group 0 has 256 of 256 input features: 128 each"),
    ):
        with pytest.raises(LayoutError, match=said):
            from_gptq(tensors["qweight"], tensors["qzeros"], tensors["scales"], g_idx)


def test_zero_points_of_gptq_take_one_from_the_next() -> None:
    """GPTQModel (utils/model.py) subtracts 0x11111111 from a word: 0 borrows from the next zero point."""
    zeros = np.array([[0, 0, 8, 15, 0, 1, 9, 0], [3, 0, 0, 0, 7, 8, 9, 10], [7] * 8, [8] * 7 + [0]])
    codes, scales = np.arange(512).reshape(8, 64) % 16, np.full((8, 4), 0.5)
    stored = words(zeros, 1).view(np.uint32) - np.uint32(0x11111111)
    found = from_gptq(words(codes.T, 0), stored.view(np.int32), scales.T)
    assert np.array_equal(found.dense(), (codes - zeros.T.repeat(16, 1)) * 0.5)
    lost = stored.copy()
    lost[1, 0] |= np.uint32(0xFFFFFFF0)  # AutoGPTQ stores -1 in all bits from its place on
    with pytest.raises(LayoutError, match=r"qzeros 0xfffffff2 at \(1, 0\): zero point 1 of the word is 0, .*gptq_v2"):
        from_gptq(words(codes.T, 0), lost.view(np.int32), scales.T)
    signed = from_compressed_tensors(words(codes, 1), scales, (zeros.T - 8).astype(np.int8))
    assert np.array_equal(signed.dense(), found.dense())


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_has_the_order_of_its_input_features(assign: bool) -> None:
    weight = QuantizedWeight.quantize(torch.randn(64, 256), QuantizedFormat("int4", 128))
    order = torch.randperm(256)
    ordered, plain = QuantizedLinear(weight, order=order), QuantizedLinear(weight)
    x = torch.randn(3, 256).bfloat16()
    for one, other in ((ordered, plain), (plain, ordered)):
        made = copy.deepcopy(other)
        made.load_state_dict(one.state_dict(), strict=False, assign=assign)
        assert torch.equal(made(x), one(x)) and not torch.equal(made(x), other(x))
        with torch.device("meta"):
            empty = torch.nn.Linear(256, 64, bias=False, dtype=torch.bfloat16)
        meta = QuantizedLinear.from_linear(empty, weight.format)
        meta.load_state_dict(one.state_dict(), assign=True)
        assert torch.equal(meta(x), one(x))


def test_autocast_to_another_type_than_the_weights_take_is_named() -> None:
    layer = QuantizedLinear(QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int8")))
    with torch.autocast("cpu", torch.float16), pytest.raises(LayoutError, match=r"take one of dtype=torch\.bfloat16"):
        layer(torch.randn(2, 128))


def gptq_dequantised(given: dict[str, Any], bits: int, offset: int) -> Any:
    """Weights (N, K) of a GPTQ checkpoint: shift, mask, (code - zero) * scale, by torch in int64 and float64."""
    shifts, mask = torch.arange(0, 32, bits), (1 << bits) - 1
    codes = (given["qweight"].long()[:, None, :] >> shifts[:, None] & mask).flatten(0, 1)
    zeros = (given["qzeros"].long()[:, :, None] >> shifts & mask).flatten(1) + offset
    groups = given["g_idx"].long() if "g_idx" in given else torch.arange(len(codes)) * len(zeros) // len(codes)
    return ((codes - zeros[groups]) * given["scales"].double()[groups]).mT


@pytest.mark.parametrize("acts", [False, True], ids=["in order", "act-order"])
@pytest.mark.parametrize(("kind", "bits"), [("gptq", 4), ("gptq_v2", 4), ("gptq", 8), ("gptq_v2", 8)])
def test_gptq_checkpoints_equal_their_own_formula(kind: str, bits: int, acts: bool) -> None:
    rng, offset = np.random.default_rng(bits), int(kind == "gptq")
    whole = 256 // (32 // bits)
    given = {
        "qweight": torch.from_numpy(rng.integers(-(2**31), 2**31, (whole, 64)).astype(np.int32)),
        "scales": torch.from_numpy(rng.integers(1, 9, (4, 64)) / 64).half(),
    }
    zeros = rng.integers(1, 16, (4, 64)) if bits == 4 else np.full((4, 64), 128)
    shifted = (zeros - offset).reshape(4, -1, 32 // bits) << np.arange(0, 32, bits)
    given["qzeros"] = torch.from_numpy(shifted.sum(-1).astype(np.uint32).view(np.int32))
    if acts:
        given["g_idx"] = torch.from_numpy(rng.permutation(np.arange(256) // 64).astype(np.int32))
    layer = QuantizedLinear.from_checkpoint(given, kind, dtype=torch.float16)
    assert layer.format == QuantizedFormat("int4" if bits == 4 else "int8", 64, zeros=bits == 4)
    assert torch.equal(layer.dequantized().double(), gptq_dequantised(given, bits, offset).half().double())
    if bits == 8:
        with pytest.raises(LayoutError, match=r"zero point 1\d\d at \(0, 0\) of 8-bit codes"):
            QuantizedLinear.from_checkpoint({**given, "qzeros": given["qzeros"] + 1}, kind)
    with pytest.raises(LayoutError, match=r"qzeros has shape .*: 64 codes would have \d+ bits each; known are 4 and 8"):
        QuantizedLinear.from_checkpoint({**given, "qzeros": given["qzeros"].repeat(1, 8 // bits * 2)}, kind)


@pytest.mark.parametrize(("k", "groups", "group"), [(512, 2, 128), (192, 1, 64), (288, 1, 32), (144, 3, 16)])
def test_groups_of_checkpoints_that_are_no_known_size_become_smaller_ones(k: int, groups: int, group: int) -> None:
    rng = np.random.default_rng(k)
    codes, zeros = rng.integers(0, 16, (16, k)), rng.integers(1, 16, (16, groups))
    scales = rng.integers(1, 9, (16, groups)) / 64
    found = from_gptq(words(codes.T, 0), words(zeros.T - 1, 1), scales.T)
    assert found.format == QuantizedFormat("int4", group, zeros=True)
    want = (codes - zeros.repeat(k // groups, 1)) * scales.repeat(k // groups, 1)
    assert np.array_equal(found.dense(), want)
    with pytest.raises(LayoutError, match="1 groups of K = 24: known are groups of"):
        from_gptq(words(codes.T[:24], 0), words(zeros.T[:1] - 1, 1), scales.T[:1])


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["mxfp4", "MXFP4", "NVFP4"])
def test_float4_checkpoints_equal_their_own_formula(kind: str) -> None:
    """The low half of a byte comes first; NVFP4 divides its scales by one number."""
    rng, group = np.random.default_rng(3), 16 if kind == "NVFP4" else 32
    packed = torch.from_numpy(rng.integers(0, 256, (64, 128)).astype(np.uint8))
    exponents = torch.from_numpy(rng.integers(120, 134, (64, 256 // group)).astype(np.uint8))
    scales, given = torch.exp2(exponents.double() - 127), {"weight_packed": packed, "weight_scale": exponents}
    if kind == "NVFP4":
        eight = torch.from_numpy(rng.integers(1, 9, (64, 16)) / 8).to(torch.float8_e4m3fn)
        scales = eight.double() / 4
        given |= {"weight_scale": eight, "weight_global_scale": torch.tensor([4.0])}
    elif kind == "mxfp4":
        given = {"blocks": packed.view(64, 8, 16), "scales": exponents}
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    want = E2M1[codes.long()] * scales.repeat_interleave(group, 1)
    read_as = "mxfp4" if kind == "mxfp4" else "compressed-tensors"
    layer = QuantizedLinear.from_checkpoint(given, read_as, dtype=torch.bfloat16)
    assert layer.format == QuantizedFormat("e2m1", group) and torch.equal(layer.dequantized().double(), want)
    if kind == "mxfp4":
        for wrong, text in (
            ({"blocks": packed.view(1, 64, 8, 16)}, "of several experts each one alone"),
            ({"scales": torch.full_like(exponents, 255)}, r"scales 255 at \(0, 0\) is NaN"),
            ({"scales": exponents[:, :3]}, "3 groups of K = 256"),
            ({"scales": exponents.float()}, r"scales are float64 of shape \(64, 8\): uint8 exponents"),
        ):
            with pytest.raises(LayoutError, match=text):
                QuantizedLinear.from_checkpoint({**given, **wrong}, "mxfp4")
    else:  # by its own format's name, too, which takes no other tensor
        own = QuantizedLinear.from_checkpoint(given, f"{kind.lower()}-pack-quantized", dtype=torch.bfloat16)
        assert torch.equal(own.units, layer.units)
        with pytest.raises(LayoutError, match="weight_shape is surplus: a layer of kind"):
            QuantizedLinear.from_checkpoint(
                {**given, "weight_shape": torch.tensor([64, 256])}, f"{kind.lower()}-pack-quantized"
            )
    if kind == "NVFP4":
        alone = {name: x for name, x in given.items() if name != "weight_global_scale"}
        for name in ("compressed-tensors", "nvfp4-pack-quantized"):
            with pytest.raises(LayoutError, match="weight_global_scale is missing"):
                QuantizedLinear.from_checkpoint(alone, name)
        with pytest.raises(LayoutError, match=r"global_scale is \[0.0\]: one finite number above 0"):
            QuantizedLinear.from_checkpoint({**given, "weight_global_scale": torch.zeros(1)}, read_as)
        with pytest.raises(LayoutError, match=r"global_scale is \[inf\]: one finite number above 0"):
            QuantizedLinear.from_checkpoint({**given, "weight_global_scale": torch.full((1,), torch.inf)}, read_as)
        with pytest.raises(LayoutError, match="weight_g_idx is surplus: weight_packed is uint8"):
            QuantizedLinear.from_checkpoint({**given, "weight_g_idx": torch.zeros(256).int()}, read_as)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors_of_both_widths_equal_their_own_formula(bits: int) -> None:
    rng = np.random.default_rng(bits)
    packed = torch.from_numpy(rng.integers(-(2**31), 2**31, (64, 256 * bits // 32)).astype(np.int32))
    scales, shape = torch.from_numpy(rng.integers(1, 9, (64, 2)) / 64), torch.tensor([64, 256])
    given = {"weight_packed": packed, "weight_scale": scales, "weight_shape": shape}
    codes = (packed.long()[:, :, None] >> torch.arange(0, 32, bits) & (1 << bits) - 1).flatten(1)
    want = (codes - (1 << bits - 1)) * scales.repeat_interleave(128, 1)
    layer = QuantizedLinear.from_checkpoint(given, "compressed-tensors", dtype=torch.bfloat16)
    assert torch.equal(layer.dequantized(), want.bfloat16())
    for wrong, text in (
        ({"weight_shape": torch.tensor([64, 4096 // bits - 12])}, f"{4096 // bits - 12} codes would have"),
        ({"weight_shape": torch.tensor([32, 256])}, r"weight_shape is \[32, 256\], and weight_packed has"),
        ({"weight_g_idx": torch.arange(256) % 3}, "group 0 has 86 of 256 input features: 128 each"),
        ({"weight_g_idx": torch.arange(128) % 2}, r"weight_g_idx is int64 of shape \(128,\): integers of \(256,\)"),
        ({"weight_shape": shape.double()}, r"weight_shape is \[64.0, 256.0\]"),
        ({"weight_scale": scales.to(torch.int8)}, r"weight_scale is int8 of shape \(64, 2\): floats"),
        ({"weight_global_scale": torch.ones(1)}, "weight_global_scale is surplus: weight_packed is int32"),
    ):
        with pytest.raises(LayoutError, match=text):
            QuantizedLinear.from_checkpoint({**given, **wrong}, "compressed-tensors")


@pytest.mark.parametrize(("n", "k", "groups"), [(13, 100, 1), (5, 13, 1), (13, 96, 3), (33, 256, 2)])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_last_words_of_compressed_tensors_are_filled_up(bits: int, n: int, k: int, groups: int) -> None:
    """K along weight_packed and N along weight_zero_point, that are no whole words; groups out of order, too."""
    rng, per = np.random.default_rng(n), 32 // bits
    codes, scales = rng.integers(0, 1 << bits, (n, k)), rng.integers(1, 9, (n, groups)) / 64
    g_idx, zeros = rng.permutation(np.arange(k) // (k // groups)), np.full((n, groups), 1 << bits - 1)
    given = {"weight_scale": scales, "weight_shape": np.array([n, k]), "weight_g_idx": g_idx}
    if bits == 4 and groups > 1:
        zeros = rng.integers(0, 16, (n, groups))
        given["weight_zero_point"] = words(np.pad(zeros, ((0, -n % per), (0, 0))), 0)
    filled = np.pad(codes, ((0, 0), (0, -k % per))).reshape(n, -1, per).astype(np.uint64)
    given["weight_packed"] = (
        (filled << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    )
    given = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in given.items()}
    layer = QuantizedLinear.from_checkpoint(given, "compressed-tensors", dtype=torch.float16)
    want = (codes - zeros[:, g_idx]) * scales[:, g_idx]
    assert np.array_equal(layer.dequantized().double().numpy(), want)
    given["weight_g_idx"] = torch.full((k,), -1)  # as it is stored where no order was chosen
    groups_in_order = np.arange(k) // (k // groups)
    want = (codes - zeros[:, groups_in_order]) * scales[:, groups_in_order]
    layer = QuantizedLinear.from_checkpoint(given, "compressed-tensors", dtype=torch.float16)
    assert layer.order is None and np.array_equal(layer.dequantized().double().numpy(), want)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", [(), (1,), (64,), (64, 1), (64, 2), (64, 1, 1)])
def test_weights_of_whole_bytes_equal_their_own_formula(kind: torch.dtype, scales: tuple[int, ...]) -> None:
    """Scales of a tensor, of columns, and of groups of 192, which are three of 64."""
    weight = torch.randint(-50, 50, (64, 384)).to(kind)
    given = {"weight": weight, "weight_scale": torch.rand(scales) + 0.5, "weight_zero_point": torch.zeros(64, 1).char()}
    read_as = "int-quantized" if kind == torch.int8 else "float-quantized"
    if len(scales) == 3:
        with pytest.raises(LayoutError, match=r"weight_scale has shape \(64, 1, 1\): one number, \(64,\)"):
            QuantizedLinear.from_checkpoint(given, read_as)
        return
    layer = QuantizedLinear.from_checkpoint(given, read_as, dtype=torch.float16)
    wide = given["weight_scale"].half() if scales == (64, 2) else given["weight_scale"]  # groups' have x's type
    each = wide.double().repeat_interleave(192, 1) if scales == (64, 2) else wide.double().reshape(-1, 1)
    assert torch.equal(layer.dequantized(), (weight.double() * each).half())
    for wrong, text in (
        ({"weight": weight.int()}, r"weight is int32 of shape \(64, 384\): int8 of \(N, K\) for int8"),
        ({"weight": weight.half()}, r"weight is torch.float16 of shape \[64, 384\]: int8 or float8"),
        ({"weight_zero_point": torch.ones(64, 1).char()}, r"weight_zero_point 1 at \(0, 0\): .* have 0 everywhere"),
        ({"weight_scale": torch.ones(64, 5)}, "5 groups of K = 384: known are groups of"),
        (
            {"input_scale": torch.ones(1)},
            f"input_scale is surplus: .* kind '{read_as}' .*ignore=.'.*input_scale'.. leav",
        ),
    ):
        with pytest.raises(LayoutError, match=text):
            QuantizedLinear.from_checkpoint({**given, **wrong}, read_as)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_of_float8_are_weights_alone(dtype: torch.dtype) -> None:
    """DeepSeek's weight_scale_inv, and compressed-tensors' name of it; the last block of rows is cut."""
    weight, scale = torch.randn(200, 384).to(torch.float8_e4m3fn), torch.rand(2, 3) + 0.5
    each = scale.to(dtype).double().repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)  # of x's type, as groups'
    for kind, name in (
        ("fp8-weights", "weight_scale_inv"),
        ("fp8-weights", "weight_scale"),
        ("float-quantized", "weight_scale"),
    ):
        layer = QuantizedLinear.from_checkpoint({"weight": weight, name: scale}, kind, dtype=dtype)
        assert layer.format == QuantizedFormat("e4m3", 128)
        assert torch.equal(layer.dequantized(), (weight.double() * each).to(dtype))
    with pytest.raises(LayoutError, match=r"of 128 x 128 blocks, and K = 320 is no multiple of 128"):
        QuantizedLinear.from_checkpoint({"weight": weight[:, :320], "weight_scale_inv": scale}, "fp8-weights")
    with pytest.raises(LayoutError, match=r"kind 'fp8': .* 'fp8-weights' reads them without"):
        QuantizedLinear.from_checkpoint({"weight": weight, "weight_scale_inv": scale}, "fp8")


def test_nvfp4_of_modelopt_equals_its_own_formula() -> None:
    """A second scale is a factor there, and a divisor in compressed-tensors' tensors."""
    codes = torch.randint(0, 256, (64, 64), dtype=torch.uint8)
    scale, second = (torch.rand(64, 8) + 0.5).to(torch.float8_e4m3fn), torch.tensor(0.0173)
    given = {"weight": codes, "weight_scale": scale, "weight_scale_2": second}
    layer = QuantizedLinear.from_checkpoint(given, "modelopt_fp4", dtype=torch.bfloat16)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()
    values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()]
    each = (scale.double() * second.double()).to(torch.bfloat16).double().repeat_interleave(16, 1)
    assert torch.equal(layer.dequantized(), (values * each).to(torch.bfloat16))
    for wrong, text in (
        ({"weight_scale_2": torch.tensor(0.0)}, r"weight_scale_2 is \[0.0\]: one finite number above 0"),
        ({"weight_scale_2": torch.ones(2)}, r"weight_scale_2 is \[1.0, 1.0\]"),
        ({"weight_scale": torch.ones(64, 8).byte()}, r"weight_scale is uint8 of shape \(64, 8\): floats"),
        ({"weight": codes.int()}, "packed is int32"),
        ({"input_scale": second}, "input_scale is surplus: .* x is not quantised"),
    ):
        with pytest.raises(LayoutError, match=text):
            QuantizedLinear.from_checkpoint({**given, **wrong}, "modelopt_fp4")


def test_int8_rows_of_bitsandbytes_equal_their_own_formula() -> None:
    codes, most = torch.randint(-127, 128, (64, 96), dtype=torch.int8), torch.rand(64) + 0.5
    given = {"weight": codes, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    layer = QuantizedLinear.from_checkpoint(given, "bitsandbytes-int8", dtype=torch.bfloat16)
    factor = (most.double() / 127).float().double()[:, None]
    assert layer.format == QuantizedFormat("int8")
    assert torch.equal(layer.weight.dense().double(), (codes.double() * factor).float().double())
    for wrong, text in (
        ({"weight_format": torch.tensor(1, dtype=torch.uint8)}, "weight_format is 1: 0, rows one after another"),
        ({"SCB": most.double()[:, None]}, r"SCB is torch.float64 of shape \[64, 1\]: floats, one for each row"),
        ({"weight": codes.short()}, "weight is torch.int16"),
    ):
        with pytest.raises(LayoutError, match=text):
            QuantizedLinear.from_checkpoint({**given, **wrong}, "bitsandbytes-int8")


def test_exponents_of_scales_are_read_as_powers_of_two() -> None:
    """MXFP8 stores them as uint8, or as float8_e8m0fnu."""
    weight, exponents = torch.randn(64, 256).to(torch.float8_e4m3fn), torch.randint(120, 130, (64, 8)).byte()
    want = weight.double() * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    for scales in (exponents, exponents.view(torch.float8_e8m0fnu)):
        given = {"weight": weight, "weight_scale": scales}
        layer = QuantizedLinear.from_checkpoint(given, "mxfp8-quantized", dtype=torch.bfloat16)
        assert layer.format == QuantizedFormat("e4m3", 32) and torch.equal(layer.dequantized().double(), want)
    for wrong, text in (
        ({"weight_scale": torch.full_like(exponents, 255)}, r"weight_scale 255 at \(0, 0\) is NaN"),
        ({"weight_scale": torch.rand(2, 2)}, r"\(2, 2\): one number, .* or \(1, 2\) of 128 x 128 blocks$"),
        ({"weight": torch.zeros(64, 256, dtype=torch.int8)}, r"weight_scale is uint8 of shape \(64, 8\): floats"),
    ):
        with pytest.raises(LayoutError, match=text):
            QuantizedLinear.from_checkpoint({"weight": weight, "weight_scale": exponents, **wrong}, "mxfp8-quantized")


def test_a_weight_that_is_not_finite_is_named_with_its_rows() -> None:
    weight = torch.zeros(1030, 128)
    weight[1025, 3] = float("nan")
    with pytest.raises(LayoutError, match=r"^rows 1024 to 1029: weight \(1, 3\) is nan: finite ones are rounded"):
        QuantizedWeight.quantize(weight, QuantizedFormat("int8"))
    with pytest.raises(LayoutError, match=r"^weight \(1, 3\) is nan"):
        QuantizedWeight.quantize(weight[1024:], QuantizedFormat("int8"))


def test_groups_beyond_the_scales_are_named() -> None:
    given = {"qweight": torch.zeros(16, 64).int(), "qzeros": torch.zeros(2, 8).int(), "scales": torch.ones(2, 64)}
    with pytest.raises(LayoutError, match=r"^g_idx\[64\] = 2: groups are 0 to 1, as the scales have them"):
        QuantizedLinear.from_checkpoint({**given, "g_idx": torch.arange(128) // 64 + 1}, "gptq")


def test_unknown_activations_of_packed_weights_are_refused() -> None:
    weight = QuantizedWeight.quantize(torch.eye(64, 128), QuantizedFormat("int8"))
    for make in (lambda kind: quantized_matmul(torch.ones(1, 128).bfloat16(), weight, activation=kind),
                 lambda kind: QuantizedLinear(weight, activation=kind)):  # fmt: skip
        with pytest.raises(LayoutError, match=r"activation 'swish': known are 'relu', .*'geglu'; 'swish' is 'silu'$"):
            make("swish")


def test_few_features_do_not_tell_the_bits() -> None:
    given = {"weight_packed": torch.zeros(8, 1).int(), "weight_scale": torch.ones(8, 1)}
    with pytest.raises(LayoutError, match="3 codes of 4 bits fill a word as those of 8 do"):
        QuantizedLinear.from_checkpoint({**given, "weight_shape": torch.tensor([8, 3])}, "compressed-tensors")


@pytest.mark.parametrize("kind", ["bitsandbytes", "hqq", "GGUF", "Q4_0", "torchao", "awq_gemv_fast", "fp8"])
def test_other_kinds_are_refused_with_the_way_out(kind: str) -> None:
    with pytest.raises(
        LayoutError,
        match=rf"kind '{kind}': .*(from_linear|ScaledLinear|gguf_file=.*swap_linears).*known are 'gptq', 'gptq_v2'",
    ):
        QuantizedLinear.from_checkpoint({}, kind)


def test_surplus_tensors_of_a_layer_are_refused_by_name() -> None:
    given = {name: torch.zeros(1) for name in ("weight_packed", "weight_scale", "input_global_scale")}
    with pytest.raises(LayoutError, match="input_global_scale is surplus: a layer of kind 'compressed-tensors'"):
        QuantizedLinear.from_checkpoint(given, "compressed-tensors")


def test_words_in_gemv_s_order_are_refused_by_name() -> None:
    """GEMV has (N, K / 8) words, and scales (N, groups)."""
    given = {"qweight": torch.zeros(512, 64, dtype=torch.int32), "qzeros": torch.zeros(512, 1, dtype=torch.int32)}
    with pytest.raises(LayoutError, match="words along K are GEMV's: kind 'awq_gemv'"):
        QuantizedLinear.from_checkpoint({**given, "scales": torch.ones(512, 8)}, "awq")


GEMV = {  # K, groups, words, and the message for scales of another place
    "of 64, words in pairs": (1088, 17, 4, ""),
    "of 32, words in fours": (320, 10, 4, ""),
    "of 128, words of 64": (1024, 8, 2, r"qzeros has 2 words a row: 8 groups of 128 have 1 in GEMV's order"),
    "groups that K has not": (1024, 3, 1, r"scales have 3 column\(s\) that are not 0: K = 1024 has no such number"),
}


@pytest.mark.parametrize("form", GEMV)
def test_gemv_s_order_has_words_that_are_filled_up(form: str) -> None:
    k, groups, count, said = GEMV[form]
    rng = np.random.default_rng(4)
    codes, zeros, scales = rng.integers(0, 16, (8, k)), np.zeros((8, 8 * count), int), np.zeros((8, 8 * count))
    zeros[:, :groups], scales[:, :groups] = rng.integers(0, 16, (8, groups)), rng.integers(1, 9, (8, groups)) / 64
    given = {"qweight": words(codes, 1), "qzeros": words(zeros, 1), "scales": scales}
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    if said:
        with pytest.raises(LayoutError, match=said):
            QuantizedLinear.from_checkpoint(tensors, "awq_gemv")
        return
    each = k // groups
    want = (codes - np.repeat(zeros[:, :groups], each, axis=1)) * np.repeat(scales[:, :groups], each, axis=1)
    assert np.array_equal(QuantizedLinear.from_checkpoint(tensors, "awq_gemv").weight.plain().dense(), want)
    tensors["scales"][3, groups - 1] = 0
    with pytest.raises(LayoutError, match=rf"scale \(3, {groups - 1}\) is 0: those of {groups} groups are not 0"):
        QuantizedLinear.from_checkpoint(tensors, "awq_gemv")


def test_an_act_order_checkpoint_reorders_x() -> None:
    rng = np.random.default_rng(6)
    codes, zeros = rng.integers(0, 16, (64, 256)).astype(np.uint8), rng.integers(1, 16, (64, 4))
    scales, g_idx = rng.integers(1, 9, (64, 4)) / 64, rng.permutation(np.arange(256) // 64)
    want = (codes - zeros[:, g_idx].astype(float)) * scales[:, g_idx]
    tensors = {"qweight": words(codes.T, 0), "qzeros": words(zeros.T - 1, 1), "scales": scales.T, "g_idx": g_idx}
    given = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in tensors.items()}
    layer = QuantizedLinear.from_checkpoint(given, "gptq", dtype=torch.bfloat16)
    assert np.array_equal(layer.dequantized().double().numpy(), want)
    x = torch.randint(-3, 4, (5, 256)).bfloat16()
    assert torch.equal(layer(x), (x.double() @ torch.from_numpy(want).T).bfloat16())
    other = QuantizedLinear.from_checkpoint(given, "gptq", dtype=torch.bfloat16)
    other.order.zero_()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    with pytest.raises(LayoutError, match="group 0 has 65 of 256 input features: 64 each"):
        order_of_groups(np.where(np.arange(256) == np.argmax(g_idx == 1), 0, g_idx), 4)
    with pytest.raises(LayoutError, match="each of 256 input features once"):
        from_gptq(*[tensors[name] for name in ("qweight", "qzeros", "scales", "g_idx")], np.zeros(256, int))


def test_the_plan_has_what_the_call_asks_for() -> None:
    fmt = QuantizedFormat("int8")
    plan = plan_of(QuantizedCall(fmt, (100, 384), "relu", torch.bfloat16), 13, "bf16", "f32", 132)
    assert (plan.m, plan.n, plan.k, plan.weights) == (100, 13, 384, fmt)
    assert [given.name for given in plan.epilogue.given] == ["weight_scale", "bias"]
    ragged = torch.randn(4, 101)[:, :100].bfloat16()
    assert readable(ragged.t().contiguous().t()).stride() == (104, 1)
    assert readable(torch.randn(4, 104).bfloat16()[:, :96]).stride() == (104, 1)


@needs.DSL
@pytest.mark.dsl
def test_the_launch_writes_what_the_cpu_computes() -> None:
    fmt = QuantizedFormat("int8")
    weight = QuantizedWeight.quantize(torch.randn(72, 128), fmt)
    padded, bias = torch.randn(3, 136).bfloat16(), torch.randn(72)
    x = padded[:, :128]
    plan = plan_of(QuantizedCall(fmt, (72, 128), "relu", torch.bfloat16), 3, "bf16", "f32", 4)
    numbers, places = arguments_of(plan, 136, 2)
    assert list(plan.parameters)[14] == "weight_scale"
    c = np.zeros((3, 72), np.uint16)
    arrays = [
        weight.units.numpy().reshape(-1),
        padded.view(torch.int16).numpy(),
        c,
        weight.scales.numpy(),
        bias.numpy(),
    ]
    arguments = list(numbers)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments), progress=False).raise_for_findings()
    found = torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)
    want = quantized_matmul(x, weight, bias=bias, activation="relu")
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=1e-2)


@needs.DSL
@pytest.mark.dsl
def test_the_launch_by_mma_sync_writes_what_the_cpu_computes() -> None:
    fmt = QuantizedFormat("int8")
    weight = QuantizedWeight.quantize(torch.randn(71, 128), fmt)
    padded, bias = torch.randn(3, 136).bfloat16(), torch.randn(71)
    call = QuantizedCall(fmt, (71, 128), "relu", torch.bfloat16)
    plan = mma_plan_of(call, 3, "bf16", "f32", 108, "sm_80", 99 << 10)
    assert plan.config.align == (16, 16, 2)  # lines of 142 bytes
    numbers, places = mma_arguments_of(plan, 136)
    c = np.zeros((3, 71), np.uint16)
    arrays = [
        weight.units.numpy().reshape(-1),
        padded.view(torch.int16).numpy(),
        c,
        weight.scales.numpy(),
        bias.numpy(),
    ]
    arguments = list(numbers)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments), progress=False).raise_for_findings()
    found = torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)
    want = quantized_matmul(padded[:, :128], weight, bias=bias, activation="relu")
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=1e-2)


def emulated_by_rows(plan: Any, pitch: int, given: list[np.ndarray], c: np.ndarray) -> torch.Tensor:
    """C of a launch by mma.sync; `given` are units, x, and what follows C in the order of the launch's places."""
    numbers, places = mma_arguments_of(plan, pitch)
    arguments: list[Any] = list(numbers)
    for place, array in zip(places, [*given[:2], c, *given[2:]], strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments), progress=False).raise_for_findings()
    return torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)


def test_the_launch_of_parts_of_k_adds_them_in_its_workspace() -> None:
    fmt = QuantizedFormat("int8")
    weight, x = QuantizedWeight.quantize(torch.randn(64, 2048), fmt), torch.randn(3, 2048).bfloat16()
    plan = mma_plan_of(QuantizedCall(fmt, (64, 2048), None, torch.bfloat16), 3, "bf16", None, 108, "sm_80", 99 << 10)
    assert plan.config.split == 2 and launch.split_bytes(plan) == [plan.split_bytes] and "in 2 parts" in str(plan)
    sums = np.full(plan.split_bytes, 0xFF, np.uint8)
    given = [weight.units.numpy().reshape(-1), x.view(torch.int16).numpy(), weight.scales.numpy(), sums]
    found = emulated_by_rows(plan, 2048, given, np.zeros((3, 64), np.uint16))
    assert torch.allclose(found.float(), quantized_matmul(x, weight).float(), rtol=2**-7, atol=1e-2)


def test_the_launch_of_experts_by_mma_sync_writes_what_the_cpu_computes() -> None:
    fmt, offsets = QuantizedFormat("int8"), torch.tensor([0, 0, 5, 7])
    weights = QuantizedExperts.of([QuantizedWeight.quantize(torch.randn(71, 128), fmt) for _ in range(3)])
    x, call = torch.randn(7, 128).bfloat16(), QuantizedCall(fmt, (71, 128), "relu", torch.bfloat16)
    plan = experts_plan(call, 3, 7, "bf16", "i64", 108, "sm_80", 99 << 10)
    given = [weights.units.numpy().reshape(-1), x.view(torch.int16).numpy(), weights.scales.numpy(), offsets.numpy()]
    found = emulated_by_rows(plan, 128, given, np.zeros((7, 71), np.uint16))
    want = quantized_grouped_matmul(x, weights, offsets, activation="relu")
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=1e-2)


class _Launched:
    """A compiled kernel that keeps its launches' arguments."""

    def __init__(self, plan: object, seen: list[tuple[object, list[int]]]):
        self.plan, self.seen, self.launcher = plan, seen, self

    def load(self, device: int) -> None:
        pass

    def block(self, arguments: tuple[int, ...]) -> SimpleNamespace:
        values = [*arguments, 0, 0]
        return SimpleNamespace(values=values, pointer=values)

    def entry(self, values: list[int]) -> None:
        self.seen.append((self.plan, [*values]))


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, list[int]]]]:
    """CPU tensors are taken for those of a GPU of compute capability 8.9: the plans and arguments of its launches."""
    seen: list[tuple[object, list[int]]] = []
    monkeypatch.setattr(launch, "on_gpu", lambda index: True)
    monkeypatch.setattr(launch, "target", lambda index, config=None: ("sm_80", 99 << 10))
    monkeypatch.setattr(launch, "compile_apart", lambda plan: _Launched(plan, seen))
    monkeypatch.setattr(launch, "raw_stream", lambda index: 77)
    for name in ("on_gpu", "target", "compile_apart", "raw_stream"):
        monkeypatch.setattr(experts, name, getattr(launch, name))
    monkeypatch.setattr(launches, "THREAD", SimpleNamespace(bound=True))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    forget = launch.forget, experts._prepared.cache_clear
    for each in forget:
        each()
    yield seen
    for each in forget:
        each()


def test_a_gpu_of_compute_capability_8_multiplies_the_same_weights(ampere: list[tuple[object, list[int]]]) -> None:
    weight, x = weight_of(FORMATS[0]), torch.randn(2, 3, 384).bfloat16()
    bias = torch.randn(100)
    assert quantized_matmul(x, weight, bias=bias).shape == (2, 3, 100)
    ((plan, values),) = ampere
    assert (type(plan).__name__, plan.arch.name, plan.m, plan.n, plan.k) == ("Sm80Plan", "sm_80", 6, 100, 384)
    assert values[:2] == [x.data_ptr(), weight.units.data_ptr()]
    assert values[3:7] == [6, 100, 384, 1] and values[7] == 384 and values[9] == 100
    assert values[14] == bias.data_ptr()
    assert plan.smem.total <= 99 << 10


@needs.DSL
@pytest.mark.dsl
def test_two_launches_fill_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, scales, bias and result of a part begin at its first feature."""
    x, bias, held = torch.randn(12, 128).bfloat16(), torch.randn(136), []
    usual = {"tile_k": 64, "stages": 2, "overlap": True}
    of_two = (64, Sm90Config((64, 16), consumers=1, **usual)), (72, Sm90Config((128, 8), **usual))
    monkeypatch.setattr(launch, "packed_parts", lambda *sizes: of_two)
    monkeypatch.setattr(launch, "on_gpu", lambda index: True)
    monkeypatch.setattr(launch, "check_target", lambda call, x: None)
    monkeypatch.setattr(launch, "target", lambda index, config=None: ("sm_90a", 227 << 10))
    monkeypatch.setattr(launch, "compile_apart", lambda plan: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(launch, "raw_stream", lambda index: 0)
    launched: list[Any] = []

    def direct(compiled: Any, arguments: tuple[int, ...], places: tuple[int, ...], index: int, plan: Any) -> Any:
        def run(addresses: list[int], stream: int) -> None:
            values = [*arguments]
            for place, address in zip(places, addresses, strict=True):
                values[place] = address
            launched.append(plan)
            memory = [memory_at(v, held) if v > 1 << 32 else v for v in values]
            emulate_launch(plan, tuple(memory), progress=False).raise_for_findings()

        return SimpleNamespace(launch=run, what=plan)

    monkeypatch.setattr(launch, "DirectLaunch", direct)
    fmt = QuantizedFormat("e4m3")
    weight, c = QuantizedWeight.quantize(torch.randn(136, 128), fmt), torch.full((12, 136), torch.nan).bfloat16()
    held[:] = [weight.units, x, c, bias, weight.scales]
    launch.forget()
    call = QuantizedCall(fmt, (136, 128), "relu", torch.bfloat16)
    launch.quantized_product(call, x, weight.units, weight.scales, bias, None, c, ("no", "key"), (12, 136))
    launch.forget()
    want = (x.double() @ weight.dense(torch.float64).T + bias).relu()
    assert torch.allclose(c.double(), want, rtol=2**-7, atol=2e-3)
    assert [(plan.m, plan.tile[0]) for plan in launched] == [(64, 64), (72, 128)]
    how = explain_matmul(x, weight, bias=bias)
    assert how.launches == 2 and ", then Sm90Plan 72x12x128" in how.kernel
    assert how.why == "12 row(s): two launches, of 64 and 72 output features, have a lesser estimate of time than one"


def test_a_gpu_of_compute_capability_8_multiplies_experts_and_keeps_the_sums_of_parts(
    ampere: list[tuple[object, list[int]]],
) -> None:
    weights, offsets = QuantizedExperts.of([weight_of(FORMATS[0])] * 2), torch.tensor([0, 2, 6], dtype=torch.int32)
    x = torch.randn(6, 384).bfloat16()
    assert quantized_grouped_matmul(x, weights, offsets).shape == (6, 100)
    ((plan, values),) = ampere
    assert (type(plan).__name__, plan.batch, values[3:7]) == ("Sm80Plan", 2, [6, 100, 384, 2])
    assert values[14 + plan.words.index("offsets")] == offsets.data_ptr()
    quantized_matmul(torch.randn(20, 4096).bfloat16(), QuantizedWeight.quantize(torch.randn(64, 4096), FORMATS[0]))
    plan, values = ampere[1]
    assert plan.split.parts > 1 and values[14 + plan.words.index("split_sums")] > 1 << 32
    float8 = QuantizedExperts.of([weight_of(FORMATS[0], torch.float8_e4m3fn)] * 2)
    with pytest.raises(LayoutError, match="whose kernel is sm_80's: scales of groups"):
        quantized_grouped_matmul(x.to(torch.float8_e4m3fn), float8, offsets, scale_x=torch.ones(6))


def test_a_gpu_of_compute_capability_8_refuses_float8_and_a_configuration_by_name(
    ampere: list[tuple[object, list[int]]],
) -> None:
    float8 = weight_of(FORMATS[0], torch.float8_e4m3fn)
    with pytest.raises(
        LayoutError, match=r"x is torch.float8_e4m3fn on cpu, whose kernel is sm_80's: scales of groups"
    ):
        quantized_matmul(torch.ones(2, 384).to(torch.float8_e4m3fn), float8, scale_x=torch.ones(2, 1))
    with pytest.raises(LayoutError, match="an Sm90Config, and cpu runs sm_80's kernel; leave it out"):
        config = Sm90Config((64, 16), consumers=1, store="direct")
        quantized_matmul(torch.ones(2, 384).bfloat16(), weight_of(FORMATS[0]), config=config)
    assert not ampere


def checkpoint_of(**other: object) -> QuantizedLinear:
    zeros = {"qweight": torch.zeros(48, 64).int(), "qzeros": torch.zeros(3, 8).int(), "scales": torch.ones(3, 64)}
    return QuantizedLinear.from_checkpoint({**zeros, **other}, "gptq")


REFUSED = {
    "type": (lambda w: quantized_matmul(torch.randn(2, 384), w), "x is torch.float32, and the weights are packed for"),
    "shape": (lambda w: quantized_matmul(torch.randn(2, 100).bfloat16(), w), "x has shape [2, 100]: (..., 384)"),
    "weight": (lambda w: quantized_matmul(torch.randn(2, 384).bfloat16(), w.units), "weight is a Tensor, not a Quant"),
    "bias": (
        lambda w: quantized_matmul(torch.randn(2, 384).bfloat16(), w, bias=torch.ones(3)),
        "bias is torch.float32 of shape [3]: float32, bfloat16 or float16 of [100]",
    ),
    "gate of an operator": (
        lambda w: torch.ops.layoutgemm.quantized_matmul(
            torch.randn(2, 384).bfloat16(), w.units, w.scales, None, "swiglu", "int4", 128, False, 100, 384
        ),
        "activation 'swiglu': a kernel of packed weights has no gate",
    ),
    "gate of an odd n": (
        lambda w: quantized_matmul(
            torch.randn(2, 128).bfloat16(), QuantizedWeight.quantize(torch.eye(7, 128), FORMATS[2]), activation="geglu"
        ),
        "n = 7: a gate takes two halves of as many columns",
    ),
    "values": (lambda w: QuantizedWeight.quantize(torch.ones(64, 128, device="meta"), w.format), "no values to round"),
    "units": (lambda w: QuantizedWeight(w.format, w.units[:1], None, 100, 384), "contiguous uint8 of [2, 3, 4224]"),
    "no tensor": (lambda w: QuantizedWeight.quantize([[1.0]], w.format), "weight is a builtins.list, not a torch"),
    "integers": (lambda w: QuantizedWeight.quantize(torch.ones(64, 128).long(), w.format), "weight is torch.int64"),
    "complex": (lambda w: QuantizedWeight.quantize(torch.ones(64, 128) * 1j, w.format), "weight is torch.complex64"),
    "sparse": (lambda w: QuantizedWeight.quantize(torch.eye(64).to_sparse(), w.format), "weight is torch.sparse_coo"),
    "K of units": (lambda w: QuantizedWeight(w.format, w.units, None, 100, 380), "K = 380 is 2 groups of 128"),
    "scales elsewhere": (
        lambda w: dataclasses.replace(weight_of(FORMATS[2]), scales=torch.ones(100, device="meta")),
        "scales are on meta, and units on cpu",
    ),
    "rows of a configuration": (
        lambda w: quantized_matmul(torch.ones(9, 384).bfloat16(), w, config=StreamedConfig()),
        "n = 9: a streamed product has 1 to 8 rows of x",
    ),
    "configuration of experts": (
        lambda w: quantized_grouped_matmul(
            torch.ones(2, 384).bfloat16(),
            QuantizedExperts.of([w]),
            torch.tensor([0, 2]),
            config=Sm90Config((128, 64)),
        ),
        "store = 'tma': a product of several experts",
    ),
    "dtype of a checkpoint": (lambda w: QuantizedLinear.from_checkpoint({}, "gptq", dtype="f16"), "dtype is 'f16'"),
    "arrays of a checkpoint": (lambda w: checkpoint_of(qweight=np.ones((48, 64))), "qweight is a numpy.ndarray"),
    "values of a checkpoint": (
        lambda w: checkpoint_of(qzeros=torch.zeros(3, 8, device="meta")),
        "qzeros has no values: it is traced",
    ),
    "bias of a checkpoint": (lambda w: checkpoint_of(bias=torch.zeros(63)), "bias is torch.float32 of shape [63]"),
    "integer bias": (lambda w: checkpoint_of(bias=torch.zeros(64).int()), "bias is torch.int32 of shape [64]"),
    "bias of a layer": (lambda w: QuantizedLinear(w, torch.nn.Parameter(torch.zeros(99))), "bias is torch.float32 of"),
    "kind": (
        lambda w: QuantizedLinear.from_checkpoint({}, "gguf"),
        "kind 'gguf': its blocks hold scales between their codes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_operand(what: str) -> None:
    call, said = REFUSED[what]
    with pytest.raises(LayoutError) as refused:
        call(weight_of(FORMATS[0]))
    assert said in str(refused.value)


def test_packed_weights_equal_themselves_alone() -> None:
    """Tensors among a value's fields have no truth of their own to compare it by."""
    one = weight_of(FORMATS[0])
    assert one == one and one != copy.deepcopy(one) and len({one, one, copy.deepcopy(one)}) == 2


def test_a_layer_checks_its_weights_once_for_the_same_tensors() -> None:
    made = QuantizedLinear.from_linear(torch.nn.Linear(128, 64, dtype=torch.bfloat16), QuantizedFormat("int8"))
    first = made.weight
    assert made.weight is first
    made.units = made.units.clone()
    assert made.weight is not first and made.weight.units is made.units
    other = copy.deepcopy(made)
    assert other.weight.units is other.units and "_weight" not in made.__getstate__()


def experts_of(fmt: QuantizedFormat) -> QuantizedExperts:
    rng = torch.Generator().manual_seed(1)
    return QuantizedExperts.of([QuantizedWeight.quantize(torch.randn(72, 128, generator=rng), fmt) for _ in range(3)])


@pytest.mark.parametrize("fmt", [QuantizedFormat("int4", 64), QuantizedFormat("int8")], ids=str)
def test_groups_of_rows_are_multiplied_by_their_experts_weights(fmt: QuantizedFormat) -> None:
    weights, x = experts_of(fmt), torch.randn(7, 128).bfloat16()
    for kind in (torch.int32, torch.int64):
        found = quantized_grouped_matmul(x, weights, torch.tensor([0, 4, 4, 7], dtype=kind), activation="relu")
        want = [quantized_matmul(x[:4], weights.expert(0), activation="relu"),
                quantized_matmul(x[4:], weights.expert(2), activation="relu")]  # fmt: skip
        assert torch.equal(found, torch.cat(want))
    compiled = torch.compile(lambda x, at: quantized_grouped_matmul(x, weights, at), backend="eager", fullgraph=True)
    offsets = torch.tensor([0, 0, 7, 7])
    assert torch.equal(compiled(x, offsets), quantized_matmul(x, weights.expert(1)))
    assert quantized_grouped_matmul(x.to("meta"), weights.to("meta"), offsets.to("meta")).shape == (7, 72)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_experts_have_the_gradient_of_x(activation: str | None) -> None:
    weights, offsets = experts_of(QuantizedFormat("int4", 64)), torch.tensor([0, 4, 4, 7])
    x, grad = torch.randn(7, 128).bfloat16().requires_grad_(), torch.randn(7, 72).bfloat16()
    value = quantized_grouped_matmul(x, weights, offsets, activation=activation)
    value.backward(grad)
    exact = x.detach().double().requires_grad_()
    dense = [weights.expert(e).dense(torch.bfloat16).double() for e in (0, 2)]
    want = torch.cat([exact[:4] @ dense[0].T, exact[4:] @ dense[1].T])
    want = want if activation is None else torch.nn.functional.silu(want)
    want.backward(grad.double())
    for found, right in ((value, want), (x.grad, exact.grad)):
        assert (found - right).abs().max() <= 2.0**-7 * right.abs().max()


def test_experts_that_do_not_fit_are_refused() -> None:
    weights, x = experts_of(QuantizedFormat("int8")), torch.randn(7, 128).bfloat16()
    with pytest.raises(LayoutError, match=r"offsets are torch\.int64 of shape"):
        quantized_grouped_matmul(x, weights, torch.tensor([0, 7]))
    with pytest.raises(LayoutError, match="none below the one before it"):
        quantized_grouped_matmul(x, weights, torch.tensor([0, 5, 4, 7]))
    ends = torch.tensor([0, 1, 4, 7])
    with pytest.raises(LayoutError, match=r"x is differentiated by torch.func, and .* by backward"):
        torch.func.grad(lambda x: quantized_grouped_matmul(x, weights, ends).sum())(x)
    with pytest.raises(LayoutError, match="x has a tangent, and this product has none"):
        torch.func.jvp(lambda x: quantized_grouped_matmul(x, weights, ends), (x,), (x,))
    with pytest.raises(LayoutError, match=r"weights\[1\] is .* experts are alike"):
        QuantizedExperts.of([weights.expert(0), weight_of(QuantizedFormat("int8"))])


@needs.DSL
@pytest.mark.dsl
def test_the_launch_of_experts_writes_what_the_cpu_computes() -> None:
    weights, x = experts_of(QuantizedFormat("int8")), torch.randn(7, 128).bfloat16()
    offsets = torch.tensor([0, 4, 4, 7], dtype=torch.int32)
    call = QuantizedCall(weights.format, (72, 128), "relu", torch.bfloat16)
    plan = experts_plan(call, 3, 7, "bf16", "i32")
    numbers, places = arguments_of(plan, 128, 2)
    c = np.zeros((7, 72), np.uint16)
    arrays = [weights.units.numpy().reshape(-1), x.view(torch.int16).numpy(), c, weights.scales.numpy(),
              offsets.numpy()]  # fmt: skip
    arguments = list(numbers)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments)).raise_for_findings()
    found = torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)
    want = quantized_grouped_matmul(x, weights, offsets, activation="relu")
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_operators_pass_torchs_checks(fmt: QuantizedFormat) -> None:
    """Strides among them: compiled code relies on what the fake kernel says."""
    weight, x = weight_of(fmt), torch.randn(5, 384).bfloat16()
    facts, own = facts_of(fmt, weight.n, weight.k), torch.ops.layoutgemm
    calls = [
        (own.quantized_matmul, (x, weight.units, weight.scales, torch.randn(100), "silu", *facts, torch.float32)),
        (own.dequantized, (weight.units, weight.scales, torch.bfloat16, *facts)),
    ]
    for operator, given in calls:
        results = torch.library.opcheck(operator.default, given)
        assert {*results.values()} == {"SUCCESS"}, (operator, results)


@pytest.mark.parametrize("fmt", FORMATS[:1] + FORMATS[2:3], ids=str)
def test_a_compiled_layer_has_gradients_after_an_eager_call(fmt: QuantizedFormat) -> None:
    layer = QuantizedLinear.from_linear(torch.nn.Linear(128, 64, dtype=torch.bfloat16), fmt)
    x, y = (torch.ones(3, 128).bfloat16().requires_grad_() for _ in range(2))
    want = layer(x)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    got = compiled(y)
    want.sum().backward()
    got.sum().backward()
    assert torch.equal(got, want) and torch.equal(x.grad, y.grad)
    layer.units = layer.units.flip(0) ^ 1  # other weights: what the layer keeps is not these
    with torch.no_grad():
        assert torch.equal(compiled(y), layer(x))


def test_explain_names_the_kernel_its_reason_and_what_is_copied() -> None:
    weight = QuantizedWeight.quantize(torch.randn(100, 2048), QuantizedFormat("int4", 128))
    few, many = (explain_matmul(torch.ones(rows, 2048).bfloat16(), weight) for rows in (2, 64))
    assert few.kernel.startswith("StreamedPlan 100x2x2048") and few.copies == () and few.workspace == 0
    assert many.kernel.startswith("Sm90Plan 100x64x2048") and "least estimate" in many.why
    bias = torch.ones(200)[::2]
    copied = explain_matmul(torch.ones(2048, 2).bfloat16().T, weight, bias=bias, activation="silu")
    assert copied.copies == (
        "x: elements of a line lie 2 apart, 8192 bytes",
        "bias: elements lie 2 apart, and an epilogue's are contiguous, 400 bytes",
    )
    assert copied.workspace == 8592
    assert explain_matmul(torch.ones(0, 2048).bfloat16(), weight).launches == 0
    with pytest.raises(LayoutError, match="out is given: a product with a QuantizedWeight takes none"):
        explain_matmul(torch.ones(1, 2048).bfloat16(), weight, out=torch.empty(1, 100))
    with pytest.raises(LayoutError, match="it is of products with a QuantizedWeight"):
        explain_matmul(torch.ones(8, 8).bfloat16(), torch.ones(8, 8).bfloat16(), config=StreamedConfig())


def test_explain_tells_of_experts() -> None:
    weight = QuantizedWeight.quantize(torch.randn(100, 384), QuantizedFormat("int4", 128))
    experts, x = QuantizedExperts.of([weight] * 4), torch.ones(20, 384).bfloat16()
    told = explain_matmul(x, experts, offsets=torch.tensor([0, 5, 9, 9, 20]), activation="silu")
    assert told.kernel.startswith("Sm90Plan 4 x 100x20x384") and told.workspace == 0
    assert told.why == "20 rows of 4 experts: tiles of 8 rows, half as many again as a usual group has; " + (
        "the kernel reads the offsets"
    )
    spaced = torch.tensor([0, 0, 5, 0, 9, 0, 9, 0, 20])[::2]
    assert explain_matmul(x, experts, offsets=spaced).workspace == 40
    assert explain_matmul(x, experts, offsets=spaced.contiguous(), bias=torch.ones(4, 200)[:, ::2]).workspace == 1600
    with pytest.raises(LayoutError, match=r"bias is torch.float32 of shape \[99\]"):
        explain_matmul(x, experts, offsets=spaced.contiguous(), bias=torch.ones(99))
    with pytest.raises(LayoutError, match="offsets is given: a product with a QuantizedWeight takes none"):
        explain_matmul(x, weight, offsets=torch.tensor([0, 20]))
    with pytest.raises(LayoutError, match="x and offsets are torch tensors"):
        explain_matmul(x, experts)


def test_few_rows_round_no_weight_and_many_do() -> None:
    weight = QuantizedWeight.quantize(torch.randn(64, 2048), QuantizedFormat("int4", 128))
    exact, rounded = weight.dense(torch.float64), weight.dense().bfloat16().double()
    assert not torch.equal(exact, rounded)
    x = torch.randn(65, 2048).bfloat16()
    for rows, dense in ((4, exact), (5, exact), (64, exact), (65, rounded)):  # streamed, then by wgmma
        found = quantized_matmul(x[:rows], weight, out_dtype=torch.float32).double()
        assert torch.allclose(found, x[:rows].double() @ dense.T, rtol=1e-6, atol=1e-6)
    given = Sm90Config((64, 8), consumers=1)
    by_config = quantized_matmul(x[:5], weight, out_dtype=torch.float32, config=given).double()
    assert torch.allclose(by_config, x[:5].double() @ rounded.T, rtol=1e-6, atol=1e-6)
    asked = quantized_matmul(x[:8], weight, out_dtype=torch.float32, config=StreamedConfig()).double()
    assert torch.allclose(asked, x[:8].double() @ exact.T, rtol=1e-6, atol=1e-6)


def test_a_streamed_configuration_passes_through_the_operator() -> None:
    weight = QuantizedWeight.quantize(torch.randn(64, 256), QuantizedFormat("int4", 128))
    x, config = torch.randn(3, 256).bfloat16(), StreamedConfig(warps=2, slots=2)
    run = torch.compile(lambda v: quantized_matmul(v, weight, config=config), backend="eager", fullgraph=True)
    assert torch.equal(run(x), quantized_matmul(x, weight, config=config))
    assert packed_config_of(packed_text(config)) == config and packed_config_of("") is None
    call = QuantizedCall(weight.format, (64, 256), None, torch.bfloat16, config)
    plan = streamed_plan_of(call, 3, "bf16", None, 132, "sm_90a", 232448)
    assert plan is not None and plan.config == config
    with pytest.raises(LayoutError, match="config is a int: an Sm90Config, a StreamedConfig, FeatureParts, or None"):
        quantized_matmul(x, weight, config=3)
    with pytest.raises(LayoutError, match="groups of rows are not streamed"):
        experts_plan(call, 2, 3, "bf16", "i32")


def test_a_configuration_of_parts_is_checked_explained_and_passes_through_the_operator() -> None:
    weight = QuantizedWeight.quantize(torch.randn(136, 256), QuantizedFormat("int4", 128))
    first, last = Sm90Config((64, 16), consumers=1), Sm90Config((128, 8), tile_k=64)
    x, config = torch.randn(3, 256).bfloat16(), FeatureParts(((64, first), (72, last)))
    run = torch.compile(lambda v: quantized_matmul(v, weight, config=config), backend="eager", fullgraph=True)
    assert torch.equal(run(x), quantized_matmul(x, weight, config=first))
    assert packed_config_of(packed_text(config)) == config
    how = explain_matmul(x, weight, config=config)
    assert how.launches == 2 and how.why == "the configuration that was given"
    assert "Sm90Plan 64x3x256" in how.kernel and ", then Sm90Plan 72x3x256" in how.kernel
    with pytest.raises(PlanError, match=r"the parts have 64 \+ 64 = 128 output features, and the weights 136"):
        quantized_matmul(x, weight, config=FeatureParts(((64, first), (64, last))))
    call = QuantizedCall(weight.format, (136, 256), None, torch.bfloat16, config)
    with pytest.raises(LayoutError, match="groups of rows are one launch"):
        experts_plan(call, 2, 3, "bf16", "i32")
    with pytest.raises(LayoutError, match="it is of products with a QuantizedWeight"):
        explain_matmul(x, x.T, config=config)
    with pytest.raises(LayoutError, match="config is a FeatureParts"):
        experts = QuantizedExperts.of([weight])
        quantized_grouped_matmul(x, experts, torch.tensor([0, 3]), config=config)
    for parts, message in (
        (((136, first),), "a tuple of two or more"),
        ([(64, first), (72, last)], "a tuple of two or more"),
        (((64, first), (72, StreamedConfig())), "part 1 is"),
        (((64, first), (True, last)), "part 1 has True output features: an int of at least 1"),
        (((64, first), (0, last)), "part 1 has 0 output features: an int of at least 1"),
        (((72, first), (64, last)), "part 0 has 72 output features: a multiple of 64"),
        (((64, first), (72, last.tuned(scales="sums"))), "scales of the parts multiply weights, sums"),
    ):
        with pytest.raises(PlanError, match=message):
            FeatureParts(parts)


@pytest.mark.parametrize("fmt", [QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("e4m3")], ids=str)
def test_a_recorded_product_needs_no_dispatcher(fmt: QuantizedFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls with gradients, of two orders: torch's operators are for compilers and transforms."""
    weight = QuantizedWeight.quantize(torch.randn(40, 96), fmt)
    dense = weight.dense(torch.bfloat16)
    monkeypatch.setattr(operators, "_QuantizedProduct", None)  # the long way is shut
    x, grad = torch.randn(2, 3, 96).bfloat16().requires_grad_(), torch.randn(2, 3, 40).bfloat16().requires_grad_()
    with torch.no_grad():
        want = quantized_matmul(x, weight)
    got = quantized_matmul(x, weight)
    assert torch.equal(got, want)
    (dx,) = torch.autograd.grad(got, x, grad, create_graph=True)
    assert torch.equal(dx, (grad.double() @ dense.double()).bfloat16())
    (dgrad,) = torch.autograd.grad(dx, grad, torch.ones_like(dx))
    assert torch.equal(dgrad, (torch.ones_like(dx).double() @ dense.double().T).bfloat16())
    bias = torch.randn(40).requires_grad_()
    finished = quantized_matmul(x.detach(), weight, bias=bias, activation="relu", out_dtype=torch.float32)
    finished.sum().backward()
    assert torch.equal(bias.grad, (finished > 0).sum((0, 1)).float())
    got = quantized_matmul(x, weight)
    weight.units.add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        got.sum().backward()


def test_tables_are_copied_to_a_device_once() -> None:
    weight = QuantizedWeight.quantize(torch.ones(64, 128), QuantizedFormat("int4", 64, zeros=True))
    with torch.inference_mode():
        weight.dense()
    before = unpacking._kept_tables.cache_info()
    weight.dense()
    after = unpacking._kept_tables.cache_info()
    assert after.hits == before.hits + 1 and after.misses == before.misses
    with torch._subclasses.FakeTensorMode() as mode:
        fake = dataclasses.replace(weight, units=mode.from_tensor(weight.units))
        assert fake.dense().shape == (64, 128) and unpacking._kept_tables.cache_info() == after


def test_a_gradient_unpacks_all_weights_in_one_launch() -> None:
    """One launch unpacks a matrix, or all experts. It has the sizes, and rows of whole vectors."""
    weight = QuantizedWeight.quantize(torch.randn(70, 131), QuantizedFormat("int8"))
    experts = QuantizedExperts.of([QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int4", 64))] * 3)
    with pytest.MonkeyPatch.context() as patch, bare_launches(patch) as noted:
        dense = unpacking.unpacked(weight.units, weight.scales, torch.bfloat16, facts_of(weight.format, 70, 131))
        assert dense.shape == (70, 131) and dense.stride() == (136, 1)
        assert noted.arguments[-1][3:6] == [70, 136, 1] and noted.arguments[-1][1] == weight.scales.data_ptr()
        assert weight.dense(torch.bfloat16).is_contiguous() and len(noted.arguments) == 2
        x = torch.randn(7, 128).bfloat16().requires_grad_()
        value = quantized_grouped_matmul(x, experts, torch.tensor([0, 4, 4, 7]))
        count = len(noted.arguments)
        value.backward(torch.randn(7, 64).bfloat16())
        assert x.grad.shape == (7, 128) and len(noted.arguments) == count + 2, "one unpacks, one multiplies"
        assert noted.arguments[count][3:6] == [64, 128, 3]


def test_weights_that_no_kernel_reads_are_unpacked_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU without a kernel, and from an address between multiples of 16."""
    weight = QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int4", 64))
    want = weight.dense().bfloat16()
    room = torch.empty(weight.units.numel() + 8, dtype=torch.uint8)
    apart = room[8:].view(weight.units.shape).copy_(weight.units)
    with bare_launches(monkeypatch) as noted:
        assert torch.equal(dataclasses.replace(weight, units=apart).dense(torch.bfloat16), want)

        def refused(index: int) -> tuple[str, int]:
            raise OperandError("no kernel")

        monkeypatch.setattr(unpacking, "target", refused)
        assert torch.equal(weight.dense(torch.bfloat16), want)
        assert not noted.arguments


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fmt", "k"), [(QuantizedFormat("int4", 32, True), 384), (QuantizedFormat("e4m3"), 391)], ids=str
)
def test_weights_are_unpacked_on_a_gpu(fmt: QuantizedFormat, k: int) -> None:
    for kind in (torch.bfloat16, torch.float16):
        weight = QuantizedWeight.quantize(torch.randn(200, k), fmt, kind)
        on_gpu = weight.to("cuda")
        want = weight.dense().to(kind)
        assert torch.equal(on_gpu.dense(kind).cpu(), want)
        x = torch.randn(33, k, dtype=kind, device="cuda", requires_grad=True)
        grad = torch.randn(33, 200, dtype=kind, device="cuda")
        quantized_matmul(x, on_gpu).backward(grad)
        exact = grad.double().cpu() @ want.double()
        assert torch.allclose(x.grad.double().cpu(), exact, rtol=2**-7, atol=2**-7 * float(exact.abs().max()))
