"""Products of 8-bit floats with scales, of operands of any kind. Checked, then by a kernel, or on the CPU in float64.

recipes                          kernel
-------------------------------  -----------------------------------------------------------------------------------
of blocks                        the promoted main loop: each K block summed apart, times its scales, added in f32
of rows, of tensors              matmul's kernel, and the scales in its epilogue
the same, use_fast_accum=False   the promoted main loop without scales, and the same epilogue

With a gate b is [gate | up] of twice the result's columns. The same kernels have half of each in a tile, their scales
of two places; scales and bias that an epilogue applies come before the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ...errors import OperandError, TensorError
from ...kernels.alignment import address_misfit
from ...kernels.epilogue.chain import Epilogue
from ...kernels.fp8.plan import BLOCK as BLOCK_OF_C
from ...kernels.indexed.rows import IndexedRows
from ...kernels.operands.block_scales import ScaleFormat
from ...kernels.operands.combined import Combined
from ...kernels.operands.gated import HALVES
from ...kernels.operands.promoted import DEPTH, lie_together, mainloop_of, widest_span
from ...kernels.plan import present
from ...kernels.ragged import AlongK, Ragged
from ...kernels.run.operand_checks import addressed
from ...kernels.sm80.plan import Sm80Config
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.choose.scaled_grouped import (
    gated_config,
    plan_with_scales,
    quantized_gate_config,
    quantizes_apart,
    read_each_column,
    scaled_config,
)
from ...kernels.sm90.plan import Sm90Config, Sm90Plan
from .. import tuned_store
from ..bias_activation import GATES, by_torch, gate_by_torch
from ..checks import check_activation, stored_as
from ..compiled.guards import MAX_READY
from ..compiled.traced import named
from ..epilogue import epilogue_product, finish_of
from ..fp8.launch import AS_QUANTIZE, computed_into
from ..prepared import Config, gpu, on_gpu, prepare
from ..problem import asks_tcgen05, half
from ..reference import exact
from ..types import C_NAMES, READ, GroupsConfig, GroupsPlan, listed
from .block_factors import (
    BLOCK_RECIPES,
    ELEMENTS,
    Lines,
    block_sums,
    blocked_tables,
    depth_of_b,
    elements_of_k,
    factor_lines,
    format_by_recipe,
    format_of,
    has_factors,
    of_only_matrix,
)
from .by_mma import MmaProduct, by_mma, mma_plan
from .epilogue import SCALE_C, epilogue_of
from .kept import KeptKey, Key, find, keep, launch
from .recipes import TENSOR, Recipes, ScaledOperand, as_vector, recipes_of

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT_BYTES = 4
LEAST_SEGMENT = 16  # columns that share a scale at least, of tiles of 256: a thread has registers for its scales then


class ScaledCall(NamedTuple):
    """A checked product with scales: both operands' recipes, the result's type and shape.

    quantizes  whether the result has a scale for each 1x128 of it
    span       K blocks whose scales may come together: see `span_of`
    """

    recipes: Recipes
    kind: torch.dtype
    shape: tuple[int, ...]
    quantizes: bool = False
    span: int = 1


class BiasActivation(NamedTuple):
    """A bias along N and an activation after the scaled sums. `fast` sums stay in the tensor core.

    A gate's bias is of all columns of [gate | up].
    """

    bias: torch.Tensor | None = None
    activation: str | None = None
    fast: bool = True

    @property
    def gate(self) -> str | None:
        """The function of a gate, or None.

        >>> BiasActivation(None, "swiglu").gate, BiasActivation(None, "silu").gate
        ('silu', None)
        """
        return GATES.get(self.activation) if isinstance(self.activation, str) else None

    @property
    def halves(self) -> int:
        """Columns of b for each of the result: 2 with a gate."""
        return 1 if self.gate is None else HALVES

    def columns(self, b: torch.Tensor) -> int:
        """Columns of the result: b's, or half of [gate | up]. Raises TensorError for columns of an odd number."""
        return b.shape[-1] if self.gate is None else half(b.ndim, b.shape[-1])


NO_FINISH = BiasActivation()
APART: dict[Key, ScaledCall] = {}  # checked calls whose results a kernel of its own quantises


# --------------------------------------------------------------------------------------------------------------- checks


