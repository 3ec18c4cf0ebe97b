"""Inductor's code for layoutgemm's operators: plain calls in place of calls through torch's dispatcher.

By default generated code calls torch.ops.layoutgemm.matmul: the dispatcher, torch.library's wrappers in Python, and
checks that the graph has passed already. A lowering makes the call one of `compiled.direct`:

    operator's results   the function
    ------------------   --------------------------------------------------
    one                  writes to a tensor that Inductor allocates, and reuses
    several              returns new tensors, of the strides of the operator's
    one, and arguments   takes the operator's arguments, and returns a new tensor. So does one whose order leaves
    that are written     tiles out

Where sizes are no symbols, a call that writes to Inductor's tensor is that of a `CallSite`, which keeps its launch.
With cpp_wrapper, and where a single result's columns are contiguous, the operator stays.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...graph_marks import constant_in_graphs
from .call_sites import View

_IMPORT = "from layoutgemm.torch_op.compiled import direct as layoutgemm_direct"
# The tensors that an operator of each name may be without.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "matmul": (),
    "finished": ("bias",),
    "gated": (),
    "combined_matmul": (),
    "composed_matmul": (),
    "scaled_matmul": ("scale_b", "bias"),
    "grouped_matmul": ("groups", "scale_a", "scale_b", "bias"),
    "quantized_matmul": ("scales", "bias", "scale_x"),
    "quantize": (),
    "quantize_both": (),
    "quantize_together": (),
    "scaled_matmul_quantized": ("scale_b", "bias"),
}
_ALWAYS = ("a", "scale_a", "b", "x", "xs", "units", "read")  # tensors of the operators, in the order of their arguments
# Operators that write to arguments: the functions of theirs have the same names.
_WRITING = ("epilogue_matmul", "composed_matmul_writing", "scaled_epilogue_matmul", "grouped_epilogue_matmul")
_NODES = (
    "ExternKernelOut",
    "ExternKernelAlloc",
    "FallbackKernel",
    "MultiOutput",
    "MultiOutputLayout",
    "convert_shape_to_inductor",
)
_lowered: set[str] = set()


@constant_in_graphs
def register() -> bool:
    """Set the lowerings of the operators that are defined, once each. False for an Inductor that differs."""
    missing = [name for name in (*_OPTIONAL, *_WRITING) if name not in _lowered and hasattr(torch.ops.layoutgemm, name)]
    if not missing:
        return True
    try:
        from torch._inductor import ir, lowering
    except ImportError:
        return False
    if not all(hasattr(ir, name) for name in _NODES):
        return False
    for name in missing:
        operator = getattr(torch.ops.layoutgemm, name).default
        made = _lowering(name, operator) if name in _OPTIONAL else _own_form(name, operator)
        lowering.register_lowering(operator, type_promotion_kind=None)(made)
        _lowered.add(name)
    return True


def _lowering(name: str, operator: Any) -> Callable[..., object]:
    """The function that makes an operator's node of Inductor's graph."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    names = [argument.name for argument in operator._schema.arguments]
    defaults = {x.name: x.default_value for x in operator._schema.arguments if x.has_default_value()}
    stays = lowering.fallback_handler(operator, add_to_fallback_set=False)
    new_result = _own_form("composed_result", operator) if name == "composed_matmul" else stays

    one_result, several_results = _calls()

    def lower(*args: object, **kwargs: object) -> object:
        value = V.graph.current_node.meta["val"]
        several = isinstance(value, (tuple, list))
        if V.graph.cpp_wrapper or not (several or value.is_contiguous()):
            return stays(*args, **kwargs)
        given = {**defaults, **dict(zip(names, args)), **kwargs}
        if name == "composed_matmul" and not _writes_every_element(str(given["parts"]), given["wholes"]):
            return new_result(*args, **kwargs)
        tensors, others = _split(name, given, several)
        inputs = [ir.ExternKernel.realize_input(x) for x in tensors.values()]
        call = {"inputs": inputs, "kwargs": others, "python_kernel_name": f"layoutgemm_direct.{name}"}
        if not several:
            return ir.TensorBox.create(one_result(layout=_layout(value), **call))
        made = several_results(layout=ir.MultiOutputLayout(device=value[0].device), **call)
        made.outputs = [ir.MultiOutput(_layout(x), made, [(tuple, i)]) for i, x in enumerate(value)]
        return tuple([ir.TensorBox.create(x) for x in made.outputs])

    return lower


