"""layoutgemm.matmul and layoutgemm.gemm: products of torch tensors on Hopper's tensor cores.

    a call of matmul ----> fast path: the same shapes and strides again, nothing to record: launch
                     \\--> checks, then one of `torch_op.operators` where torch's dispatcher has to see the call,
                           or else straight to `torch_op.compute`: prepare, keep, launch; on the CPU, torch in float64

Imported when `layoutgemm.matmul` is first named; importing layoutgemm alone does not import torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

import torch
import torch.autograd.forward_ad as _forward
from torch.autograd.function import FunctionCtx

from ..arguments import sees_unknown, unknown_argument
from ..dtypes import f32
from ..errors import OperandError
from ..kernels.epilogue.chain import Epilogue, EpilogueOperand
from ..kernels.operands.combined import Combine
from ..kernels.operands.prologue import Prologue
from ..kernels.orders import Order, leaves_tiles
from ..kernels.run.capture import first_call
from ..kernels.run.operand_checks import check_operands, same_memory
from ..kernels.sm90.triangular.operands import Triangles
from ..moved import old_names
from .autograd.activation import behind_relu, by_autograd
from .autograd.kept import MAX_KEPT, kept_gradients, recorder
from .autograd.products import Multiply, gradients, stand_in
from .bias_activation import ACTIVATIONS, GATES, scaled_by_torch
from .checks import (
    PLAIN,
    autocast,
    check_call,
    check_gemm,
    check_gemm_sizes,
    check_sizes,
    copied,
    in_older_vmap,
    modes_of_dispatch,
    modes_of_functions,
    needs_dispatcher,
    output_type,
    product_shape,
    seen_by_autograd_alone,
    sizes_later,
    tf32_allowed,
    tracing_state,
    transforms,
)
from .compiled.guards import ALIGNED, LEAST_ADDRESS, MAX_READY, Guard, LastCalls, guarded
from .compiled.kept_launches import Extras, KeptCall, Served, again_or, note_served, served
from .compiled.repeated_calls import MAX_OF_KIND, SEVERAL, Lasts, RepeatedCalls, epilogue_key, repeated
from .compiled.traced import check_compiled, check_compiled_gemm, refuse, refuse_others, refuse_unknown, traced_flag
from .composed.api import ComposedOptions, composed_product
from .composed.parts import AskedParts, composes, has_batches
from .compute import finished_product, gated_product, scaled_product, wide_type
from .indexed.added import sums_of_product
from .indexed.api import indexed_matmul
from .indexed.product import IndexedOperands
from .launch import PreparedProblem, ProductCall, current_device, mark_written, raw_stream
from .operands.api import matmul_combined
from .operators import bias_gradient, dispatched, recorded_product
from .own_epilogue.api import epilogue_matmul
from .prepared import PREPARED, Config, choice_of, of_derivatives
from .prologue.api import prologue_product
from .prologue.product import ALONE

__getattr__ = old_names(__name__)

_C = torch._C
_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo; others that compile are modes
_autocast = _C._is_any_autocast_enabled
F = TypeVar("F", bound=Callable[..., object])


Tensors = tuple["torch.Tensor", ...]
Named = Mapping[str, "torch.Tensor"]  # of the keywords of a call


def repeated_first(
    again: Callable[[Tensors, Named], object], counts: Iterable[int], alone: Lasts, weight: int = 0
) -> Callable[[F], F]:
    """A decorator that looks for a kept launch first. It looks for that of a call with tensors alone, then of one with
    options.

    Python looks up the default of each keyword that a call leaves out: a tenth of a repeated call's time.

    again   the result of a kept launch for a call's tensors and keywords, or None
    counts  of the tensors that `again` takes
    alone   the last calls of so many tensors, and those with one more of a name: `again` takes these keywords too
    weight  the place of the argument that most calls share

    >>> @repeated_first(lambda given, options: given[0] or None, [1], {})
    ... def product(x: int, *, out: int = 5) -> int:
    ...     return out
    >>> product(3), product(0), product(3, out=4)
    (3, 5, 4)
    """

    taken, calls = frozenset(name for _, name in alone if name is not None), RepeatedCalls(alone, weight)
    counts = frozenset(counts)

    def decorated(product: F) -> F:
        names = frozenset(inspect.signature(product).parameters)

        @functools.wraps(product)
        def call(*tensors: torch.Tensor, **options: torch.Tensor) -> object:
            if _is_traced():
                refuse_others(product, names, options)
                return product(*tensors, **options)
            if calls.first is not None and (found := calls.first(tensors, options)) is not None:
                return found
            if (not options or taken.issuperset(options)) and len(tensors) in counts:
                found = again(tensors, options)
                if found is not None:
                    calls.look_first()
                    return found
                if type(tensors[weight]) not in SEVERAL:  # the next one is found above
                    return product(*tensors, **options)
            if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0 or len(tensors) <= weight:
                return product(*tensors, **options)
            shared, first = [x[0] if type(x) in SEVERAL and x else x for x in (tensors[weight], tensors[0])]
            at = id(shared) ^ epilogue_key(options.get)
            known = calls.last.get(at)
            if not known and not names.issuperset(options):
                raise unknown_argument(product, options)
            try:
                kind: tuple[object, ...] = (first.shape, shared.shape, len(tensors), *options)
                alike = calls.seen.get(kind, ())
            except (AttributeError, RuntimeError, TypeError):  # no dense tensors, or sizes that are symbols
                return product(*tensors, **options)
            for other in alike:
                if other is not known and (found := other(tensors, options)) is not None:
                    if known is not False:
                        calls.note(at, other)
                    return found
            if len(alike) >= MAX_OF_KIND:  # to make one more takes ten times a call that is found by its facts
                return product(*tensors, **options)
            with first_call(), served() as made:
                result = product(*tensors, **options)
            if len(made) == 1 and (new := repeated(made[0], tensors, options, result)) is not None:
                calls.keep(at, kind, new)
            return result

        return cast(F, call)

    return decorated


def _plain_again(given: Tensors, options: Named) -> torch.Tensor | None:
    """The product of a kept launch that a guard finds, or None.

    It is recorded if it has derivatives, and may have a bias.
    """
    a, b = given
    bias = options["bias"] if options else None
    try:
        if type(b) in SEVERAL:  # whose shape would raise
            return None
        if bias is None:
            return _seen(_LAST, id(b), (a.shape, b.shape), given)
        return _seen(_LAST_BIAS, id(bias), (a.shape, b.shape, _BIAS), (a, b, bias))
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors
        pass
    return None


def _seen(
    last: LastCalls, at: int, key: tuple[object, ...], given: Tensors, activation: str | None = None,
    turned: bool = False,
) -> torch.Tensor | None:  # fmt: skip
    """The product of a kept launch that a guard finds by shapes, or None. It is noted as the last one of an id.

    turned  whether b holds the transpose of what is multiplied
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return None
    for guard in PREPARED.seen.get(key, ()):
        if guard.check(*given):
            call = _call_of(guard, activation, turned)
            last.note(at, Guard(guard.check, guard.records, call))
            found: torch.Tensor | None = call(*given)
            return found
    return None


