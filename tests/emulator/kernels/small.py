"""Small kernels of the CuTe DSL for the emulator's tests: elementwise, two launches, tensor copies both ways."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

THREADS = 128


class Scale:
    """y = factor * x, a thread an element; x and y of any length."""

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, count: Int32, factor: Float32) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        i = block * THREADS + thread
        if i < count:
            y[i] = x[i] * factor

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, count: Int32, factor: Float32, stream: cuda.CUstream) -> None:
        blocks = (count + THREADS - 1) // THREADS
        self.kernel(x, y, count, factor).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


class Room:
    """room = a + 1, of four elements: what stands behind the arguments of a function is a workspace."""

    @cute.kernel
    def kernel(self, a: cute.Tensor, room: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        room[thread] = a[thread] + 1.0

    @cute.jit
    def __call__(self, a: cute.Tensor, room: cute.Tensor) -> None:
        self.kernel(a, room).launch(grid=(1, 1, 1), block=(4, 1, 1))


@cute.jit
def greet(count: Int32) -> None:
    """A host function without kernels, which prints."""
    cute.printf("seven is %d\n", count)


class Dependent:
    """y = x + 1, then z = 2 * y by a dependent launch (PDL); waits: it has griddepcontrol.wait."""

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @cute.kernel
    def add(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        cute.arch.griddepcontrol_launch_dependents()
        y[thread] = x[thread] + 1.0

    @cute.kernel
    def double(self, y: cute.Tensor, z: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.waits):
            cute.arch.griddepcontrol_wait()
        z[thread] = y[thread] * 2.0

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, z: cute.Tensor) -> None:
        self.add(x, y).launch(grid=(1, 1, 1), block=(32, 1, 1))
        self.double(y, z).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=True)


class Twice:
    """Two launches of different kernels: x += 1, then x *= 2, the second in clusters of two."""

    @cute.kernel
    def add(self, x: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        x[thread] = x[thread] + 1.0

    @cute.kernel
    def double(self, x: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        x[block * 32 + thread] = x[block * 32 + thread] * 2.0

    @cute.jit
    def __call__(self, x: cute.Tensor) -> None:
        self.add(x).launch(grid=(1, 1, 1), block=(64, 1, 1))
        self.double(x).launch(grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1))


class Copy:
    """Tiles of a matrix through shared memory, by NVIDIA's own tensor-copy atoms.

    waits  False leaves out the wait before the store: a race
    """

    def __init__(self, tile: tuple[int, int] = (32, 64), swizzle: int = 3, waits: bool = True) -> None:
        self.tile, self.swizzle, self.waits = tile, swizzle, waits

    def layout(self) -> Any:
        compact = cute.make_layout(self.tile, stride=(self.tile[1], 1))
        return cute.make_composed_layout(cute.make_swizzle(self.swizzle, 4, 3), 0, compact)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor) -> None:
        layout = self.layout()
        load, a_tiles = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), a, layout, self.tile)
        store, b_tiles = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), b, layout, self.tile)
        grid = cute.ceil_div(a.shape, self.tile)
        self.kernel(load, a_tiles, store, b_tiles, a.element_type).launch(grid=(grid[0], grid[1], 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(
        self, load: cute.CopyAtom, a: cute.Tensor, store: cute.CopyAtom, b: cute.Tensor,
        kind: cutlass.Constexpr,
    ) -> None:  # fmt: skip
        layout = self.layout()
        row, column, _ = cute.arch.block_idx()
        allocator = cutlass.memory.SmemAllocator()
        tile = allocator.allocate_tensor(kind, layout.outer, 1024, layout.inner)
        barrier = allocator.allocate_array(Int64, 1)
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        gathered = self.pieces(load, cute.local_tile(a, self.tile, (row, column)), tile)
        scattered = self.pieces(store, cute.local_tile(b, self.tile, (row, column)), tile)
        # The whole warp: the DSL's load elects a lane itself.
        if thread == 0:
            count = self.tile[0] * self.tile[1] * kind.width // 8
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, count)
        cute.copy(load, gathered[1], gathered[0], tma_bar_ptr=barrier)
        if cutlass.const_expr(self.waits):
            cute.arch.mbarrier_wait(barrier, 0)
        if thread == 0:
            cute.copy(store, scattered[0], scattered[1])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.mbarrier_wait(barrier, 0)

    @cute.jit
    def pieces(self, atom: cute.CopyAtom, tensor: cute.Tensor, tile: cute.Tensor) -> Any:
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tensor, 0, 2)
        )


class Maps:
    """A kernel with a tensor map, encoded by NVIDIA's atom, of a run-time row-major matrix."""

    def __init__(self, element: Any, tile: tuple[int, int], swizzle: int) -> None:
        self.element, self.tile, self.swizzle = element, tile, swizzle

    @cute.jit
    def __call__(self, address: cute.Pointer, rows: Int32, columns: Int32, pitch: Int32) -> None:
        unit = 128 // self.element.width
        matrix = cute.make_tensor(
            address, cute.make_layout((rows, columns), stride=(cute.assume(Int64(pitch), unit), 1))
        )
        compact = cute.make_layout(self.tile, stride=(self.tile[1], 1))
        layout = cute.make_composed_layout(cute.make_swizzle(self.swizzle, 4, 3), 0, compact)
        atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), matrix, layout, self.tile)
        self.kernel(atom).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, atom: cute.CopyAtom) -> None:
        cpasync.prefetch_descriptor(atom)
