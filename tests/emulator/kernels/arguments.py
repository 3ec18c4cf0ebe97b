"""Functions that take every kind of argument; each writes `value + thread` into a tensor, for 32 threads."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32


@cute.kernel
def fill(x: cute.Tensor, value: Int32):
    thread, _, _ = cute.arch.thread_idx()
    if thread < cute.size(x):
        x[thread] = value + thread


@cute.jit
def stream_left_untyped(x: cute.Tensor, value: Int32, stream):
    fill(x, value).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def untyped(x, value):
    fill(x, Int32(value)).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def with_default(x: cute.Tensor, value: Int32 = 4):
    fill(x, value).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def by_pointer(p: cute.Pointer, count: Int32):
    fill(cute.make_tensor(p, cute.make_layout(count)), 3).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def of_a_list(xs, numbers, flag: cutlass.Boolean):
    fill(xs[0], numbers[0] + numbers[1][0]).launch(grid=[1, 1, 1], block=[32, 1, 1])
    fill(xs[1], Int32(flag)).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def of_an_object(config, missing):
    fill(config.x, config.value).launch(grid=[1, 1, 1], block=[32, 1, 1])
