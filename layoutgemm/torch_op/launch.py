"""Problems of torch tensors, launched: a kernel compiled once, arguments laid out once, a call that writes four words.

    Problem --solve--> Solution --Prepared--> kernel loaded on the GPU, argument blocks, copies if any

`Prepared.launch` is the fast path: pointers and stream into a block of its own, then the compiled host function.
Several threads and streams may launch one Prepared at once: a block belongs to one call at a time. Nothing is allocated
there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..arch import arch
from ..dtypes import dtype
from ..errors import OperandError, PlanError
from ..kernels.compile import worker as compile_apart
from ..kernels.compile.compiler import CompiledGemm
from ..kernels.compile.launcher import THREAD, Block, bind, error_name
from ..kernels.compile.worker import Kernel
from ..kernels.epilogue.chain import MAX_WORDS, Epilogue
from ..kernels.run.occupancy import of_device
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import Sm80Config
from ..kernels.sm90.choose.occupancy import Places
from ..kernels.sm90.choose.rules import Sm90Choice
from .problem import Copy, Given, Problem, Solution, contiguous_strides, solve

# torch's types and the names that plans use; float32 is multiplied as tf32, which keeps 11 bits of the significand.
NAMES = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
    torch.float32: "tf32", torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip
C_NAMES = {**NAMES, torch.float32: "f32", torch.int32: "i32"}
TYPES = {name: kind for kind, name in C_NAMES.items()}
_NO_COPIES = (None, None, None)
MAX_KERNELS = 1024
_WORDS = 14  # where an epilogue's words begin, after the product's own arguments


class Prepared:
    """A problem on one GPU, ready to be launched any number of times.

    solution  what is launched
    shape     of the result, its strides, and its type `kind`
    device    index of the GPU
    simple    one launch and no copies: `launch` alone does it
    tf32      float32 operands, for which the caller's leave is asked each time
    spans     bytes that A, B and C reach over, from their first
    """

    __slots__ = (
        "_a", "_b", "_entry", "_free", "_launcher", "_stream", "_template",
        "device", "kind", "shape", "simple", "solution", "spans", "strides", "tf32",
    )  # fmt: skip

    def __init__(self, problem: Problem, shape: Sequence[int], kind: torch.dtype, device: int):
        self.solution = solve(problem)
        self.shape, self.kind, self.device = tuple(shape), kind, device
        self.strides = contiguous_strides(self.shape)
        self.simple = self.solution.copies == _NO_COPIES and len(self.solution.launches) == 1
        self.tf32 = problem.a.dtype == "tf32"
        self.spans = tuple([span(x) for x in (problem.a, problem.b, problem.c)])
        compiled = kernel(self.solution)
        compiled.launcher.load(device)
        self._launcher, self._entry = compiled.launcher, compiled.launcher.entry
        self._template = arguments(self.solution, (0, 0, 0), workers(self.solution, problem.places))
        self._a, self._b = (1, 0) if self.solution.kernel.choice.swapped else (0, 1)
        self._stream = len(self._template)
        self._free: list[Block] = []

    def launch(self, a: int, b: int, c: int, stream: int, words: Sequence[int] = ()) -> None:
        """Launch at these addresses on a stream of the current device, which has to be this one's.

        words  the epilogue's, as `kernels.epilogue_words` makes them

        Raises PlanError when CUDA refuses.
        """
        try:
            THREAD.bound  # noqa: B018  # absent in a thread that has no context yet
        except AttributeError:
            bind(self.device)
        try:
            block = self._free.pop()
        except IndexError:  # as many blocks as there were calls at once
            block = self._launcher.block(self._template)
        values = block.values
        values[self._a] = a
        values[self._b] = b
        values[2] = c
        if words:
            for place, word in enumerate(words, _WORDS):
                values[place] = word
        values[self._stream] = stream
        self._entry(block.pointer)
        error = values[self._stream + 1]
        self._free.append(block)
        if error:
            raise PlanError(f"CUDA refused the launch: {error_name(error & 0xFFFFFFFF)}; {self.solution.kernel}")

    def run(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, words: Sequence[int] = ()
    ) -> torch.Tensor:
        """C = A @ B on the current stream of their device, copies included."""
        c = torch.empty(self.shape, dtype=self.kind, device=a.device) if out is None else out
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            run(self.solution, a, b, c, lambda x, y, z: self.launch(x, y, z, stream, words))
        return c


def run(
    solution: Solution, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, launch: Callable[[int, int, int], object]
) -> None:
    """Make the solution's copies, launch at each place, and bring C to where it was wanted."""
    copies = solution.copies
    read = [copied(x, copy) for x, copy in zip((a, b), copies[:2], strict=True)]
    target = c if copies[2] is None else empty_copy(c, copies[2])
    sizes = [x.element_size() for x in (*read, target)]
    first = [x.data_ptr() for x in (*read, target)]
    for at in solution.launches:
        launch(*[p + o * size for p, o, size in zip(first, at, sizes, strict=True)])
    if target is not c:
        c.copy_(target)