def _own_form(function: str, operator: Any) -> Callable[..., object]:
    """The function that makes the node of a call in the operator's form.

    function  of `compiled.direct`, which the call names
    """
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V
    from torch.utils import _pytree as pytree

    stays = lowering.fallback_handler(operator, add_to_fallback_set=False)

    class DirectForm(ir.FallbackKernel):
        """A call with the operator's arguments."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            self.python_kernel_name = f"layoutgemm_direct.{function}"

        def codegen(self, wrapper: Any) -> None:
            """Import the functions, and write the call."""
            wrapper.add_import_once(_IMPORT)
            super().codegen(wrapper)

    def lower(*args: object, **kwargs: object) -> object:
        if V.graph.cpp_wrapper or not V.graph.current_node.meta["val"].is_contiguous():
            return stays(*args, **kwargs)
        return pytree.tree_map_only(ir.IRNode, ir.TensorBox.create, DirectForm.create(operator, *args, **kwargs))

    return lower


def _writes_every_element(parts: str, wholes: object) -> bool:
    """True if the launch writes all of C and reads no whole number."""
    found = json.loads(parts)
    keeps = {"out_rows", "add_rows"} & set(found["own"])  # rows of `out` that they leave, or add to
    return found["order"] is None and not keeps and not wholes  # one may be a symbol


def matmul_node(layout: object, a: object, b: object) -> object:
    """Inductor's node of a @ b, two of its nodes, with a result of that layout."""
    named = {"inputs": [a, b], "kwargs": {"config": "", "allow_tf32": None}}
    return _calls()[0](layout=layout, python_kernel_name="layoutgemm_direct.matmul", **named)


@functools.cache
def _calls() -> tuple[Any, Any]:
    """Inductor's nodes of calls of `compiled.direct`: with one result, and with several."""
    from torch._inductor import ir

    class DirectCall(ir.ExternKernelOut):
        """A call of a function that writes to `out`."""

        python_kernel_name: str
        inputs: list[Any]
        kwargs: dict[str, object]

        def codegen(self, wrapper: Any) -> None:
            """Import the functions, and write the call."""
            wrapper.add_import_once(_IMPORT)
            if site := _site(self.python_kernel_name, self.kwargs, [*self.inputs, self]):
                self.python_kernel_name, made = site
                self.inputs, self.kwargs = [_viewed(x)[0] for x in self.inputs], {}
                wrapper.add_import_once(f"{self.python_kernel_name} = {made}")
            super().codegen(wrapper)

    class DirectCalls(ir.ExternKernelAlloc):
        """A call of a function that returns several tensors."""

        def codegen(self, wrapper: Any) -> None:
            """Import the functions, and write the call."""
            wrapper.add_import_once(_IMPORT)
            super().codegen(wrapper)

    return DirectCall, DirectCalls


def _site(function: str, options: Mapping[str, object], tensors: Sequence[Any]) -> tuple[str, str] | None:
    """The name of a call site, and what makes it.

    None where sizes are symbols, and of float32: whether that is multiplied as tf32 is asked at each call. Calls that
    differ in sizes, strides, types or GPU have sites of their own: a launch is of one GPU.
    """
    forms = [(x.get_dtype(), *x.get_size(), "by", *x.get_stride(), x.get_device()) for x in tensors]
    offsets = [x.get_layout().offset for x in tensors]
    symbols = any(getattr(size, "free_symbols", ()) for form in (*forms, offsets) for size in form)
    if symbols or forms[0][0] is torch.float32:
        return None
    views = tuple([_viewed(x)[1] for x in tensors[:-1]])
    named = {"count": len(views), **({"views": views} if any(views) else {}), **options}
    made = f"layoutgemm_direct.site({', '.join([function, *[f'{name}={x!r}' for name, x in named.items()]])})"
    same = hashlib.sha256(f"{made} {forms}".encode()).hexdigest()[:16]
    return f"{function.replace('.', '_')}_{same}", made


def _viewed(x: object) -> tuple[Any, View | None]:
    """The tensor below an input that is a view, and the view.

    The input itself and None where there is no view, or one of another type.
    """
    from torch._inductor import ir

    if not isinstance(x, ir.ReinterpretView) or x.dtype != x.data.dtype:
        return x, None
    size, stride, offset = x.layout.size, x.layout.stride, x.layout.offset
    return x.data, (tuple(map(int, size)), tuple(map(int, stride)), int(offset))


def _layout(value: torch.Tensor) -> Any:
    """Inductor's layout of a result, from the graph's fake tensor."""
    from torch._inductor import ir

    shape, strides = (ir.convert_shape_to_inductor(x) for x in (value.size(), value.stride()))
    return ir.FixedLayout(value.device, value.dtype, shape, strides)


def _split(name: str, given: Mapping[str, object], several: bool) -> tuple[dict[str, Any], dict[str, object]]:
    """The tensors of a call, and its other arguments. `tensors` among these names the optional ones that are given.

    several  whether the function makes the results, and has to know their type
    """
    optional = _OPTIONAL[name]
    always = [x for x in _ALWAYS if x in given and x not in optional]
    there = [x for x in optional if given[x] is not None]
    left = (*always, *optional, *(() if several else ("out_dtype",)))
    others = {x: value for x, value in given.items() if x not in left}
    tensors: dict[str, Any] = {}
    for x in (*always, *there):
        each = given[x]
        tensors |= {f"{x}[{i}]": y for i, y in enumerate(each)} if isinstance(each, (list, tuple)) else {x: each}
    return tensors, {**others, **({"tensors": tuple(there)} if optional else {})}