def _call_of(guard: Guard[PreparedProblem], activation: str | None, turned: bool) -> ProductCall:
    """The call of tensors that a guard holds for: the launch, and what is asked each time. None where it says no."""
    _, records, ready = guard
    if not records and not ready.tf32:
        return ready.product

    def call(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
        recorded = records and _grad_enabled()
        if (ready.tf32 and not tf32_allowed(None)) or (recorded and not ready.of_matrices):
            return None
        c: torch.Tensor | None = ready.product(a, b, bias)
        return _record(a, b, bias, (c, ready, activation, turned, None)) if recorded and c is not None else c

    return call


_BIAS = "bias"  # in keys of guards of calls with a bias alone
_LAST = LastCalls(1, range(2), PREPARED.on_clear)  # by b
_LAST_BIAS = LastCalls(2, range(3), PREPARED.on_clear)  # by the bias


@repeated_first(_plain_again, [2], {(2, None): _LAST, (2, _BIAS): _LAST_BIAS}, weight=1)
def matmul(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    b: torch.Tensor | Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]],
    *,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
    config: Config | None = None,
    out_dtype: torch.dtype | None = None,
    allow_tf32: bool | None = None,
    combine: Combine | None = None,
    order: Order | None = None,
    rows: torch.Tensor | None = None,
    out_rows: torch.Tensor | None = None,
    row_weights: torch.Tensor | None = None,
    copy_rows: bool | None = None,
    prologue: Prologue | None = None,
    triangles: Triangles | None = None,
    add_rows: torch.Tensor | None = None,
    ordered: bool = True,
) -> torch.Tensor:
    """activation(a @ b + bias), with shapes as in torch.matmul: vectors, matrices, batches that broadcast.

    a, b        bfloat16, float16, float8_e4m3fn or float8_e5m2, int8 or uint8 (two kinds of 8 bits may meet), or
                float32 multiplied as tf32; on one GPU of compute capability 9.0, by mma.sync on 8.x and 12.0, or on
                the CPU. Any strides: what no kernel reads in place, or none quickly, is copied (`explain_matmul`)
    out         where the product goes, of the result's shape and type; may not share memory with what is read
    bias        float32, bfloat16, float16 or integers of up to 32 bits, added along the last dimension; to a product
                that is stored as int32 such integers, and a sum that int32 does not hold is refused. activation one of
                relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh. Both happen in the kernel, in float32, before the
                one rounding; on the CPU in float64. Where derivatives are recorded, an activation other than relu is
                torch's own, of a @ b + bias in the result's type, as torch.nn.Linear has it; in float32 for a result
                of 8 bits. "tanh" in the kernel is the hardware's for a product of 16 bits or fewer: relative error
                2**-11
                "swiglu" and "geglu" are gated products: b holds the gate's n columns and, beside them, the n that it
                multiplies, and the result has n: silu(a @ b[..., :n]) * (a @ b[..., n:]), or gelu. One kernel for a b
                whose columns are contiguous (the transpose of (2n, K) weights) and no bias; with a bias, of 2n, and for
                any other b torch gates a float32 product
    epilogue    in place of these, or behind a gate: any `kernels.epilogue.chain.Epilogue`, in the kernel, for matrices
                and batches. Its first `sums` steps come before the gate. A gate's b with contiguous rows is copied
    given       what it reads and writes, by name: numbers and tensors (see `torch_op.epilogue`). No gradients; under
                torch.compile, where the epilogue is made before, torch.export and torch.func.vmap as everywhere
    config      the kernel's configuration, an Sm90Config or Sm90Choice; default what `layoutgemm.tune` measured for the
                product, or else `kernels.sm90.choose.rules.choose`. An Sm100Config asks for the tcgen05 kernel on
                compute capability 10.x and 11.0, where no other runs: no GPU has run it here. Without a tile in it the
                rule of `layoutgemm.plan` chooses one
    out_dtype   default a's type; bfloat16 for 8-bit floats, int32 for integers
    allow_tf32  whether float32 may be multiplied as tf32; default torch.backends.cuda.matmul.allow_tf32
    combine     for a tuple b of two to four matrices: the function of (*products, ops, **given) that makes each element
                of the result, in one kernel of compute capability 9.0. Or the name of an activation: that of the first
                product, times the second. Traced once for each function and the values that it reads; compiled code
                keeps these. See `torch_op.operands.several`
                Of two tuples, (a, a2) and (b, b2), the result is activation(a @ b + a2 @ b2 + bias), in one kernel too:
                see `torch_op.operands.pairs`. Of ((b, b1), (b2, b3)) it is combine(a @ b + a2 @ b2, a @ b1 + a2 @ b3)
    order       the order of tiles of C, of all or some of them: "lower", "symmetric", a Schedule, a function, ...; see
                `kernels.orders`. Tiles left out are not computed: `out` keeps its values there, and without an `out`
                they are zeros. `given` has what the order reads, such as a rank. Refused if a tile is visited twice
    rows        int32 or int64: row i of the product reads row rows[i] of a, a matrix. The kernel gathers the rows, or
                on compute capability 9.0 copies them first. Of (batch, M) with a 3-D b: row i of matrix l
                reads row rows[l, i] of a[l], or of a matrix a. See `torch_op.indexed.product`
    copy_rows   whether rows are copied first; default the way that is estimated faster, or the only one
    out_rows    likewise: row i of the product is row out_rows[i] of the result, which has zeros elsewhere. An `out` may
                have more rows, and keeps those that no index names. An index may not repeat. On the CPU an index
                outside of its matrix is refused. On a GPU it reads zeros, or writes nothing
    add_rows    in place of `out_rows`: row i of the product is added to row add_rows[i] of the result, and an index may
                repeat. In float32, in the order of i, by a second launch: the same bits on every run. An `out` has what
                the rows are added to; without one these are zeros. With an order of some tiles torch adds the rows
    ordered     False: the rows of `add_rows` are added by torch's index_add, whose order on a GPU is any
    row_weights float32: a factor of each row of the product, with `rows`, `out_rows` or `add_rows`
    prologue    a function of a's elements before they are multiplied, a `kernels.Prologue`; `given` has the vectors
                that it reads. Of 8 and 16 bits, in the kernel of compute capability 9.0. Torch copies chosen `rows`
                first. See `torch_op.prologue`
    triangles   which of a and b are triangular, a `kernels.Triangles`: K tiles of zeros are skipped. The zeros are the
                caller's: on the CPU another element is refused. Their gradients are triangular, too. With a prologue
                the function's results are triangular, and of two pairs the first one's matrices

    These parts go together, but for those of docs/combinations.md: see `torch_op.composed`.

    Sums are float32, of integers int32. On the CPU the product is computed in float64 and rounded once: the reference,
    with the same refusals. Differentiable (twice, too, and in forward mode); works under torch.compile, torch.func,
    autocast and in CUDA graphs after one call outside.

    Raises TensorError (a RuntimeError and a ValueError) in torch's words for shapes, types and devices that do not
    meet, OperandError where no kernel exists.

    >>> import torch
    >>> a = torch.arange(6.0).reshape(2, 3).bfloat16()
    >>> matmul(a, a.T).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, torch.ones(5, 3, 4).bfloat16()).shape
    torch.Size([5, 2, 4])
    >>> from layoutgemm.kernels.epilogue.chain import Activation, Aux, Epilogue, Scale
    >>> aux = torch.empty(2, 2).bfloat16()
    >>> matmul(a, -a.T, epilogue=Epilogue(Scale(), Aux(), Activation("relu")), given={"alpha": -2.0, "aux": aux})[0]
    tensor([10., 28.], dtype=torch.bfloat16)
    >>> aux[0]
    tensor([10., 28.], dtype=torch.bfloat16)
    >>> gate, up = torch.tensor([[-1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    >>> matmul(torch.eye(2).half(), torch.cat([gate, up], 1).half(), activation="geglu", out_dtype=torch.float32)
    tensor([[-0.4760],
            [ 7.8180]])
    """
    if TYPE_CHECKING:
        # two tuples are told apart behind the fast path
        assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if allow_tf32 is not None and not isinstance(allow_tf32, bool):
        allow_tf32 = traced_flag(allow_tf32)
    if ordered is not True or (add_rows is not None and leaves_tiles(order)):
        return sums_of_product(ordered, matmul, a, b, add_rows, out, {
            "bias": bias, "activation": activation, "epilogue": epilogue, "given": given, "config": config,
            "out_dtype": out_dtype, "allow_tf32": allow_tf32, "combine": combine, "order": order, "rows": rows,
            "out_rows": out_rows, "row_weights": row_weights, "copy_rows": copy_rows, "prologue": prologue,
            "triangles": triangles,
        })  # fmt: skip
    indexed = rows is not None or out_rows is not None or row_weights is not None or add_rows is not None
    several = order is not None or combine is not None or prologue is not None or triangles is not None
    if several or (indexed and epilogue is not None):
        asked = AskedParts(order, prologue, combine, epilogue, activation, copy_rows, triangles)
        own = {"bias": bias, "rows": rows, "out_rows": out_rows, "add_rows": add_rows, "row_weights": row_weights}
        if composes(type(a) is tuple or (combine is not None and has_batches(b)), asked, own):
            options = ComposedOptions(out, config, out_dtype, allow_tf32)
            return composed_product(a, b, asked, own, given, options)
    if prologue is not None:
        others = {"row_weights": row_weights, "copy_rows": copy_rows if rows is None else None}
        finish = bias, activation
        return _with_prologue(a, b, prologue, given, others, finish, out, config, out_dtype, rows, copy_rows)
    if indexed or copy_rows is not None:
        if bias is not None or add_rows is not None or type(a) is tuple:
            asked, options = (
                AskedParts(activation=activation, copy_rows=copy_rows),
                ComposedOptions(out, config, out_dtype, allow_tf32),
            )
            own = {"bias": bias, "rows": rows, "out_rows": out_rows, "add_rows": add_rows, "row_weights": row_weights}
            return composed_product(a, b, asked, own, given, options)
        others = {"given": given}
        return _with_rows(a, b, (rows, out_rows, row_weights), others, activation, out, config, out_dtype, copy_rows)
    if combine is not None:
        return matmul_combined(a, b, combine, given, out, config, out_dtype, allow_tf32)
    if epilogue is not None or given is not None:
        if type(a) is tuple:
            return _with_pairs(a, b, out, bias, activation, (epilogue, given), config, out_dtype, allow_tf32)
        return epilogue_matmul(
            a, b, epilogue, given, bias=bias, activation=activation, out=out, config=config, out_dtype=out_dtype,
            allow_tf32=allow_tf32,
        )  # fmt: skip
    if _is_traced():
        return _compiled(a, b, out, bias, activation, config, out_dtype, allow_tf32)
    found = _repeated(a, b, out, bias, activation, config, out_dtype, allow_tf32)
    if found is not None:
        return found
    if _recorded(a, b, bias) and _seen_by_autograd_alone(bias):
        if _is_one_node(a, b, out, activation):
            with torch.no_grad():
                c = matmul(
                    a, b, bias=bias, activation=activation, config=config, out_dtype=out_dtype, allow_tf32=allow_tf32
                )
            ready = _prepared(a, b, out, bias, activation, config, out_dtype)
            first: torch.Tensor = _RecordedProduct.apply(a, b, bias, (c, ready, activation, False, config))
            return first
        if _finished_by_torch(a, b, out, activation, out_dtype):
            value = matmul(a, b, bias=bias, config=config, out_dtype=out_dtype, allow_tf32=allow_tf32)
            return by_autograd(value, str(activation))
    if type(a) is tuple:
        return _with_pairs(a, b, out, bias, activation, (None, None), config, out_dtype, allow_tf32)
    return _checked(a, b, out, bias, activation, config, out_dtype, allow_tf32)


