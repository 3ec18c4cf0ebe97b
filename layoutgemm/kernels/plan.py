"""The common part of all plans: limits, launch parameters and verbs.

GemmPlan          compile, run, svg, html, for_any_size
PersistentPlan    the same, and what follows from tensor stores and an epilogue: Hopper's and Blackwell's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..arguments import as_int, check_range, checked, settle, shown
from ..checks.budgets import most_stages
from ..errors import PlanError
from ..layouts.display import HasPage, HasPicture
from .numbers import W
from .operands.combinations import Asked
from .verbs import named

if TYPE_CHECKING:
    from ..arch import Arch
    from ..atoms import MmaAtom
    from ..dtypes import DType
    from ..report import Report
    from .derive import Operand
    from .epilogue.chain import Epilogue
    from .store import StorePlan

BARRIER_BYTES = 8  # PTX ISA, "mbarrier": a 64-bit object, 8-byte aligned
MAX_COORDINATE = (1 << 31) - 1  # tensor coordinates are signed 32-bit: PTX ISA, cp.async.bulk.tensor
MAX_TILES = 1 << 30  # a tile's number and two steps of a grid more are a signed 32-bit integer
STAGE_BYTES_OF_K = 128  # of a tile copied by tensor copies: one swizzle span
MAX_GROUP = 1024  # tiles of a band: a band of 2**20 tiles across has a number below 2**31
DEFAULT_STAGES = 4  # of kernels that take no more unless asked
LEAST_STAGES = 2  # one is multiplied while the next is loaded
WORKSPACE = "workspace"  # the word that has the address of `GemmPlan.workspace` bytes
MAX_WORDS = 16  # extra 64-bit parameters of a kernel
# The parameters of a host function, without the stream: name -> "address" (bytes, 64 bits), "size" (elements, 32 bits),
# "stride" (elements, 64 bits) or "word" (64 bits). Here of one product; of a batch; of a persistent kernel.
PARAMETERS = {
    **dict.fromkeys(("a", "b", "c"), "address"),
    **dict.fromkeys(("m", "n", "k"), "size"),
    **dict.fromkeys(("lda", "ldb", "ldc"), "stride"),
}
BATCH_PARAMETERS = {
    **dict.fromkeys(("a", "b", "c"), "address"),
    **dict.fromkeys(("m", "n", "k", "batch"), "size"),
    **dict.fromkeys(("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c"), "stride"),
}
PERSISTENT_PARAMETERS = {**BATCH_PARAMETERS, "workers": "size"}
# Raises PlanError for a size, by its name, that a tensor coordinate does not reach.
check_sizes = partial(
    check_range, PlanError, MAX_COORDINATE, "a size is 1 to 2**31 - 1, since tensor coordinates have 31 bits"
)
P = TypeVar("P", bound="GemmPlan")
T = TypeVar("T")


def tile_count(extent: W, tile: int) -> W:
    """Tiles along a dimension, the last one possibly ragged. Ints or traced integers, without the overflow of a sum.

    >>> tile_count(128, 64), tile_count(129, 64)
    (2, 3)
    """
    return (extent - 1) // tile + 1


def rounded_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not less.

    >>> rounded_up(1000, 128)
    1024
    """
    return -(-value // unit) * unit


def present(part: T | None) -> T:
    """A part that this kind of plan has: not None."""
    assert part is not None
    return part


def stage_depth(asked: int | None, span: int, kind: DType, atom: MmaAtom) -> int:
    """Elements of K in a stage: as asked, or `span` bytes; raises PlanError.

    >>> from layoutgemm.atoms import mma_sync
    >>> from layoutgemm.dtypes import bf16
    >>> stage_depth(None, 128, bf16, mma_sync((16, 8, 16)))
    64
    """
    depth = atom.shape_mnk[2]
    found = span * 8 // kind.bits if asked is None else asked
    if found < depth or found % depth:
        raise PlanError(f"tile_k = {shown(found)}: a positive multiple of the instruction's K = {depth}")
    return found


# Of what shared memory and L1 have in common, in percent: for a launch of several CTAs an SM.
ALL_SHARED = 100


def launch_bytes(arch: Arch, needed: int, overlap: bool, blocks_per_sm: int) -> int:
    """Bytes of shared memory that a launch asks for. With `overlap`, so many that an SM holds `blocks_per_sm`.

    CTAs that start before the kernel before has ended go where there is room. Two of them on the first free SMs leave
    others without one (`benchmarks/NOTES.md`, "One block on an SM").

    needed  bytes that a CTA uses

    >>> from layoutgemm.arch import arch
    >>> [launch_bytes(arch("sm_90a"), 86032, overlap, 1) for overlap in (False, True)]
    [86032, 115713]
    """
    return max(needed, arch.smem_of_one_block if overlap and blocks_per_sm == 1 else 0)


def fitting_stages(
    arch: Arch, stages: int | None, least: int, each: int, beside: int, taken: str,
    most: int = MAX_COORDINATE, blocks_per_sm: int = 1,
) -> int:  # fmt: skip
    """The stages asked for, or as many as fit into a CTA's shared memory.

    each, beside    bytes of a stage with its barriers, and of everything else
    taken           both in words, for the refusal
    most            of stages that were not asked for
    blocks_per_sm   CTAs that share an SM

    Raises PlanError for fewer than `least`, or more than fit.

    >>> from layoutgemm.arch import arch
    >>> fitting_stages(arch("sm_90a"), None, 2, 48 * 1024, 1024, "A, B"), most_stages(arch("sm_90a"), 48 * 1024)
    (4, 4)
    >>> fitting_stages(arch("sm_80"), 3, 2, 32 * 1024, 0, "A, B", blocks_per_sm=2)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: 3 stage(s), and at least 2, of A, B: 2 fit where 2 CTAs share an SM
    """
    fits = most_stages(arch, each, beside, blocks_per_sm)
    found = min(fits, most) if stages is None else stages
    if not least <= found <= fits:
        room = (
            f"where {blocks_per_sm} CTAs share an SM"
            if blocks_per_sm > 1
            else f"into {arch.smem_per_block} bytes of shared memory"
        )
        raise PlanError(f"{shown(found)} stage(s), and at least {least}, of {taken}: {fits} fit {room}")
    return found


def check_fields(config: Any, **leasts: int) -> None:
    """Raise PlanError for a configuration's field of another type or out of range.

    leasts  of single numbers; others, and those of tuples, are at least 1, and all are below 2**31. What `derive` may
            choose, an "int | None", is bounded there
    """
    settle(config, PlanError)
    for name, single in _named_fields(config.__class__):
        value, least = getattr(config, name), leasts.get(name, 1)
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and least <= number <= MAX_COORDINATE:  # nearly always: a choice tries thousands
                continue
            if isinstance(number, int) and not isinstance(number, bool):
                chosen = least if single or isinstance(value, tuple) else None
                as_int(number, f"{name} of {type(config).__name__}", PlanError, chosen, MAX_COORDINATE)
    group, most = getattr(config, "group", 1), MAX_GROUP
    if group > most:
        raise PlanError(f"group = {group}: {most} at most, since group * tiles across is a signed 32-bit integer")


@cache
def _named_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a dataclass, and whether each is annotated as one integer."""
    return tuple([(field.name, field.type == "int") for field in fields(kind)])


def check_words(words: tuple[str, ...]) -> None:
    """Raise PlanError for more words than a kernel takes, or two parameters of one name."""
    if len(words) > MAX_WORDS:
        raise PlanError(f"the kernel takes {MAX_WORDS} words, and these are {len(words)}: {', '.join(words)}")
    names = (*PERSISTENT_PARAMETERS, *words)
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise PlanError(f"two parameters of the kernel are named {twice[0]}: give the operand another name")


def check_settings(config: object, what: str, /, **wanted: object) -> None:
    """Raise PlanError for a setting that a kind of product does not take.

    what  the product, and the verb

    >>> from layoutgemm.kernels import Sm90Config
    >>> check_settings(Sm90Config(overlap=True), "a grouped product takes", split=1, overlap=False)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: overlap = True: a grouped product takes False
    """
    for name, value in wanted.items():
        if (found := getattr(config, name)) != value:
            raise PlanError(f"{name} = {shown(found)}: {what} {shown(value)}")


def check_epilogue(epilogue: Epilogue, c: Operand) -> None:
    """Raise PlanError for an integer C."""
    if epilogue and c.dtype.kind != "float":
        raise PlanError(f"c is {c.dtype}, and an epilogue computes in f32: store f32, or a narrower float")


def parameters_with(words: tuple[str, ...]) -> dict[str, str]:
    """The launch parameters of a kernel with words of its own. Sixteen words follow the others."""
    named_words = [*words, *[f"unused{i}" for i in range(len(words), MAX_WORDS)]]
    return {**PERSISTENT_PARAMETERS, **dict.fromkeys(named_words, "word")}


@dataclass(frozen=True, slots=True)
class SmemMap:
    """The map of a CTA's dynamic shared memory, in bytes from an aligned address.

    a, b      the stages of A's and of B's tiles, each a multiple of `*_stage_bytes` behind `*_offset`
    barrier   one mbarrier a stage, `barrier_bytes` apart
    """

    a_offset: int
    a_stage_bytes: int
    b_offset: int
    b_stage_bytes: int
    barrier_offset: int
    barrier_bytes: int
    total: int
    alignment: int

    def stage(self, operand: str, number: int) -> int:
        """The first byte of a stage of A or of B."""
        if operand == "A":
            return self.a_offset + number * self.a_stage_bytes
        return self.b_offset + number * self.b_stage_bytes


@dataclass(frozen=True, slots=True)
class StoreSmemMap(SmemMap):
    """The same with C's buffers. Those of the first warp that stores, then the next one's."""

    c_offset: int
    c_buffer_bytes: int


class GemmPlan(HasPicture, HasPage):
    """A GEMM kernel for some sizes, derived and checked: the common type of all plans.

    m, n, k, batch  the product's sizes
    arch            the architecture that the kernel is compiled for
    a, b, c         the operands: type, order, and what follows from them
    mma, tile       the matrix instruction, and the tile of C and K that a block computes
    stages          tiles of K in flight
    config          what was chosen for the kernel
    operand_path    how matrices come to the kernel: a `kernels.run.torch_tensors.OperandPath`, named in the same way
    verbs           verb -> the function that does it, as `kernels.verbs.named` takes it; each kind of plan has its own

    >>> from layoutgemm import GemmPlan, plan
    >>> isinstance(plan(4096, 4096, 4096), GemmPlan)
    True
    """

    m: int
    n: int
    k: int
    batch: int
    arch: Arch
    a: Any  # of a type of each kernel's own
    b: Any
    c: Operand
    mma: Any
    tile: tuple[int, int, int]
    stages: int
    smem: SmemMap
    config: Any
    operand_path: ClassVar[str] = "run.tensor_maps:BY_MAPS"
    verbs: ClassVar[dict[str, str]] = {
        "compile": "compile.compiler:compile_plan",
        "derive": "planner:plan",
        "emulate": "run.emulated:execute_compiled",
        "fragment": "pictures:fragment_of",
        "run": "run.numpy_arrays:run_plan",
    }
    _drawn_by: ClassVar[str] = "layoutgemm.kernels.pictures"
    _paged_by: ClassVar[str] = "layoutgemm.kernels.page"

    if TYPE_CHECKING:
        derive: ClassVar[Any]  # of each kind of plan it has other parameters
    else:

        @classmethod
        def derive(cls, m: int, n: int, k: int, **given: object) -> Any:
            """The production kernel's plan, as `layoutgemm.plan` returns it. Each kind of plan overrides this."""
            return named(cls.verbs["derive"])(m, n, k, **given)

    @property
    def workspace(self) -> int:
        """Bytes of device memory that a call needs beyond its operands.

        None, but for partial results of an epilogue's reductions, and for rows of A that are copied first: what blocks
        exchange, they exchange in shared memory.

        >>> from layoutgemm.kernels import TeachingPlan
        >>> TeachingPlan.derive(64, 64, 64).workspace
        0
        """
        return 0

    @property
    def rows_of_a(self) -> int:
        """Rows of the matrix A: the product's, unless they are gathered."""
        return self.m

    @property
    def rows_of_c(self) -> int:
        """Rows of the matrix C: the product's, unless they are scattered."""
        return self.m

    def stored_rows(self, values: Mapping[str, object]) -> Any:
        """The rows of C that are stored, as an array; None for all.

        values  that the plan reads, by name
        """
        return None

    @property
    def parameters(self) -> dict[str, str]:
        """The launch parameters, name -> kind, in order."""
        raise NotImplementedError

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tiles along M and N."""
        raise NotImplementedError

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel's extra 64-bit parameters."""
        return ()

    @property
    def device_kernel(self) -> str:
        """The kernel's class in device code, as `kernels.verbs.named` takes it."""
        raise NotImplementedError

    @checked(PlanError)
    def described(self, target: str = "") -> str:
        """The beginning of a plan's text: sizes, target, operands, tile."""
        sizes = f"{self.batch} x " * (self.batch > 1) + f"{self.m}x{self.n}x{self.k}"
        return (
            f"{type(self).__name__} {sizes}{target}: A {self.a.dtype} {self.a.order}, B {self.b.dtype} {self.b.order}, "
            f"C {self.c}, tile {'x'.join(map(str, self.tile))}"
        )

    def does(self, verb: str) -> Any:
        """The function of a verb."""
        if not isinstance(verb, str) or verb not in self.verbs:
            raise PlanError(f"a {type(self).__name__} has no verb {shown(verb)}: {', '.join(self.verbs)}")
        return named(self.verbs[verb])

    def check(self) -> Report:
        """Every property that makes the kernel right, proven or refuted with a witness."""
        report: Report = self.does("check")(self)
        return report

    def explain(self) -> str:
        """The derivation as text: tiles, operands, boxes, descriptors, barriers and memory, with reasons."""
        return str(self.does("explain")(self))

    def for_any_size(self: P) -> P:
        """The plan of the same kernel for one product, or two, of 1x1x1. What the trace sees."""
        parts: dict[str, object] = {}
        if isinstance(self, Asked) and self.pair is not None:
            parts["pair"] = replace(self.pair, k=1)
        if isinstance(self, Asked) and self.indexed is not None:
            parts["indexed"] = self.indexed.for_any_size()
        return replace(self, m=1, n=1, k=1, batch=min(self.batch, 2), **parts)  # type: ignore[type-var]

    def compile(self) -> Any:
        """Compile the kernel for the plan's architecture; needs the `dsl` extra and no GPU. See `kernels.compile`."""
        return self.does("compile")(self)

    @checked(PlanError)
    def run(
        self, a: object, b: object, *, out: object = None, device: str | None = None, copy: bool = True,
        given: Mapping[str, object] | None = None, banks: bool = False, timeline: bool = False,
    ) -> Any:  # fmt: skip
        """C = A @ B on arrays or tensors, and the epilogue on operands `given` by name.

        Operands of NumPy or torch are 2-D, or a batch of them. See `kernels.run.numpy_arrays`.
        """
        return self.does("run")(
            self, a, b, out=out, device=device, copy=copy, given=given, banks=banks, timeline=timeline
        )


class PersistentPlan(GemmPlan):
    """A plan whose kernel stores C by tensor copies, after an epilogue.

    `remedy` says what else writes no more than C's elements.
    """

    m: int
    n: int
    c: Operand
    epilogue: Epilogue
    store: Any  # a StorePlan, or None where threads store their own elements
    remedy = ""

    @property
    def parameters(self) -> dict[str, str]:
        """The launch parameters, name -> kind, in order.

        A kernel that `takes_extra_params` has sixteen words, the first its own.
        """
        return parameters_with(self.words) if self.takes_extra_params else PERSISTENT_PARAMETERS

    @property
    def takes_extra_params(self) -> bool:
        """True if the kernel takes words: it has an epilogue, even one without operands."""
        return bool(self.epilogue)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the epilogue's 64-bit parameters."""
        return self.epilogue.words

    @property
    def stores_by_maps(self) -> bool:
        """True if TMA stores C, by tensor maps."""
        return self.store is not None

    @property
    def bytes_beyond_line(self) -> int:
        """Bytes beyond the end of each line of C that the kernel's stores write.

        A tensor store ends a line at a multiple of 16 bytes, as the hardware does (`atoms.tma.rules.whole_units`): C
        owns its pitch up to there, beyond its last line too. 0 where a line is a multiple of 16 bytes, and for
        store="direct" of a Hopper kernel, which writes elements: what a C inside of a larger matrix takes.

        >>> from layoutgemm.kernels import Sm90Config, Sm90Plan, Sm100Plan
        >>> small = Sm90Config((64, 64), consumers=1)
        >>> [Sm90Plan.derive(64, n, 64, config=small).bytes_beyond_line for n in (1037, 1040)]
        [6, 0]
        >>> [Sm100Plan.derive(64, n, 64).bytes_beyond_line for n in (1037, 1040)]
        [6, 0]
        """
        store: StorePlan | None = self.store if self.stores_by_maps else None
        return store.bytes_beyond(self._line) if store is not None else 0

    @property
    def line_overrun(self) -> str:
        """The same in words, with the reason; "" where nothing is written there."""
        if not self.bytes_beyond_line:
            return ""
        return (
            f"c: a line of {self._line} elements is {self._line * self.c.dtype.bytes} bytes, and a tensor store ends "
            f"it at a multiple of 16: {self.bytes_beyond_line} bytes beyond it are overwritten{self.remedy}"
        )

    @property
    def _line(self) -> int:
        return self.n if self.c.order == "row" else self.m


MOST_BYTES = (1 << 20) - 1  # PTX ISA, "mbarrier", tx-count: what one phase may wait for
