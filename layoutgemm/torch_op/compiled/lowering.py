"""Inductor's code for layoutgemm's operators: plain calls in place of calls through torch's dispatcher.

By default generated code calls torch.ops.layoutgemm.matmul: the dispatcher, torch.library's wrappers in Python, and
checks that the graph has passed already. A lowering makes the call one of `compiled.direct`, which writes to a tensor
that Inductor allocates, and reuses. With cpp_wrapper, and where a result's columns are contiguous, the operator stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_MODULE = "layoutgemm.torch_op.compiled"
# The tensors that an operator of each name may be without.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "matmul": (),
    "finished": ("bias",),
    "gated": (),
    "scaled_matmul": ("scale_b", "bias"),
    "grouped_matmul": ("groups", "scale_a", "scale_b", "bias"),
    "quantized_matmul": ("scales", "bias", "scale_x"),
}
_ALWAYS = ("a", "scale_a", "b", "x", "units")  # tensors of the operators, in the order of their arguments


_lowered: set[str] = set()


def register() -> bool:
    """Set the lowerings of the operators that are defined, once each; False for an Inductor that differs."""
    missing = [name for name in _OPTIONAL if name not in _lowered and hasattr(torch.ops.layoutgemm, name)]
    if not missing:
        return True
    try:
        from torch._inductor import ir, lowering
    except ImportError:
        return False
    if not hasattr(ir, "ExternKernelOut") or not hasattr(ir, "convert_shape_to_inductor"):
        return False
    for name in missing:
        operator = getattr(torch.ops.layoutgemm, name).default
        lowering.register_lowering(operator, type_promotion_kind=None)(_lowering(name, operator))
        _lowered.add(name)
    return True


register._dynamo_marked_constant = True  # type: ignore[attr-defined]  # called where a call is traced


def _lowering(name: str, operator: Any) -> Callable[..., object]:
    """The function that makes an operator's node of Inductor's graph."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    names = [argument.name for argument in operator._schema.arguments]
    defaults = {x.name: x.default_value for x in operator._schema.arguments if x.has_default_value()}
    stays = lowering.fallback_handler(operator, add_to_fallback_set=False)

    class DirectCall(ir.ExternKernelOut):  # type: ignore[misc]
        """A call of a function of `compiled.direct`."""

        def codegen(self, wrapper: Any) -> None:
            """Import the functions, and write the call."""
            wrapper.add_import_once(f"from {_MODULE} import direct as layoutgemm_direct")
            super().codegen(wrapper)

    def lower(*args: Any, **kwargs: Any) -> object:
        value = V.graph.current_node.meta["val"]
        if V.graph.cpp_wrapper or not value.is_contiguous():
            return stays(*args, **kwargs)
        given = {**defaults, **dict(zip(names, args)), **kwargs}
        tensors, others = _split(name, given)
        layout = ir.FixedLayout(
            value.device, value.dtype, ir.convert_shape_to_inductor(value.size()),
            ir.convert_shape_to_inductor(value.stride()),
        )  # fmt: skip
        inputs = [ir.ExternKernel.realize_input(x) for x in tensors.values()]
        node = DirectCall(layout=layout, inputs=inputs, kwargs=others, python_kernel_name=f"layoutgemm_direct.{name}")
        return ir.TensorBox.create(node)

    return lower


def _split(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a call, and its other arguments. `tensors` among these names the optional ones that are given."""
    optional = _OPTIONAL[name]
    always = [x for x in _ALWAYS if x in given and x not in optional]
    there = [x for x in optional if given[x] is not None]
    others = {x: value for x, value in given.items() if x not in (*always, *optional, "out_dtype")}
    return {x: given[x] for x in (*always, *there)}, {**others, **({"tensors": tuple(there)} if optional else {})}