def _repeated(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor | None:  # fmt: skip
    """The product by a kept launch, recorded if it has derivatives; None where checks have to see the call.

    A guard finds a call that was made twice before: it fails in transforms and traces, too. Else a key of all facts of
    the tensors does: 1 us more, and a third tensor takes half as much again.
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return None
    given: tuple[torch.Tensor, ...] = (a, b) if bias is None else (a, b, bias)
    if out is not None:
        given = (*given, out)
    try:
        short: tuple[object, ...] = a.shape, b.shape
        if a is b or out is not None or activation is not None or config is not None or out_dtype is not None:
            short = a.shape, b.shape, a is b, len(given), out is None, activation, config, out_dtype
        elif bias is not None:
            short = a.shape, b.shape, _BIAS
        for check, records, kept in PREPARED.seen.get(short, ()):
            if check(*given):
                is_new, recorded, ready = False, records and _grad_enabled(), kept
                break
        else:
            if tracing_state() is not None or _autocast() or transforms():
                return None
            recorded, found = _recorded(a, b, bias), _prepared(a, b, out, bias, activation, config, out_dtype)
            if found is None or not found.simple or b.get_device() != found.device or a.is_neg() or b.is_neg():
                return None
            is_new, ready = True, found
        if (recorded and not _is_one_node(a, b, out, activation)) or (ready.tf32 and not tf32_allowed(allow_tf32)):
            return None
        c = ready.product(a, b, bias) if out is None else _into(out, ready, a, b, bias)
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors, or a configuration without a hash
        return None
    if c is None:
        return None
    if is_new:
        guarded(PREPARED.seen, short, given, ready, MAX_READY)
    if recorded:
        return _record(a, b, bias, (c, ready, activation, False, config))
    if not ready.tf32:  # float32 needs the caller's leave each time
        note_served(functools.partial(_served, ready, given, out, c))
    return c


def _served(ready: PreparedProblem, given: Tensors, out: torch.Tensor | None, c: torch.Tensor) -> Served:
    """The kept call that made `c`, of the tensors of a guard."""
    read = len(given) - (out is not None)
    direct = ready.of_tensors(read)
    result = (ready.shape, ready.strides, ready.kind) if out is None else None
    a, b, of_c = ready.spans
    spans = (a, b, *[x.nbytes for x in given[2:read]], of_c)
    return Served(KeptCall(direct, result, None, spans, () if out is None else (read,), (), (), ()), given, c)


def _into(
    out: torch.Tensor, ready: PreparedProblem, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """A kept launch's product into `out`; None for addresses that no kernel reads, and what overlaps."""
    index = ready.device
    if index != current_device():
        return None
    at_a, at_b, at_c = a.data_ptr(), b.data_ptr(), out.data_ptr()
    at_bias = at_a if bias is None else bias.data_ptr()
    if min(at_a, at_b, at_c, at_bias) < LEAST_ADDRESS:
        return None
    end = at_c + ready.spans[2]
    if (
        (at_a | at_b | at_c | at_bias) & ALIGNED
        or not (end <= at_a or at_a + ready.spans[0] <= at_c)
        or not (end <= at_b or at_b + ready.spans[1] <= at_c)
        or (bias is not None and not (end <= at_bias or at_bias + bias.nbytes <= at_c))
    ):
        return None  # views of the same lines, or an error: `_checked` tells
    mark_written((out,))
    ready.launch(at_a, at_b, at_c, raw_stream(index), () if bias is None else (at_bias,))
    return out


def _prepared(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None,
) -> PreparedProblem | None:  # fmt: skip
    """The kept product of plain tensors of such shapes, strides and types, if any."""
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return None
    index = a.get_device()
    try:
        key: tuple[object, ...] = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, index, out_dtype, config)
        if out is not None or bias is not None or activation is not None:
            key = _longer(key, out, bias, activation, index)
        return PREPARED.get(key)
    except (TypeError, RuntimeError):  # a configuration without a hash, or sparse
        return None


