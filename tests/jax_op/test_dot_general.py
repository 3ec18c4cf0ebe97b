"""layoutgemm.jax.dot_general beside NumPy, as layers of flax call it; results that jax.checkpoint keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.errors import LayoutError
from layoutgemm.jax import dot_general, matmul

BF16, PRESET = jnp.bfloat16, jax.lax.DotAlgorithmPreset
CASES = [  # shapes, and the letters of numpy.einsum
    ((2, 5, 8), (8, 6), "xyk,kn->xyn"),  # Dense
    ((2, 5, 8), (8, 3, 2), "xyk,knh->xynh"),  # DenseGeneral, to heads
    ((2, 5, 3, 2), (3, 2, 6), "xyhd,hdn->xyn"),  # and from heads
    ((2, 5, 8), (2, 8, 6), "byk,bkn->byn"),
    ((2, 4, 3, 8), (2, 5, 3, 8), "bqhd,bkhd->bhqk"),  # attention
    ((8, 5), (6, 8), "km,nk->mn"),  # both turned
    ((5, 8, 3), (8, 6), "xky,kn->xyn"),  # contracted between free ones
    ((8,), (8, 6), "k,kn->n"),
    ((2, 8), (8, 2), "bk,kb->b"),
    ((5,), (6,), "m,n->mn"),
    ((0, 8), (8, 6), "mk,kn->mn"),
]


def numbers(letters: str) -> Any:
    """Dimension numbers of an einsum without sums over one operand; the result's order is dot_general's own."""
    left, right = letters.split("->")[0].split(",")
    shared, result = [x for x in left if x in right], letters.split("->")[1]
    contracted, batch = ([x for x in shared if (x in result) == kept] for kept in (False, True))
    return tuple(tuple([side.index(x) for x in each] for side in (left, right)) for each in (contracted, batch))


def drawn(*shape: int, kind: Any = BF16) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape)).integers(-4, 5, shape), kind)


@pytest.mark.parametrize(("a", "b", "letters"), CASES, ids=[each[2] for each in CASES])
def test_dimensions_are_those_of_einsum(a: Any, b: Any, letters: str) -> None:
    x, y = drawn(*a), drawn(*b)
    made = dot_general(x, y, numbers(letters), preferred_element_type=jnp.float32)
    want = np.einsum(letters, np.asarray(x, np.float64), np.asarray(y, np.float64))
    assert made.dtype == "float32" and np.array_equal(made, want)


def test_types_are_jaxs() -> None:
    plain = numbers("mk,kn->mn")
    for kind, options in (
        (BF16, {}), (BF16, {"precision": "highest"}), (BF16, {"precision": PRESET.BF16_BF16_F32}),
        ("float16", {"preferred_element_type": jnp.float32}), ("float8_e4m3fn", {}),
        ("int8", {"preferred_element_type": jnp.int32}), ("float32", {"precision": "tensorfloat32"}),
        ("float32", {"precision": PRESET.TF32_TF32_F32}),
    ):  # fmt: skip
        x, y = drawn(4, 8, kind=kind), drawn(8, 4, kind=kind)
        want = jax.eval_shape(lambda x, y, kept=options: jax.lax.dot_general(x, y, plain, **kept), x, y)
        assert (made := dot_general(x, y, plain, **options)).dtype == want.dtype and made.shape == want.shape


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "float32": (
        drawn(4, 8, kind="float32"),
        drawn(8, 4, kind="float32"),
        {},
        "a is float32 and b is float32, with prec",
    ),
    "an algorithm": (drawn(4, 8), drawn(8, 4), {"precision": PRESET.F16_F16_F32}, "F16_F16_F32: of algorithms known"),
    "a precision": (drawn(4, 8), drawn(8, 4), {"precision": "junk"}, "Precision argument must be one of"),
    "sums of int8": (drawn(4, 8, kind="int8"), drawn(8, 4, kind="int8"), {}, "sums of it leave int8; say preferred"),
    "sizes": (
        drawn(4, 8),
        drawn(7, 4),
        {},
        r"a is bfloat16\(4, 8\) and b is bfloat16\(7, 4\): .* got \(8,\) and \(7,\)",
    ),
    "no numbers": (drawn(4, 8), drawn(8, 4), {"dimension_numbers": None}, "cannot unpack non-iterable NoneType"),
    "two types": (drawn(4, 8), drawn(8, 4, kind="float16"), {}, "a is bfloat16 and b is float16"),
    "a sharding": (drawn(4, 8), drawn(8, 4), {"out_sharding": 3}, "out_sharding is 3"),
    "objects": (np.array([[object()]]), drawn(8, 4), {}, "a is a NumPy array of object, a type that JAX has not"),
    "texts": (drawn(4, 8), np.array([["a"]]), {}, "b is a NumPy array of <U1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_operand(what: str) -> None:
    a, b, options, said = REFUSED[what]
    with pytest.raises(LayoutError, match=said):
        dot_general(a, b, **{"dimension_numbers": numbers("mk,kn->mn"), **options})


def test_gradients_are_those_of_jax() -> None:
    x, w = drawn(2, 5, 3, 2), drawn(3, 2, 6)

    def loss(multiply: Any, x: Any, w: Any) -> Any:
        return (multiply(x, w, numbers("xyhd,hdn->xyn")).astype(jnp.float32) ** 2).sum()

    made = jax.jit(jax.grad(lambda x, w: loss(dot_general, x, w), (0, 1)))(x, w)
    want = jax.grad(lambda x, w: loss(jax.lax.dot_general, x, w), (0, 1))(*(y.astype(jnp.float32) for y in (x, w)))
    for found, right in zip(made, want, strict=True):
        assert found.dtype == BF16 and np.allclose(np.asarray(found, np.float32), right, rtol=2**-7)


class Param:
    """An array's holder, as flax.nnx.Param."""

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value


def test_holders_of_an_array_are_operands() -> None:
    x, w = drawn(4, 8), drawn(8, 4)
    assert jnp.array_equal(matmul(x, Param(w)), matmul(x, w))


@pytest.mark.parametrize(("activation", "kind"), [(None, "bf16"), ("relu", "bf16"), ("gelu", "f32")])
def test_policies_of_checkpoint_keep_products_by_name(activation: Any, kind: str, capsys: Any) -> None:
    def loss(w: Any) -> Any:
        return jnp.sin(matmul(x, w, activation=activation)).astype(jnp.float32).sum()

    x, w, policies = drawn(4, 8), drawn(8, 5), jax.checkpoint_policies
    for policy, kept in ((policies.save_only_these_names("layoutgemm"), 1), (policies.dots_saveable, 0)):
        jax.ad_checkpoint.print_saved_residuals(jax.checkpoint(loss, policy=policy), w)
        assert capsys.readouterr().out.count(f"{kind}[4,5] ") == kept


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_contracted_dimensions_may_be_sharded(kind: str, mesh: Any) -> None:
    axes = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=(jax.sharding.AxisType[kind],) * 2)
    x, w = drawn(3, 4, 8), drawn(8, 6)
    want = np.einsum("xyk,kn->xyn", np.asarray(x, np.float32), np.asarray(w, np.float32))
    multiply = jax.jit(lambda x, w: dot_general(x, w, numbers("xyk,kn->xyn"), preferred_element_type=jnp.float32))
    with jax.set_mesh(axes):
        given = [jax.device_put(each, jax.P(*spec)) for each, spec in ((x, (None, None, "x")), (w, ("x", None)))]
        made = multiply(*given)
    assert np.array_equal(made, want)
