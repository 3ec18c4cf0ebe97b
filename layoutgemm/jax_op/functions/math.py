"""Operations of steps and traced expressions on JAX arrays."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

Number: TypeAlias = "int | float | jax.Array"


class JaxMath:
    """The functions of steps and traced expressions on JAX arrays, in float32."""

    @staticmethod
    def constant(value: float) -> jax.Array:
        """A number."""
        return jnp.float32(value)

    @staticmethod
    def to_float(x: jax.Array) -> jax.Array:
        """Coordinates as float32."""
        return x.astype(jnp.float32)

    @staticmethod
    def whole(x: jax.Array) -> jax.Array:
        """Cut to int32; beyond it the nearest, of NaN 0."""
        found = jnp.where(x < 2.0**31, x, 0.0).clip(-(2.0**31)).astype(jnp.int32)
        return jnp.where(x >= 2.0**31, 2**31 - 1, found)

    @staticmethod
    def below(x: jax.Array) -> jax.Array:
        """The next number below; of -inf NaN, and of NaN infinity."""
        next_one = jnp.where(jnp.isneginf(x), jnp.nan, jnp.nextafter(x, jnp.full_like(x, -jnp.inf)))
        return jnp.where(jnp.isnan(x), jnp.inf, next_one)

    @staticmethod
    def where(condition: jax.Array, yes: Number, no: Number) -> jax.Array:
        """A choice by element."""
        return jnp.where(condition, yes, no)

    exp, log, sqrt, tanh, abs = (staticmethod(f) for f in (jnp.exp, jnp.log, jnp.sqrt, jnp.tanh, jnp.abs))
    sin, cos = staticmethod(jnp.sin), staticmethod(jnp.cos)
    rsqrt, erf, sigmoid = (staticmethod(f) for f in (jax.lax.rsqrt, jax.lax.erf, jax.nn.sigmoid))
    normal, floor, round = staticmethod(jax.scipy.special.ndtr), staticmethod(jnp.floor), staticmethod(jnp.round)
    maximum, minimum = staticmethod(jnp.fmax), staticmethod(jnp.fmin)  # of a NaN and a number, the number
    largest, smallest = staticmethod(jnp.maximum), staticmethod(jnp.minimum)
    add, sub, mul, div = (staticmethod(f) for f in (jnp.add, jnp.subtract, jnp.multiply, jnp.divide))
    floordiv, mod = staticmethod(jnp.floor_divide), staticmethod(jnp.mod)
    lt, le, gt, ge = (staticmethod(f) for f in (jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal))
    eq, ne = staticmethod(jnp.equal), staticmethod(jnp.not_equal)
    and_, or_, xor = (staticmethod(f) for f in (jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor))