def _recorded(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """True if a derivative of plain tensors is recorded."""
    if not _grad_enabled() or type(a) not in PLAIN or type(b) not in PLAIN:
        return False
    return a.requires_grad or b.requires_grad or _records(bias)


def _is_one_node(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, activation: str | None) -> bool:
    """True if a recorded product is a node of its own: of no vectors, with what its gradient can be had of."""
    return out is None and (activation is None or activation == "relu") and a.ndim > 1 < b.ndim


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None,
    allow_tf32: bool | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """matmul(x, weight.mT, bias=bias, activation=activation, config=config), of a weight (N, K).

    Where autograd records a call, the weight itself is the node's operand: there is no view, nor its derivative. That
    view takes a fifth of the host's time of both passes. The first call saves the same tensors as a repeated one, since
    torch's checkpoints compare them.

    >>> linear(torch.ones(1, 2).half(), torch.arange(6.0).view(3, 2).half()).tolist()
    [[1.0, 5.0, 9.0]]

    Raises as `matmul`, and OperandError for a weight that is no matrix, or whose class refuses the product.
    """
    if config is None and not _is_traced():
        if (again := _linear_again(x, weight, bias, activation)) is not None:
            return again
        if (
            type(x) in PLAIN
            and type(weight) in PLAIN
            and (activation is None or activation == "relu")
            and x.ndim > 1 < weight.ndim
            and _seen_by_autograd_alone(bias)
        ):
            if (found := _linear_by_facts(x, weight, bias, activation)) is not None:
                return found
            if _grad_enabled() and (weight.requires_grad or x.requires_grad or _records(bias)):
                return _first_linear(x, weight, bias, activation, allow_tf32)
    try:
        matrix = weight.mT if isinstance(weight, torch.Tensor) and weight.ndim > 1 else _not_linear(weight)
        return matmul(x, matrix, bias=bias, activation=activation, allow_tf32=allow_tf32, config=config)
    except NotImplementedError as error:
        if type(weight) in PLAIN:
            raise
        kind = type(weight)
        raise OperandError(
            f"weight is a {kind.__module__}.{kind.__qualname__}, a class without a rule for this product: "
            "torch.nn.Linear multiplies it, and swap_linears leaves layers with such weights alone"
        ) from error


def _first_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, allow_tf32: bool | None
) -> torch.Tensor:
    """`linear` with all checks, recorded."""
    matrix = weight.mT
    with torch.no_grad():
        c = matmul(x, matrix, bias=bias, activation=activation, allow_tf32=allow_tf32)
    ready = _prepared(x, matrix, None, bias, activation, None, None)
    first: torch.Tensor = _RecordedProduct.apply(x, weight, bias, (c, ready, activation, True, None))
    return first


