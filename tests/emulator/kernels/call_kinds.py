"""Functions that take every kind of argument: a thread writes `value + thread`, 32 threads."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int8, Int32, Int64, Uint32


@cute.kernel
def fill(x: cute.Tensor, value: Int32):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = value + thread


@dataclass
class Config:
    x: Any
    scale: Int32
    more: int


@dataclass(frozen=True)
class Frozen:
    more: int
    fixed: cutlass.Constexpr


class Pair(NamedTuple):
    a: Int32
    b: Int32


class Own:
    """Packs itself."""

    def __init__(self, x, value):
        self.x, self.value = x, value

    def __c_pointers__(self):
        return self.x.__c_pointers__() + Int32(self.value).__c_pointers__()

    def __get_mlir_types__(self):
        return [*self.x.__get_mlir_types__(), Int32.mlir_type]

    def __new_from_mlir_values__(self, values):
        return Own(values[0], Int32(values[1]))


@cute.jit
def plain(x: cute.Tensor, n: Int32, stream: cuda.CUstream):
    fill(x, n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def bare(x, flag, n, ratio, stream, late=None):
    fill(x, Int32(flag) + n + Int32(ratio * 2.0)).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def grouped(
    x: cute.Tensor, p: tuple[Int32, tuple[Int32, Int32]], pair: Pair, none: Int32 | None, *, n: Int32 = 4
):  # fmt: skip
    fill(x, p[0] + p[1][0] * p[1][1] + pair.a * pair.b + n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def shaped(x: cute.Tensor, fixed: cute.Shape, n: Int32):
    fill(x, n + fixed[1]).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def classes(config: Config, frozen: Frozen):
    fill(config.x, config.scale * config.more + frozen.more + frozen.fixed).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def own(it):
    fill(it.x, it.value).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def pointed(p: cute.Pointer, n: Int32):
    fill(cute.make_tensor(p, cute.make_layout(32)), n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def viewed(x: cutlass.Array, a: Int8, b: Uint32, c: Float32, d: Boolean):
    through(x, Int32(a) + Int32(b) + Int32(c) + Int32(d)).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.kernel
def through(x: cutlass.Array, value: Int32):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = value + thread


@cute.jit
def addressed(x: cute.Tensor, at: Int64, n: Int32):
    """The same array twice: as a tensor, and as an integer that is its address."""
    pointer = cute.make_ptr(Int32, at, cute.AddressSpace.gmem, assumed_align=4)
    fill(cute.make_tensor(pointer, cute.make_layout(32)), n).launch(grid=[1, 1, 1], block=[32, 1, 1])