def check_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, finish: BiasActivation,
    out_dtype: object, names: tuple[str, str],
) -> ScaledCall:  # fmt: skip
    """The product of dense tensors of one device. Raises OperandError or TensorError, naming the operand.

    names  of the recipes, "" for those that the shapes say
    """
    form = format_of(a, scale_a, b, scale_b, names) if has_factors(a, scale_a, scale_b) else None
    for name, x in (("a", a), ("b", b)) if form is None else ():
        if x.dtype not in FP8:
            raise OperandError(
                f"{name} is {x.dtype}: scales are for float8_e4m3fn and float8_e5m2. layoutgemm.quantize makes such "
                "an operand and its scales; matmul multiplies without scales"
            )
    if a.ndim not in (2, 3) or b.ndim != a.ndim or elements_of_k(a) != depth_of_b(b) or a.shape[:-2] != b.shape[:-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        raise TensorError(f"{shapes}: (M, K) and (K, N), or as many of both")
    kind = stored_as(FP8[0], out_dtype, a.dtype)
    front, blocks = tuple(a.shape[:-2]), -(-a.shape[-1] // DEPTH)
    if form is None:
        of_a, of_b = ScaledOperand("a", front, a.shape[-2], blocks), ScaledOperand("b", front, b.shape[-1], blocks)
        recipes = recipes_of(of_a, scale_a, names[0], of_b, scale_b, names[1])
        check_addresses(scale_a=scale_a, scale_b=scale_b)
    else:
        recipes = checked_factors(factor_lines(a, b, form), form, {"scale_a": scale_a, **named(scale_b=scale_b)})
    check_activation(finish.activation)
    shape = (*front, a.shape[-2], finish.columns(b))
    check_bias(finish.bias, [(b.shape[-1],)])
    return ScaledCall(recipes, kind, shape, span=span_of(a.shape[-1], recipes, scale_a, scale_b))


def checked_factors(lines: Lines, form: ScaleFormat, scales: Mapping[str, torch.Tensor]) -> Recipes:
    """The recipes of block scales. Raises TensorError for factors of neither order."""
    for line, (name, x) in zip(lines, scales.items(), strict=True):
        line.is_blocked(name, x, form)
    recipe = f"BlockWise1x{form.vector}"
    return Recipes(recipe, recipe)


def check_bias(bias: torch.Tensor | None, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise OperandError or TensorError for a bias that no kernel takes."""
    if bias is None:
        return
    if bias.dtype not in READ:
        raise OperandError(f"bias is {bias.dtype}: to a product with scales, or of groups, it is one of {listed(READ)}")
    if not any(bias.ndim == len(shape) and tuple(bias.shape) == shape for shape in shapes):
        raise TensorError(f"bias has shape {list(bias.shape)}: {' or '.join([str(list(shape)) for shape in shapes])}")


def check_addresses(**scales: torch.Tensor | None) -> None:
    """Raise OperandError for scales that begin between two float32 of memory."""
    for name, x in scales.items():
        if x is not None and addressed(x) and (rule := address_misfit(x.data_ptr(), _FLOAT_BYTES)):
            raise OperandError(f"{name}: {rule}; {name}.clone() is")


def span_of(k: int, recipes: Recipes, *scales: torch.Tensor | None) -> int:
    """K blocks whose scales lie together, for a main loop that reads them so. Else 1.

    >>> recipes, lines = Recipes("BlockWise1x128", ""), torch.ones(8, 4)
    >>> span_of(512, recipes, lines), span_of(512, recipes, lines.T.contiguous().T), span_of(400, recipes, lines)
    (4, 1, 1)
    """
    tables = recipes.in_mainloop and not recipes.by_instruction
    return widest_span_of(k, *[x for x in scales if x is not None]) if tables else 1


def widest_span_of(k: int, *tables: torch.Tensor) -> int:
    """The same of a main loop's tables; 1 without any."""
    span = widest_span(k) if tables and k else 1
    if span > 1 and all(addressed(x) and lie_together(x.stride(), x.data_ptr(), span) for x in tables):
        return span
    return 1


def unswapped(config: Config | None) -> Sm90Config | None:
    """The configuration of a choice, as `layoutgemm.tune` gives it. A swapped one stays as it is, for
    `check_config`."""
    found = config.config if isinstance(config, Sm90Choice) and not config.swapped else config
    return cast("Sm90Config | None", found)


def check_config(config: object) -> None:
    """Raise OperandError for what is no configuration."""
    if isinstance(config, Sm90Choice):
        raise OperandError("config is of the transposed product (swapped), and this product keeps its operands' places")
    if config is not None and not isinstance(config, GroupsConfig):
        kind = type(config).__qualname__
        raise OperandError(f"config is a {kind}; it is an Sm90Config, an Sm80Config, an Sm100Config or None")


# ------------------------------------------------------------------------------------------------------------- products


def scaled_product(
    call: ScaledCall, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None,
    finish: BiasActivation = NO_FINISH, config: Sm90Config | None = None, out: torch.Tensor | None = None,
    key: Key = (), scale_c: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`.

    key      by which the launch is kept, or ()
    scale_c  written: the scales of a result that is quantised
    """
    if call.quantizes and on_gpu(a.get_device()) and asks_tcgen05(config):
        raise OperandError("out_recipe: by tcgen05 another kernel would quantise; epilogue=Epilogue(Quantize()) does")
    if call.quantizes and not (on_gpu(a.get_device()) and quantizes_in_kernel(call, a, finish, config)):
        assert scale_c is not None and scale_c.shape == (*call.shape[:-1], -(-call.shape[-1] // BLOCK_OF_C))
        wide = call._replace(kind=torch.float32, quantizes=False)
        made = scaled_product(wide, a, scale_a, b, scale_b, finish, config)
        if key and len(APART) < MAX_READY:
            APART[key] = call
        return computed_into(made, AS_QUANTIZE._replace(dtype=call.kind), out, scale_c)
    if 0 in call.shape:
        return torch.empty(call.shape, dtype=call.kind, device=a.device) if out is None else out
    if 0 in a.shape:  # an empty sum is 0, and bias and activation follow
        wide = torch.zeros((*call.shape[:-1], b.shape[-1]), dtype=torch.float32, device=a.device)
        return _into(out, finished_by_torch(wide, beside(finish.bias), finish, call.kind))
    if not on_gpu(a.get_device()):
        wide = sums(call.recipes, a, scale_a, b, scale_b)
        return _into(out, finished_by_torch(wide, beside(finish.bias), finish, call.kind))
    if a.ndim == 3 and a.shape[0] == 1:
        scales = [of_one(x, of) for x, of in ((scale_a, call.recipes.a), (scale_b, call.recipes.b))]
        inner = call._replace(shape=call.shape[1:])
        if finish.bias is not None and finish.bias.ndim > 1:
            finish = finish._replace(bias=finish.bias[0])
        into = [None if x is None else x[0] for x in (out, scale_c)]
        c = scaled_product(inner, a[0], scales[0], b[0], scales[1], finish, config, into[0], (), into[1])
        return c.unsqueeze(0) if out is None else out
    if not key:  # a call by the operator
        others = tuple([x for x in (finish.bias, scale_c) if x is not None])
        options = "scaled", call.recipes, call.kind, finish[1:], finish.bias is None, config
        key, found = find(a, b, scale_a, scale_b, others, out, options)
        if found is not None:
            return found
    tables = {"scale_a": scale_a, **named(scale_b=scale_b)}
    vectors, lying = vectors_of(call.recipes, dict.fromkeys(tables, a.ndim), tables)
    if finish.bias is not None:
        vectors["bias"] = line(finish.bias)
        lying = lying and vectors["bias"] is finish.bias
    if scale_c is not None:
        vectors[SCALE_C] = scale_c
    if call.recipes.by_instruction:
        tables, lying = blocked_tables(factor_lines(a, b, format_by_recipe(a, b, call.recipes.a)), tables)
    key = key if lying else ()
    if call.recipes.in_mainloop or not finish.fast or finish.gate is not None or isinstance(config, Sm80Config):
        tables = tables if call.recipes.in_mainloop else {}
        return launch(KeptKey(key), plan_of(call, a, b, finish, config)[0], a, b, tables, vectors, out)
    epilogue = epilogue_for(call, finish)
    c = epilogue_product(a, b, call.kind, epilogue, vectors, config, out)
    if key and a.ndim == 2:
        made = finish_of(epilogue, vectors, c.shape)
        names = [name if name in vectors else "" for name in epilogue.words]
        keep(key, prepare(a, b, call.kind, config, out, made), names, made.words, (a, b, *vectors.values()), c)
    return c


def of_group(x: torch.Tensor | None, recipe: str, group: int | slice) -> torch.Tensor | None:
    """A group's, or a matrix's, share of an operand's scales; one element is of all.

    >>> of_group(torch.ones(2, 3), "RowWise", 0).shape, of_group(torch.ones(1), "TensorWise", 0).shape
    (torch.Size([3]), torch.Size([1]))
    """
    return x if x is None or recipe == TENSOR else x[group]


def of_one(x: torch.Tensor | None, recipe: str) -> torch.Tensor | None:
    """The scales of a batch of one as those of its matrix."""
    return of_only_matrix(x) if x is not None and recipe in BLOCK_RECIPES else of_group(x, recipe, 0)


def beside(bias: torch.Tensor | None) -> torch.Tensor | None:
    """A bias of each matrix of a batch, as torch adds it. All others as they are."""
    return bias if bias is None or bias.ndim < 2 else bias.unsqueeze(-2)


def finished_by_torch(
    wide: torch.Tensor, bias: torch.Tensor | None, finish: BiasActivation, kind: torch.dtype
) -> torch.Tensor:
    """Bias, and activation or gate, by torch on sums of all columns, rounded once. `bias` as torch adds it."""
    if finish.gate is None:
        return by_torch(wide, bias, finish.activation, kind)
    return gate_by_torch(wide, bias, str(finish.activation), kind)


def _into(out: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if out is None else out.copy_(value)


def sums(
    recipes: Recipes, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None
) -> torch.Tensor:
    """The scaled sums in float64, on the CPU."""
    if recipes.by_instruction:
        return block_sums(format_by_recipe(a, b, recipes.a), a, scale_a, b, present(scale_b))
    if recipes.in_mainloop:
        return promoted_sums(recipes.groups, a, b, scale_a, scale_b)
    value = exact(a, b)
    front = tuple(a.shape[:-2])
    for name, x, column in ((recipes.a, scale_a, True), (recipes.b, scale_b, False)):
        if x is not None:
            wide = x.detach().double()
            shape = () if name == TENSOR else (*front, -1, 1) if column else (*front, 1, -1)
            value = value * wide.reshape(shape)
    return value


def promoted_sums(
    groups: tuple[int, ...], a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """The float64 sums of a main loop that promotes, on the CPU.

    scales  of A, then of B, where it has some
    """
    tables = {f"scale_{side}": x for side, x in zip("ab", scales) if x is not None}
    values = [x.detach().resolve_neg().double().numpy() for x in (a, b, *tables.values())]
    found = mainloop_of(groups).reference(*values[:2], **dict(zip(tables, values[2:])))
    return torch.from_numpy(np.ascontiguousarray(found))


def vectors_of(
    recipes: Recipes, ranks: dict[str, int], scales: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], bool]:
    """The scales that an epilogue reads, by name, and whether none is a copy.

    ranks  of the operands

    A vector's elements are contiguous; what lies otherwise is copied.
    """
    lying, found = True, {}
    for name, x in scales.items():
        recipe = recipes.a if name == "scale_a" else recipes.b
        if recipes.in_mainloop:
            continue
        if recipe == TENSOR:
            found[name] = x.reshape(())
            continue
        vector = as_vector(x, recipe, ranks[name])
        assert vector is not None
        found[name] = line(vector)
        lying = lying and found[name] is vector
    return found, lying


def line(x: torch.Tensor) -> torch.Tensor:
    """Vectors as an epilogue reads them, their elements contiguous: the tensor itself, or a copy."""
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def one_behind_the_other(scales: Sequence[torch.Tensor]) -> torch.Tensor:
    """Scales of blocks of several b as one tensor. Chunks of one tensor are a view, others are copied.

    >>> both = torch.ones(4, 2)
    >>> [is_copied(one_behind_the_other(x), x) for x in (both.chunk(2), [both, both])]
    [False, True]
    """
    first = scales[0]
    if not torch.compiler.is_dynamo_compiling() and all(type(x) is torch.Tensor and addressed(x) for x in scales):
        step = first.shape[-2] * first.stride(-2) * first.element_size()
        lying = [(x.shape, x.stride(), x.data_ptr() - i * step) for i, x in enumerate(scales)]
        memory = {x.untyped_storage().data_ptr() for x in scales}
        if lying == lying[:1] * len(lying) and len(memory) == 1 and not any(x.is_neg() for x in scales):
            shape = (*first.shape[:-2], len(scales) * first.shape[-2], first.shape[-1])
            return first.as_strided(shape, first.stride())
    return torch.cat([x.resolve_neg() for x in scales], -2)


def is_copied(made: torch.Tensor, scales: Sequence[torch.Tensor | None]) -> bool:
    """True if these scales were copied into one tensor."""
    return scales[0] is None or made.data_ptr() != scales[0].data_ptr()


# ---------------------------------------------------------------------------------------------------------------- plans


def quantizes_in_kernel(call: ScaledCall, a: torch.Tensor, finish: BiasActivation, config: Sm90Config | None) -> bool:
    """True if the product's kernel quantises the result. One whose CTAs store 128 columns of a row, or a multiple.

    A tile of a B with a scale of each column has fewer. So has one of a gate whose scales change within 16 columns. And
    for few rows two kernels are faster.
    """
    if 0 in (*call.shape, *a.shape) or by_mma(a.get_device(), config):
        return False
    if config is None:
        m, n, k, batch = call.shape[-2], call.shape[-1], a.shape[-1], a.shape[0] if a.ndim == 3 else 1
        places = gpu(a.get_device())[0].multiprocessors
        if quantizes_apart(m, n, k, batch=batch, sums=finish.halves, multiprocessors=places):
            return False
    each_column = call.recipes.in_mainloop and call.recipes.groups[1:] == (1,)
    if finish.gate is not None:
        narrow = call.recipes.in_mainloop and call.shape[-1] % LEAST_SEGMENT != 0
        fits = config is None or config.tile[1] % (finish.halves * BLOCK_OF_C) == 0
        return fits and not (each_column or narrow)
    return config is not None or not each_column


def epilogue_for(call: ScaledCall, finish: BiasActivation) -> Epilogue:
    """The epilogue of a call."""
    bias = None if finish.bias is None else C_NAMES[finish.bias.dtype]
    return epilogue_of(call.recipes, bias, finish.activation, C_NAMES[call.kind] if call.quantizes else None)


def facts_of(
    call: ScaledCall, a: torch.Tensor, b: torch.Tensor, fast: bool
) -> tuple[tuple[int, int, int, int], tuple[str, str, str], tuple[int, ...] | None, str | None]:
    """The sizes, types, scales and block scales by which a kernel is chosen.

    fast  whether sums without scales of the main loop stay in the tensor core

    These are (M, N, K, batch); names; rows that share a scale, as `tuned_name` has them; and a format or None.
    """
    sizes = call.shape[-2], call.shape[-1], elements_of_k(a), a.shape[0] if a.ndim == 3 else 1
    types = ELEMENTS[a.dtype], f"{ELEMENTS[b.dtype]}:col", C_NAMES[call.kind]
    if call.recipes.by_instruction:
        return sizes, types, None, format_by_recipe(a, b, call.recipes.a).name
    return sizes, types, call.recipes.groups if call.recipes.in_mainloop else None if fast else (), None


def plan_of(
    call: ScaledCall, a: torch.Tensor, b: torch.Tensor, finish: BiasActivation, config: Sm90Config | None = None
) -> tuple[GroupsPlan, str]:
    """The plan of a promoted or gated product, and why this configuration."""
    sizes, types, groups, form = facts_of(call, a, b, finish.fast)
    index, epilogue = a.get_device(), epilogue_for(call, finish)
    if form is not None or by_mma(index, config):
        of = MmaProduct(sizes, types, None, groups, epilogue or None, finish.gate, form=form)
        return mma_plan(of, index, config)

    def derive(config: Sm90Config) -> Sm90Plan:
        return derived(sizes, types, groups, config, None, epilogue, finish.gate, span=call.span)

    if config is None and finish.gate is not None and call.quantizes:
        config = quantized_gate_config(*sizes)
        why = f"gated and quantised: tiles of {'x'.join(map(str, config.tile))}"
    elif groups is None:
        config, why = gated_choice(sizes, types, str(finish.gate), index, config, derive)
    else:
        columns = BLOCK_OF_C if call.quantizes else 1
        config, why = chosen(sizes, types, groups, index, config, derive, columns, finish.gate)
    return derive(config), why


def gated_choice(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], gate: str, index: int, config: Sm90Config | None,
    derive: Callable[[Sm90Config], object],
) -> tuple[Sm90Config, str]:  # fmt: skip
    """The configuration of a gated product whose sums stay in the tensor core, and why.

    derive  as `chosen` takes it
    """
    if config is not None:
        return config, "given by the caller"
    found = tuned_store.fitting(tuned_store.lookup(gpu(index)[1], sizes, *tuned_name(types, None, gate)), derive)
    return (found, tuned_store.MEASURED) if found is not None else gated_config(sizes, types, gate, gpu(index)[0])


def chosen(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], groups: tuple[int, ...], index: int,
    config: Sm90Config | None, derive: Callable[[Sm90Config], object], columns: int = 1,
    gate: str | Combined | None = None,
) -> tuple[Sm90Config, str]:  # fmt: skip
    """The configuration of a promoted product, and why. The caller's, the measured one, or the estimate.

    derive   makes the plan of a configuration; a measured one without a plan is passed over
    columns  a CTA stores a multiple of this many columns of C
    gate     the function of a gate, or of products with several matrices; or None
    """
    if config is not None:
        return config, "given by the caller"
    apart, sums = isinstance(gate, Combined), 1 if gate is None else HALVES
    found = None
    if isinstance(gate, Combined):  # its measured ones are kept with the parts of the call
        sums = gate.matrices
    else:
        measured = tuned_store.lookup(gpu(index)[1], sizes, *tuned_name(types, groups, gate))
        found = tuned_store.fitting(measured, derive)
    if found is not None and found.tile[1] // found.split // sums % columns == 0:
        return found, tuned_store.MEASURED
    m, n, k, batch = sizes
    each = read_each_column(groups, n, 1 if apart else sums)
    config = scaled_config(
        m, n, k, batch=batch, each_column=each, columns=columns, c=types[2], sums=sums, places=gpu(index)[0],
        adds=groups == (),
    )  # fmt: skip
    tile, parts = "x".join(map(str, config.tile)), f", K in {config.split} parts" if config.split > 1 else ""
    return config, f"estimated fastest of scaled products: tiles of {tile}{parts} (scaled_grouped_h100.json)"


def tuned_name(
    types: tuple[str, str, str], groups: tuple[int, ...] | None, gate: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Types and orders by which a tuned product with scales is kept.

    groups  rows of A, and columns of B, that share a scale of a K block; () for a loop that adds each 128 of K in
            float32; None for one whose sums stay in the tensor core, as `matmul` has it, with or without scales behind
    gate    the function of a gate, or None

    >>> tuned_name(("e4m3", "e4m3:col", "bf16"), (1, 128))
    (('e4m3/1', 'e4m3/128', 'bf16'), ('row', 'col', 'row'))
    >>> tuned_name(("e4m3", "e4m3:col", "bf16"), ())[0], tuned_name(("e4m3", "e4m3:col", "bf16"), None)[0]
    (('e4m3 added in f32', 'e4m3', 'bf16'), ('e4m3', 'e4m3', 'bf16'))
    """
    names = [name.partition(":")[0] for name in types]
    scaled = [f"{name}/{group}" for name, group in zip(names, groups or ())]
    if groups == ():
        scaled = [f"{names[0]} added in f32"]
    kept = tuned_store.gated_types((*scaled, *names[len(scaled) :]), gate)
    first, second, _ = [name.partition(":")[2] or "row" for name in types]
    return kept, (first, second, "row")


@lru_cache(maxsize=1024)
def derived(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], groups: tuple[int, ...] | None, config: Sm90Config,
    ragged: Ragged | AlongK | None = None, epilogue: Epilogue | None = None, gate: str | Combined | None = None,
    indexed: IndexedRows | None = None, span: int = 1,
) -> Sm90Plan:  # fmt: skip
    """The plan of a product.

    ragged  groups of rows, or along K
    gate    the function of a gate, or of products with several matrices; N is C's columns
    indexed which rows of A are copied first
    groups  rows of A, and columns of B, that share a scale; None for a main loop that only adds
    span    K blocks whose scales lie together
    """
    name = "along_k" if isinstance(ragged, AlongK) else "ragged"
    more: dict[str, Any] = {name: ragged, "epilogue": epilogue or None, "gated": gate, "indexed": indexed}
    return plan_with_scales(sizes, types, groups, config, span, **more)
