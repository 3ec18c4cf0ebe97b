"""Formats, conversions and the packed order: exhaustion, inverses, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.atoms import wgmma
from layoutgemm.checks import bank_conflicts
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels.quantized import conversions
from layoutgemm.kernels.quantized.blocks import PackedBlocks, PackedTile
from layoutgemm.kernels.quantized.checks import conversion_check, fragments_check, probe
from layoutgemm.kernels.quantized.conversions import TARGETS, FusedPairs, NumpyPairs
from layoutgemm.kernels.quantized.formats import CODES, GROUPS, MXFP4, NVFP4, UNIT_K, QuantizedFormat
from layoutgemm.kernels.quantized.fragments import block_values, fragment, rows_of
from layoutgemm.kernels.quantized.order import PackedOrder
from layoutgemm.kernels.quantized.packing import QuantizedWeights, pack, quantize, unpack

FORMATS = [
    QuantizedFormat("int4", 128), QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("int4"), MXFP4, NVFP4,
    QuantizedFormat("int8"), QuantizedFormat("int8", 64), QuantizedFormat("e4m3"), QuantizedFormat("e5m2", 128),
]  # fmt: skip


@pytest.mark.parametrize("activations", ["bf16", "f16"])
@pytest.mark.parametrize("code", CODES)
def test_every_code_becomes_its_value_at_each_place_of_a_word(code: str, activations: str) -> None:
    assert conversion_check(PackedOrder(QuantizedFormat(code, 128), activations))


@pytest.mark.parametrize("code", CODES)
def test_fused_differences_and_products_convert_every_code_to_bf16(code: str) -> None:
    assert conversion_check(PackedOrder(QuantizedFormat(code, 128), "bf16"), FusedPairs)
    assert conversion_check(PackedOrder(QuantizedFormat("int4", 128, zeros=True), "bf16"), FusedPairs)


@pytest.mark.parametrize("pairs", [NumpyPairs, FusedPairs])
@pytest.mark.parametrize("activations", ["bf16", "f16"])
@pytest.mark.parametrize("zeros", [False, True])
def test_one_shift_converts_every_int4(zeros: bool, activations: str, pairs: type[NumpyPairs]) -> None:
    order = PackedOrder(QuantizedFormat("int4", 128, zeros), activations)
    check = conversion_check(order, pairs, one_shift=True)
    assert check and ("divided by 4" in check.statement) == (activations == "bf16") == (order.division == 4)


def test_one_shift_by_a_wrong_multiplier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(conversions.nibbles(TARGETS["bf16"]), multiplier=2.0**126)
    monkeypatch.setattr(conversions, "nibbles", lambda target: wrong)
    check = conversion_check(PackedOrder(QuantizedFormat("int4", 128), "bf16"), one_shift=True)
    assert not check and check.witness == "code 0 at 0 of a word becomes -72.0"


def test_a_fused_product_with_any_scale_is_the_product() -> None:
    target = TARGETS["bf16"]
    every = np.arange(1 << 16, dtype=np.uint32)
    scales = every[np.isfinite(target.dtype.decode(every))]
    for value in (-8.0, -3.0, -0.0, 0.0, 7.0, 1.5, 448.0):
        word = np.uint32(int(target.dtype.encode(value)) << 16)
        fused, plain = (pairs(target).mul(scales << np.uint32(16), word) for pairs in (FusedPairs, NumpyPairs))
        assert np.array_equal(fused >> np.uint32(16), plain >> np.uint32(16))


@pytest.mark.parametrize("activations", ["bf16", "f16"])
@pytest.mark.parametrize("code", ["e4m3", "e5m2"])
def test_a_scale_with_the_bias_gives_the_bits_of_a_product_with_each(code: str, activations: str) -> None:
    order = PackedOrder(QuantizedFormat(code, 32), activations)
    ops, kind = NumpyPairs(order.target), order.target.dtype
    finite = np.nonzero(np.isfinite(CODES[code].values()))[0].astype(np.uint32)
    word = finite | finite << np.uint32(8) | finite << np.uint32(16) | finite << np.uint32(24)
    bits = np.arange(0, 1 << 16, 13, dtype=np.uint32)  # every thirteenth scale, of both signs and subnormal ones too
    finite_bits = bits[np.isfinite(kind.decode(bits))]
    scales = finite_bits[np.isfinite(kind.decode(kind.encode(kind.decode(finite_bits) * order.bias_factor)))][:, None]
    row = scales | scales << np.uint32(16)
    rows, _ = rows_of(order, [row], ops)
    found = fragment(order, [word[None]] * order.words_of_fragment, rows, [], ops)
    plain = [ops.mul(pair, row) for pair in conversions.pairs_of(code, order.target, word[None], ops)]
    assert len(scales) > 1000 and np.array_equal(np.stack(found), np.stack(plain * order.words_of_fragment))


@pytest.mark.parametrize(("code", "said"), [("e4m3", "code 1 at 1 of a word becomes"), ("e5m2", "code 1 at 1")])
def test_float8_bits_that_are_shifted_too_far_are_found(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order, own = PackedOrder(QuantizedFormat(code), "bf16"), conversions._moved
    assert conversion_check(order) and len({bit for place in range(4) for bit in order.bits_of(place)}) == 32
    monkeypatch.setattr(conversions, "_moved", lambda ops, word, left, mask: own(ops, word, left + (left > 0), mask))
    check = conversion_check(order)
    assert not check and said in check.witness


def test_a_scale_that_takes_no_bias_is_refused() -> None:
    for code, most in (("e4m3", 255.0), ("e5m2", 65280.0)):
        fmt = QuantizedFormat(code, 32)
        weights = QuantizedWeights(fmt, np.ones((2, 64), np.uint8), np.array([[1.0, most], [2.0, 1.0]]))
        assert unpack(pack(weights)).scales[0, 1] == most
        with pytest.raises(OperandError, match=rf"scale \d+ at \(0, 1\) of {fmt}: a kernel multiplies it by"):
            pack(replace(weights, scales=np.array([[1.0, 2 * most], [2.0, 1.0]])))


def test_a_wrong_magic_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(CODES["int4"], excess=7)
    monkeypatch.setattr(conversions, "CODES", {**CODES, "int4": wrong})
    check = conversion_check(PackedOrder(QuantizedFormat("int4", 128), "bf16"))
    assert not check and check.witness == "code 0 at 0 of a word becomes -7.0"


@pytest.mark.parametrize("activations", ["bf16", "f16"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_unpack_is_the_inverse_of_pack(fmt: QuantizedFormat, activations: str) -> None:
    weights = quantize(np.random.default_rng(0).standard_normal((100, 384)), fmt, activations)
    packed = pack(weights, activations)
    again = unpack(packed)
    assert packed.units.shape == (2, 3, PackedOrder(fmt, activations).unit_bytes)
    assert np.array_equal(again.codes, weights.codes)
    assert np.array_equal(again.dense(), weights.dense())


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_threads_make_the_instructions_fragments_of_their_own_vectors(fmt: QuantizedFormat) -> None:
    weights = quantize(np.random.default_rng(1).standard_normal((64, 128)), fmt, "f16")
    packed = pack(weights, "f16")
    dense = weights.dense() if fmt.group else fmt.facts.values()[weights.codes]
    assert np.array_equal(block_values(packed.order, packed.units[0, 0]), dense.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("activations", ["bf16", "f16", "e4m3"])
def test_probes_of_every_format_are_numbers_of_their_type(activations: str) -> None:
    """One infinity equals that of another weight, and hides a wrong fragment."""
    for code, group in itertools.product(CODES, GROUPS):
        with contextlib.suppress(PlanError):  # formats that are not multiplied as e4m3
            order = PackedOrder(QuantizedFormat(code, group), activations)
            operand = PackedBlocks(order, PackedTile((64, UNIT_K), order.unit_bytes), order.target.dtype)
            assert fragments_check(operand), (code, group)
            assert np.isfinite(unpack(pack(probe(order), activations)).dense()).all()


def test_the_order_is_that_of_the_registers_of_wgmma() -> None:
    order = PackedOrder(QuantizedFormat("int4", 128), "bf16")
    assert str(order.codes) == "(((2,2),2),4,(4,8,4),2):(((8,512),64),1024,(128,1,16),4096)"
    row, column = wgmma(16, a_source="rmem").coords("A")(77, 3)  # code 5 of a word is the high half of pair 1
    assert order.codes((5, 2, 77, 1)) == row + 64 * (column + 16 * 2 + 64)
    for layout in (order.codes, order.scales, PackedOrder(QuantizedFormat("e4m3", 16), "f16").codes):
        assert layout.is_bijective()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_vectors_and_scales_are_loaded_without_bank_conflicts(fmt: QuantizedFormat) -> None:
    order, lanes = PackedOrder(fmt, "bf16"), np.arange(32)
    for warp in range(4):
        assert bank_conflicts(np.asarray(order.vector_bytes(32 * warp + lanes, 0)), 16).conflict_free
        assert bank_conflicts(np.asarray(order.scale_bytes(32 * warp + lanes, 0)), 4 * order.scale_words).conflict_free


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_rounding_is_to_the_nearest_code(fmt: QuantizedFormat) -> None:
    wide = np.random.default_rng(2).standard_normal((32, 256))
    found = quantize(wide, fmt)
    scales = np.asarray(found.scales)
    each = scales[:, None] if fmt.group is None else np.repeat(scales, fmt.group, axis=1)
    finite = fmt.facts.values()[np.isfinite(fmt.facts.values())]
    if fmt.zeros:
        assert (np.abs(found.dense() - wide) <= each * 1.01).all()  # zero point and weight are rounded
    else:
        nearest = np.abs(wide[..., None] - each[..., None] * finite).min(axis=-1)
        assert np.allclose(np.abs(found.dense() - wide), nearest, atol=1e-12)


def test_a_scale_that_the_activations_hold_not_is_refused() -> None:
    weights = QuantizedWeights(QuantizedFormat("int4", 128), np.zeros((2, 128), np.uint8), np.full((2, 1), 1e-9))
    with pytest.raises(OperandError, match=r"scale 1e-09 at \(0, 0\) is 0.0 as f16"):
        pack(weights, "f16")
    with pytest.raises(OperandError, match=r"group \(0, 0\) take a scale of 142857, which is inf as f16"):
        quantize(np.full((2, 128), 1e6), QuantizedFormat("int4", 128), "f16")
    assert unpack(pack(weights)).scales[0, 0] == pytest.approx(1e-9, rel=2**-8)


REFUSED = {
    "codes": (lambda: _weights(codes=np.full((2, 128), 16, np.uint8)), "code 16 at (0, 0): int4 has no such weight"),
    "K": (lambda: _weights(codes=np.zeros((2, 200), np.uint8)), "K = 200 is 1 groups of 128 and 72 more"),
    "scales": (lambda: _weights(scales=np.ones(2)), "scales are of shape (2,)"),
    "infinite": (lambda: _weights(scales=np.full((2, 1), np.inf)), "scale (0, 0) is not finite"),
    "zeros": (lambda: _weights(zeros=np.zeros((2, 1))), "zeros are given, and int4 in groups of 128 has none"),
    "NaN": (
        lambda: QuantizedWeights(QuantizedFormat("e4m3"), np.full((1, 4), 0x7F, np.uint8), np.ones(1)),
        "code 127 at (0, 0): e4m3 has no such weight",
    ),
    "zero point": (
        lambda: QuantizedWeights(
            QuantizedFormat("int4", 128, True), np.zeros((1, 128), np.uint8), np.ones((1, 1)), np.full((1, 1), 17)
        ),
        "zero point 17.0 at (0, 0): an integer from 0 to 16",
    ),
    "complex scales": (lambda: _weights(scales=np.full((2, 1), 1j)), "scales are complex128 of shape (2, 1): real"),
    "scales of a text": (lambda: _weights(scales=np.full((2, 1), "a")), "scales are <U1 of shape (2, 1): real numbers"),
    "a column's scale beyond float32": (lambda: pack(_column(1e300)), "scale 1e+300 at (0,) is inf as f32"),
    "a column's scale below float32": (lambda: pack(_column(1e-60)), "scale 1e-60 at (0,) is 0.0 as f32"),
    "a column's weight beyond float32": (
        lambda: pack(_column(1e38)), "weight -8e+38 at (0, 0), of scale 1e+38, is no number of f32",
    ),
    "a weight beyond f16": (
        lambda: pack(_weights(scales=np.array([[1.0], [3e4]])), "f16"),
        "weight -240000 at (1, 0), of scale 30000, is no number of f16, the type in which it is multiplied",
    ),
    "units of another format": (
        lambda: replace(pack(_weights()), format=QuantizedFormat("int8", 128)),
        "units are uint8 of (1, 1, 4224): uint8 of (1, 1, 8320)",
    ),
    "units of another type": (
        lambda: replace(pack(_weights()), units=np.zeros((1, 1, 4224), np.int8)), "units are int8 of (1, 1, 4224)",
    ),
    "scales of groups": (
        lambda: replace(pack(_weights()), scales=np.ones(2, np.float32)), "scales are given, and weights are int4 in",
    ),
    "scales of fewer columns": (
        lambda: replace(pack(_column(1.0)), scales=np.ones(3, np.float32)), "scales are float32 of shape (3,): float32",
    ),
    "K of packed weights": (lambda: replace(pack(_weights()), k=100), "K = 100 is 0 groups of 128 and 100 more"),
    "format": (lambda: QuantizedFormat("int3"), "code = 'int3': do you mean 'int8'? known are int4, e2m1, int8, e4m3"),
    "zeros of floats": (lambda: QuantizedFormat("e4m3", 128, True), "zero points are of int4 in groups"),
    "complex weights": (lambda: _int4(np.full((2, 128), 1 + 2j)), "weights are complex128 of shape (2, 128): real"),
    "weights of text": (lambda: _int4([["1.5"] * 128]), "weights are <U3 of shape (1, 128): real numbers"),
    "weights of dates": (lambda: _int4(np.zeros((2, 128), "M8[D]")), "weights are datetime64[D] of shape (2, 128)"),
    "ragged weights": (lambda: _int4([[1.0], [2.0, 3.0]]), "weights are [[1.0], [2.0, 3.0]]: an array of real numbers"),
    "wide weights": (lambda: _int4(np.full((2, 128), 2**53 + 1)), "weights has 9007199254740993 at (0, 0)"),
    "wide scales": (lambda: _weights(scales=np.full((2, 1), -(2**53) - 1)), "scales has -9007199254740993 at (0, 0)"),
    "type": (lambda: pack(_weights(), "f32"), "activations = 'f32': known are bf16, f16"),
}  # fmt: skip


def _int4(weights: object) -> QuantizedWeights:
    return quantize(weights, QuantizedFormat("int4", 128))  # type: ignore[arg-type]


def _weights(**other: object) -> QuantizedWeights:
    usual = {"codes": np.zeros((2, 128), np.uint8), "scales": np.ones((2, 1))}
    return QuantizedWeights(QuantizedFormat("int4", 128), **{**usual, **other})


def _column(scale: float) -> QuantizedWeights:
    return QuantizedWeights(QuantizedFormat("int4"), np.zeros((2, 128), np.uint8), np.full(2, scale))


def test_weights_within_their_type_are_packed_at_any_scale() -> None:
    """Codes of small values: no other weight of the scale has to be a number of the type."""
    weights = QuantizedWeights(QuantizedFormat("int4", 128), np.full((2, 128), 9, np.uint8), np.full((2, 1), 3e4))
    assert (unpack(pack(weights, "f16")).dense() == 3e4).all()


@pytest.mark.parametrize("fmt", [QuantizedFormat("int4", 128), QuantizedFormat("int4", 128, True)], ids=str)
def test_scales_that_would_round_to_zero_are_the_smallest_number(fmt: QuantizedFormat) -> None:
    """The smallest f16 is 2**-24: weights of two, one and a third of it are two, one and none."""
    weights = np.repeat(2.0**-24 * np.array([[2, 1, 1 / 3, 0]]), 32, axis=1)
    found = unpack(pack(quantize(weights, fmt, "f16"), "f16"))
    assert (found.dense()[0, ::32] == 2.0**-24 * np.array([2, 1, 0, 0])).all()


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_operand(what: str) -> None:
    call, said = REFUSED[what]
    with pytest.raises(LayoutError) as refused:
        call()
    assert said in str(refused.value)
    assert isinstance(refused.value, (OperandError, PlanError))