def copied(x: torch.Tensor, copy: Copy | None) -> torch.Tensor:
    """The operand, or its copy; dimensions that are stretched, and stay so, are copied once."""
    if copy is None:
        return x
    made = empty_copy(x, copy)
    if len(copy.shape) == x.ndim:
        for place, (size, kept) in enumerate(zip(x.shape, copy.shape, strict=True)):
            x = x.narrow(place, 0, 1) if kept == 1 and size != 1 else x
    made.copy_(x.expand(copy.shape))
    return made


def empty_copy(x: torch.Tensor, copy: Copy) -> torch.Tensor:
    """Memory for a copy, with its strides."""
    return torch.empty_strided(copy.shape, copy.strides, dtype=x.dtype, device=x.device)


def arguments(
    solution: Solution, pointers: Sequence[Any], workers: int, words: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """A launch's arguments, as the kernel's `parameters` name them; the epilogue's words come last."""
    choice = solution.kernel.choice
    own = choice.arguments(pointers, solution.sizes, solution.leading, solution.strides, workers)
    return (*own, *words, *[0] * (MAX_WORDS - len(words))) if solution.kernel.epilogue else own


def workers(solution: Solution, places: Places) -> int:
    """Clusters that run at a time: one more would begin when another has ended, and have as much to do."""
    return places.resident(cluster_size(solution.kernel.choice))


def cluster_size(choice: Sm90Choice | Sm80Choice) -> int:
    """Blocks of a cluster."""
    config = choice.config
    if isinstance(config, Sm80Config):
        return 1
    return config.cluster[0] * config.cluster[1] * config.split


def kernel(solution: Solution) -> CompiledGemm:
    """The solution's kernel: from memory, from the cache on disk, or compiled."""
    return _kernel(solution.kernel)


@functools.lru_cache(MAX_KERNELS)
def _kernel(kernel: Kernel) -> CompiledGemm:
    compile_apart.prepare(kernel)
    return compile_apart.plan_of(kernel).compile()


def plan_of(solution: Solution) -> Any:
    """The plan of a solution, for its sizes."""
    return solution.kernel.plan(*solution.sizes)


# -------------------------------------------------------------------------------------------------------------- tensors


def span(x: Given) -> int:
    """Bytes from a tensor's first element to behind its last.

    >>> span(Given((2, 3), (8, 1), "bf16"))
    22
    """
    return (sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)) + 1) * dtype(x.dtype).bytes


def given(x: torch.Tensor, name: str) -> Given:
    """A tensor as part of a problem."""
    return Given(tuple(x.shape), tuple(x.stride()), name, start(x))