def _not_linear(weight: object) -> torch.Tensor:
    """Refuse a linear layer's weight that is no matrix, nor a batch of them."""
    if not isinstance(weight, torch.Tensor):
        refuse(f"weight is a {type(weight).__qualname__}, not a torch tensor")
    raise OperandError(f"weight has shape {list(weight.shape)}: (N, K), or a batch of them")  # type: ignore[attr-defined]


def _linear_again(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor | None:
    """A kept launch of `linear` that a guard finds, recorded if need be; None without one.

    Guards fail for other classes, and in transforms, traces and autocast.
    """
    try:
        last = (_LAST_LINEAR if bias is None else _LAST_LINEAR_BIAS)[activation]
        found: torch.Tensor | None = last.again(x, weight) if bias is None else last.again(x, weight, bias)
        if found is not None:
            return found
        given = (x, weight) if bias is None else (x, weight, bias)
        return _seen(last, id(weight), (x.shape, weight.shape, activation, len(given)), given, activation, True)
    except (AttributeError, LookupError, TypeError, RuntimeError):  # no dense tensors, or another activation
        pass
    return None


_LAST_LINEAR, _LAST_LINEAR_BIAS = [  # by activation and the weight
    {activation: LastCalls(1, range(count), PREPARED.on_clear) for activation in (None, "relu")} for count in (2, 3)
]


def _linear_by_facts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor | None:
    """The same by all facts of the tensors, guarded from then on."""
    ready = _linear_prepared(x, weight, bias, activation)
    try:
        c = None if ready is None else ready.product(x, weight, bias)
    except RuntimeError:  # a wrapper without memory
        return None
    if ready is None or c is None:
        return None
    given = (x, weight) if bias is None else (x, weight, bias)
    guarded(PREPARED.seen, (x.shape, weight.shape, activation, len(given)), given, ready, MAX_READY)
    if not (_grad_enabled() and any(each.requires_grad for each in given)):
        return c
    return _record(x, weight, bias, (c, ready, activation, True, None))


def _linear_prepared(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> PreparedProblem | None:
    """The prepared launch of `linear`, by all facts of its tensors; None without one of plain tensors of one device."""
    try:
        index = x.get_device()
        *batch, rows, columns = weight.shape
        *steps, step, inner = weight.stride()
        of_weight = (*batch, columns, rows), (*steps, inner, step), weight.dtype
        key: tuple[object, ...] = (x.shape, x.stride(), x.dtype, *of_weight, index, None, None)
        if bias is not None or activation is not None:
            key = _longer(key, None, bias, activation, index)
        ready = PREPARED.get(key)
        # Whether float32 may be multiplied as tf32 is asked each time.
        if ready is None or not ready.simple or ready.tf32:
            return None
        return ready if weight.get_device() == index and not (x.is_neg() or weight.is_neg()) else None
    except (TypeError, RuntimeError):  # sparse tensors have neither strides nor an address
        return None


def _records(bias: torch.Tensor | None) -> bool:
    """True if a bias has a gradient."""
    return bias is not None and type(bias) in PLAIN and bias.requires_grad


def _finished_by_torch(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, activation: str | None, kind: torch.dtype | None
) -> bool:
    """True if torch's operators finish a product whose derivatives are recorded: they compute in its type."""
    return (
        out is None and a.ndim > 1 < b.ndim and a.dtype == b.dtype and a.dtype.itemsize > 1
        and (kind is None or getattr(kind, "itemsize", 0) > 1)  # of 8-bit floats torch has no activations
        and isinstance(activation, str)
        and (activation in ACTIVATIONS or (activation in GATES and b.shape[-1] % 2 == 0))
    )  # fmt: skip


def _seen_by_autograd_alone(bias: torch.Tensor | None) -> bool:
    return (bias is None or type(bias) in PLAIN) and seen_by_autograd_alone()


class _RecordedProduct(torch.autograd.Function):
    """A product that was computed, with its gradients in eager mode: kept launches.

    made  the product, its launch, its activation, whether b holds the transpose of what was multiplied, and the
          caller's configuration

    `operators.differentiable` serves torch.func, forward mode and compilers. Where the backward pass is recorded too,
    `matmul` records its products.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None,
        made: tuple[torch.Tensor, PreparedProblem | None, str | None, bool, Config | None],
    ) -> torch.Tensor:  # fmt: skip
        c, prepared, activation, turned, config = made
        # Each operand is kept for the other's gradient alone, as torch.mm does it.
        keeps_b, keeps_a, _, _ = ctx.needs_input_grad
        ctx.save_for_backward(a if keeps_a else None, b if keeps_b else None, None if activation is None else c)
        stand_ins = None if keeps_a and keeps_b else (stand_in(a), stand_in(b))
        ctx.facts = prepared, stand_ins, None if bias is None else bias.dtype, turned, config
        return c

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b, rectified = ctx.saved_tensors
        prepared, stand_ins, kind_of_bias, turned, config = ctx.facts
        if stand_ins is not None:
            a, b = [x if x is not None else other for x, other in zip((a, b), stand_ins)]
        if rectified is not None:
            grad = behind_relu(grad, rectified)
        wanted = ctx.needs_input_grad
        wants_a, wants_b, wants_bias, _ = wanted
        if prepared is not None and (wants_a or wants_b) and not (_grad_enabled() or _is_traced()):
            found = _gradients_again(prepared, a, b, grad, (wanted, kind_of_bias, turned))
            if found is not None:
                left, right, of_bias = found
                if wants_bias and of_bias is None:
                    of_bias = bias_gradient(grad, kind_of_bias)
                return left, right, of_bias, None
        of_bias = bias_gradient(grad, kind_of_bias) if wants_bias else None
        left, right = gradients(a, b.mT if turned else b, (wants_a, wants_b), grad, _derived(config))
        return left, right.mT if turned and right is not None else right, of_bias, None


_record = recorder(_RecordedProduct)


def _gradients_again(
    prepared: PreparedProblem, a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor,
    of: tuple[tuple[bool, ...], torch.dtype | None, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] | None:  # fmt: skip
    """The gradients by kept launches, the bias's if one makes it; `grad` is derived no further.

    None where torch's dispatcher has to see their products.

    of  whether the gradient of a, of b and of a bias is wanted; the bias's type; and whether b holds the transpose of
        what was multiplied
    """
    if not modes_of_functions() and not modes_of_dispatch() and _forward._current_level < 0:
        for check, _, kept in prepared.seen.get(of, ()):
            if check(a, b, grad):
                return kept(a, b, grad)
    index, ((wants_a, wants_b, wants_bias, _), kind, turned) = grad.get_device(), of
    if (
        not (type(grad) in PLAIN and type(a) in PLAIN and type(b) in PLAIN)
        or not (index == prepared.device == current_device())
        or not ((b.get_device() == index or not wants_a) and (a.get_device() == index or not wants_b))
        or not seen_by_autograd_alone()
        or a.is_neg() or b.is_neg() or grad.is_neg() or in_older_vmap(grad)
        or grad.dtype != a.dtype
    ):  # fmt: skip
        return None
    bias = kind if wants_bias else None
    found = kept_gradients(prepared, a, b.mT if turned else b, grad, (wants_a, wants_b), bias)
    if found is None:
        return None
    call = (found.of_transposed_b() if turned else found).call()
    guarded(prepared.seen, of, (a, b, grad), call, MAX_KEPT)
    return call(a, b, grad)


def _derived(config: Config | None) -> Multiply:
    """The product of derivatives of one with that configuration, for which float32 has been allowed."""
    own = of_derivatives(config)
    return lambda left, right, kind: matmul(left, right, out_dtype=kind, allow_tf32=True, config=own)


def _longer(
    key: tuple[object, ...], out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, index: int
) -> tuple[object, ...]:
    """The key of a product with more than its operands; one that is never found where they are not plain."""
    into = over = None
    if out is not None:
        if type(out) not in PLAIN or out.get_device() != index or out.requires_grad or out.is_neg():
            return ()
        if out.is_inference() and not torch.is_inference_mode_enabled():  # `check_operands` refuses it
            return ()
        into = out.shape, out.stride(), out.dtype
    if bias is not None:
        if type(bias) not in PLAIN or bias.get_device() != index or bias.is_neg():
            return ()
        over = bias.shape, bias.stride(), bias.dtype  # as `key_of` has it
    return (*key, into, over, activation)


@sees_unknown
def gemm(
    alpha: float | torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float | torch.Tensor = 0.0,
    c: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    config: Config | None = None,
    allow_tf32: bool | None = None,
    **unknown: NoReturn,
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c, in float32, rounded once.

    The result has c's type, or matmul's without a c: a new tensor, or `out`. c is broadcast to the product's shape, and
    not read where beta is the number 0. One kernel for numbers alpha and beta, matrices, and a c of the product's
    shape; else torch scales and adds, in float32.

    Raises as matmul does. OperandError for a beta without a c, a c that is no tensor, and fractions of a result in
    integers. TensorError for a c that does not broadcast to the product's shape.

    >>> import torch
    >>> x = torch.eye(2).bfloat16()
    >>> gemm(2.0, x, x, 1.0, torch.ones(2, 2).bfloat16()).tolist()
    [[3.0, 1.0], [1.0, 3.0]]
    """
    if unknown:
        refuse_unknown(gemm, tuple(unknown))

    def make() -> torch.Tensor:
        in_place = False
        if _is_traced():
            check_compiled_gemm(alpha, a, b, beta, c, out, config, allow_tf32)
        else:
            read = {"a": a, "b": b} if c is None else {"a": a, "b": b, "c": c}
            check_operands(read)
            in_place = same_memory(c, out)  # each element is read before it is written
            check_operands({"a": a, "b": b} if in_place else read, written)
            choice_of(config)
        scale, left, right, factor, added, kind = check_gemm(alpha, a, b, beta, c, allow_tf32)
        if not sizes_later():
            check_gemm_sizes(scale, left, right, factor, added, out, kind, product_shape(left, right))
        if not needs_dispatcher(left, right, added, out, *[x for x in (scale, factor) if isinstance(x, torch.Tensor)]):
            return scaled_product(scale, left, right, factor, added, kind, config, out, in_place)
        value = dispatched(left, right, wide_type(left.dtype), config)
        if sizes_later() and not _is_traced():
            check_gemm_sizes(scale, left, right, factor, added, out, kind, tuple(value.shape))
        value = scaled_by_torch(value, scale, factor, added, kind)
        return copied(value, out)

    written = _written(out)
    if _is_traced() or getattr(a, "dtype", None) is torch.float32 or (found := _scalars(alpha, beta, c)) is None:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    return again_or(make, ("gemm", config, tuple(found.given)), {"a": a, "b": b, "d": c}, out, found)


_SCALARS = {name: EpilogueOperand(name, "", f32, host=True) for name in ("alpha", "beta")}


def _scalars(alpha: object, beta: object, c: object) -> Extras | None:
    """The numbers of gemm that its kernel takes; None where one is no number, or there is a c without a beta."""
    if type(alpha) not in (int, float) or type(beta) not in (int, float) or (c is None) != (beta == 0):
        return None
    given = {**({} if alpha == 1 else {"alpha": alpha}), **({} if c is None else {"beta": beta})}
    return Extras(numbers=tuple([_SCALARS[name] for name in given]), given=given)


def _checked(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """Everything but the fast path: checks, and then the kernel or torch's dispatcher."""
    check_operands({"a": a, "b": b} if bias is None else {"a": a, "b": b, "bias": bias}, _written(out))
    choice_of(config)
    a, b, kind = check_call(a, b, activation, out_dtype, allow_tf32)
    if not sizes_later():
        check_sizes(a, b, out, bias, activation, kind, product_shape(a, b))
    if needs_dispatcher(a, b, out, bias):
        return recorded_product(a, b, out, bias, activation, kind, config)
    if activation in GATES:
        return gated_product(a, b, bias, activation, kind, config, out)
    return finished_product(a, b, bias, activation, kind, config, out)


def _written(out: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {} if out is None else {"out": out}


def _compiled(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    if type(a) is tuple:
        return _with_pairs(a, b, out, bias, activation, (None, None), config, out_dtype, allow_tf32)
    check_compiled(a, b, out, bias, activation, config, out_dtype, allow_tf32)
    a, b = autocast(a, b)
    return recorded_product(a, b, out, bias, activation, output_type(a, b, out_dtype), config)


def _with_pairs(
    a: object, b: object, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    steps: tuple[Epilogue | None, Mapping[str, object] | None], config: Config | None, out_dtype: torch.dtype | None,
    allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The sum of the products of two pairs; `steps`: an epilogue, and its operands."""
    options, (epilogue, given) = ComposedOptions(out, config, out_dtype, allow_tf32), steps
    asked = AskedParts(epilogue=epilogue, activation=activation)
    return composed_product(a, b, asked, {"bias": bias}, given, options)


def _with_rows(
    a: object, b: object, vectors: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    others: dict[str, object], activation: str | None, out: torch.Tensor | None, config: Config | None,
    out_dtype: torch.dtype | None, copy_rows: bool | None,
) -> torch.Tensor:  # fmt: skip
    """A product with row indices."""
    return indexed_matmul(
        IndexedOperands(a, b, *vectors), activation=activation, out=out, out_dtype=out_dtype, config=config,
        others=others, copy_rows=copy_rows,
    )  # fmt: skip


def _with_prologue(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, object] | None,
    others: Mapping[str, object], finish: tuple[torch.Tensor | None, str | None], out: torch.Tensor | None,
    config: Config | None, out_dtype: torch.dtype | None, rows: torch.Tensor | None, copy_rows: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The product of a function of a's elements."""
    for name, value in others.items():
        if value is not None:
            refuse(f"{name} and prologue: {ALONE}")
    return prologue_product(
        a, b, prologue, {} if given is None else given, bias=finish[0], activation=finish[1], out=out, config=config,
        out_dtype=out_dtype, rows=rows, copy_rows=copy_rows,
    )  # fmt: skip