def start(x: torch.Tensor) -> int:
    """The largest power of two up to 16 that the tensor's address is a multiple of."""
    address = x.data_ptr()
    return min(16, address & -address) if address else 16


def problem_of(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | Given, config: Sm90Choice | None, room: Places,
    gpu: str, epilogue: Epilogue | None = None, apart: bool = False, on: tuple[str, int] | None = None,
    gated: str | None = None,
) -> Problem:  # fmt: skip
    """The product of two tensors, into a third or what stands for one, as a problem; `on` is what `target` says."""
    into = c if isinstance(c, Given) else given(c, C_NAMES[c.dtype])
    of_a, of_b = given(a, NAMES[a.dtype]), given(b, NAMES[b.dtype])
    code, smem = target(-1) if on is None else on
    return Problem(of_a, of_b, into, room, gpu, config, epilogue, apart, code, smem, gated)


@functools.cache
def gpu(index: int) -> tuple[Places, str]:
    """What a GPU has place for, and its name; -1 stands for an H200.

    Raises OperandError where the kernels do not run on it.
    """
    target(index)
    if index < 0:
        return Places(), "NVIDIA H200"
    return of_device(index), str(torch.cuda.get_device_properties(index).name)


@functools.cache
def target(index: int) -> tuple[str, int]:
    """What code runs on a GPU, and the bytes of shared memory that a block may have there; -1 stands for an H200.

    Raises OperandError where no kernel runs on it.
    """
    if index < 0:
        return "sm_90a", arch("sm_90a").smem_per_block
    found = torch.cuda.get_device_properties(index)
    version = found.major, found.minor
    code = "sm_80" if found.major == 8 else {(9, 0): "sm_90a", (12, 0): "sm_120a"}.get(version)
    if code is None or torch.version.hip:
        raise OperandError(
            f"cuda:{index} is {found.name}, compute capability {found.major}.{found.minor}; these kernels run on 9.0 "
            "(H100, H200, GH200), and by mma.sync on 8.x and 12.0. torch.matmul takes the same tensors"
        )
    # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 99 KB on 8.6 and 8.9
    usual = 99 << 10 if version in ((8, 6), (8, 9)) else arch(code).smem_per_block
    return code, int(getattr(found, "shared_memory_per_block_optin", usual))


def emulate(
    solution: Solution, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, words: Sequence[Any] = (), workers: int = 2
) -> None:
    """The same kernel, arguments and copies on CPU tensors, in the emulator; raises EmulatorError for what it finds.

    For tests: it takes seconds where a GPU takes microseconds.
    """
    from ..kernels.run.emulated import emulate_launch

    # Elements as plain words of their width: what they mean is the kernel's business.
    plan = compile_apart.plan_of(solution.kernel)
    held: list[torch.Tensor] = []

    def launch(*addresses: int) -> None:
        arrays = [_words(at, held) for at in addresses]
        emulate_launch(plan, arguments(solution, arrays, workers, words), progress=False).raise_for_findings()

    copies = solution.copies
    read = [copied(x, copy) for x, copy in zip((a, b), copies[:2], strict=True)]
    target = c if copies[2] is None else empty_copy(c, copies[2])
    held += [*read, target]
    first, sizes = [x.data_ptr() for x in held], [x.element_size() for x in held]
    for at in solution.launches:
        launch(*[p + o * size for p, o, size in zip(first, at, sizes, strict=True)])
    if target is not c:
        c.copy_(target)


def _words(address: int, held: Sequence[torch.Tensor]) -> Any:
    """The memory from an address to the end of its allocation, as a NumPy array of its elements' width."""
    for x in held:
        storage = x.untyped_storage()
        first, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if first <= address < end:
            kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]
            whole = torch.empty(0, dtype=torch.uint8).set_(storage).narrow(0, address - first, end - address)
            return whole[: (end - address) // x.element_size() * x.element_size()].view(kind).numpy()
    raise OperandError(f"address {address:#x} is in none of the tensors")
