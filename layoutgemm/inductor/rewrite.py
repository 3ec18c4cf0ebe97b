"""The pass that rewrites a decomposed graph's products to layoutgemm's operators.

    node of the graph                  becomes torch.ops.layoutgemm.
    ---------------------------------  ------------------------------------------------------
    mm(a, b), bmm(a, b)                matmul, or finished where an activation follows
    act(mm(a, b)) * mm(a, c)           combined_matmul, one kernel of both: see `gates`
    addmm(bias, a, b), baddbmm         finished(a, b, bias, activation)
    the same with a matrix for bias    epilogue_matmul: activation(alpha * a @ b + beta * matrix)
    _scaled_mm(a, b, scale_a, scale_b) scaled_matmul(a, scale_a, b, scale_b, bias, activation)
    _grouped_mm(a, b, offs)            grouped_matmul(a, b, offs, "offs")
    _scaled_grouped_mm                 grouped_matmul with the scales

A product is rewritten where the operator accepts the graph's fake tensors: its own checks say so, and their refusal is
the reason in the report. Products that no operator takes the place of are in the report too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Graph, Node

from ..errors import LayoutError, OperandError
from ..kernels.epilogue.chain import Activation, Epilogue, Residual, Scale
from ..torch_op.prepared import target
from ..torch_op.types import C_NAMES
from .activations import Match, following
from .gates import gated_pair, join

_aten, _ours = torch.ops.aten, torch.ops.layoutgemm
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One product of a graph. The node, and either its operator and what was fused, or why it was left.

    apart  of a product of a gated pair that stays two products: the other one, and why; "" otherwise
    """

    node: str
    product: str
    by: str = ""
    fused: tuple[str, ...] = ()
    reason: str = ""
    apart: str = ""

    def __str__(self) -> str:
        apart = f"; not one product with {self.apart}" * bool(self.apart)
        if not self.by:
            return f"left       {self.node} ({self.product}): {self.reason}{apart}"
        more = f" with {' and '.join(self.fused)}" if self.fused else ""
        return f"rewritten  {self.node} ({self.product}) to {self.by}{more}{apart}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The products of one graph that was compiled, in its order.

    part  "forward", "backward" or "inference", as the compiler calls the graph; "" where it calls it otherwise
    """

    products: tuple[Rewrite, ...] = field(default=())
    part: str = ""

    @property
    def rewritten(self) -> tuple[Rewrite, ...]:
        """The products that are layoutgemm's now."""
        return tuple([each for each in self.products if each.by])

    @property
    def left(self) -> tuple[Rewrite, ...]:
        """The products that were left, each with a reason."""
        return tuple([each for each in self.products if not each.by])

    def __str__(self) -> str:
        where = f" in the {self.part} graph" * bool(self.part)
        said = f"{len(self.rewritten)} of {len(self.products)} products rewritten{where}"
        return "\n".join([*map(str, self.products), said])


@dataclass(frozen=True, slots=True)
class Call:
    """A product read off its node, and the operator that takes its place.

    added  "bias" or "matrix", as the operator adds it; "" for neither
    """

    operator: Callable[..., torch.Tensor]
    args: tuple[object, ...]
    added: str = ""


Reader = Callable[[Node, "str | None"], Call]


def rewrite_graph(graph: Graph, products: frozenset[str], devices: frozenset[str]) -> GraphReport:
    """Rewrite a graph of aten's operators in place.

    products  names of PRODUCTS; "mm" rewrites those that no activation follows, too
    devices   "cuda", and "cpu" for tests: there the operators compute a float64 reference
    """
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target in NAMES]
    found, apart = _joined(graph, nodes, devices)
    for node in nodes:
        if node not in found:
            made = _rewritten(graph, node, NAMES[node.target], products, devices)
            found[node] = replace(made, apart=apart.get(node, ""))
    graph.lint()
    return GraphReport(tuple([found[node] for node in nodes]))


def _joined(
    graph: Graph, nodes: Sequence[Node], devices: frozenset[str]
) -> tuple[dict[Node, Rewrite], dict[Node, str]]:
    """The products of gated pairs that are one product now; and of others, why not."""
    found: dict[Node, Rewrite] = {}
    apart: dict[Node, str] = {}
    for node in nodes:
        value = node.meta.get("val")
        asked = isinstance(value, torch.Tensor) and value.device.type in devices
        pair = gated_pair(node) if asked and NAMES[node.target] == "mm" and node not in found else None
        if pair is None or pair.up in found:
            continue
        if reason := join(graph, pair):
            apart |= {one: f"{other.name}: {reason}" for one, other in ((node, pair.up), (pair.up, node))}
            continue
        by = str(_ours.combined_matmul.default).removesuffix(".default")
        found[node] = Rewrite(node.name, "mm", by, (pair.match.name, f"the product {pair.up.name}"))
        found[pair.up] = Rewrite(pair.up.name, "mm", by, (f"the gate {node.name}",))
    return found, apart


def _rewritten(graph: Graph, node: Node, name: str, products: frozenset[str], devices: frozenset[str]) -> Rewrite:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return Rewrite(node.name, name, reason="its result is not one tensor")
    if value.device.type not in devices:
        return Rewrite(
            node.name, name, reason=f"it is on {value.device}, and asked for is {', '.join(sorted(devices))}"
        )
    if name not in PRODUCTS:
        return Rewrite(node.name, name, reason="no operator takes its place")
    match = None if "grouped" in name else following(node, value.dtype, value.ndim)
    if name not in products and not (name == "mm" and match is not None):
        hook = "; Inductor's autotuning may choose layoutgemm for it" if name == "mm" else ""
        return Rewrite(node.name, name, reason=f"{name} is not asked for{hook}")
    activation = None if match is None else match.name
    try:
        if value.device.type == "cuda":
            target(value.device.index or 0)
        call = PRODUCTS[name][1](node, activation)
        fake = call.operator(*[_fake(x) for x in call.args])
    except (LayoutError, RuntimeError, TypeError) as error:
        return Rewrite(node.name, name, reason=str(error) or type(error).__name__)
    was = node.meta["val"]
    if tuple(fake.shape) != tuple(was.shape) or fake.dtype != was.dtype:
        why = f"its result is {list(was.shape)} {was.dtype}, the operator's {list(fake.shape)} {fake.dtype}"
        return Rewrite(node.name, name, reason=why)
    _replace(graph, node, call, fake, match)
    fused = [*([call.added] if call.added else []), *([] if activation is None else [activation])]
    return Rewrite(node.name, name, str(call.operator).removesuffix(".default"), tuple(fused))


def _replace(graph: Graph, node: Node, call: Call, fake: torch.Tensor, match: Match | None) -> None:
    """The operator in place of the product and its activation."""
    with graph.inserting_after(node):
        made = graph.call_function(call.operator, call.args)
    made.meta = {**node.meta, "val": fake}
    if match is None:
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        return
    result = made
    if match.view is not None:
        with graph.inserting_after(made):
            result = graph.call_function(match.view.target, (made, *match.view.args[1:]))
        result.meta = {**match.last.meta}
    match.last.replace_all_uses_with(result)
    views = () if match.view is None else (match.view,)
    for old in sorted({node, *views, *match.inner}, reverse=True):
        graph.erase_node(old)


def _fake(x: object) -> object:
    if isinstance(x, (list, tuple)):
        return [_fake(each) for each in x]
    return x.meta["val"] if isinstance(x, Node) else x


def _argument(node: Node, place: int, name: str, default: object = _MISSING) -> object:
    """An argument of a node, by place or by name."""
    if name in node.kwargs:
        return node.kwargs[name]
    if len(node.args) > place:
        return node.args[place]
    if default is _MISSING:
        raise OperandError(f"{node.target} without {name}")
    return default


def _product(node: Node, activation: str | None) -> Call:
    a, b = node.args[:2]
    return _plain(a, b, activation, node.meta["val"].dtype)


def _plain(a: object, b: object, activation: str | None, kind: torch.dtype) -> Call:
    if activation is None:
        return Call(_ours.matmul.default, (a, b, kind))
    return Call(_ours.finished.default, (a, b, None, activation, kind))


def _addmm(node: Node, activation: str | None) -> Call:
    added, a, b = node.args[:3]
    value, kind = node.meta["val"], node.meta["val"].dtype
    alpha, beta = _argument(node, 4, "alpha", 1), _argument(node, 3, "beta", 1)
    if beta == 0 and alpha == 1:  # torch reads no addend then, NaN or not
        return _plain(a, b, activation, kind)
    matrix = _fake(added)
    if not isinstance(matrix, torch.Tensor) or matrix.ndim < 2 or matrix.shape != value.shape:
        if alpha != 1 or beta != 1:
            raise OperandError(f"alpha = {alpha}, beta = {beta}: a bias is added as it is")
        return Call(_ours.finished.default, (a, b, added, activation, kind), "bias")
    if beta == 0 or not all(isinstance(each, (int, float)) for each in (alpha, beta)):
        raise OperandError(f"alpha = {alpha}, beta = {beta}: a matrix is added with factors that are known, and not 0")
    order = "row" if matrix.stride(-1) == 1 else "col"
    name = C_NAMES.get(matrix.dtype, str(matrix.dtype))
    residual = Residual(name, order, beta=None) if beta == 1 else Residual(name, order)
    steps = [*([] if alpha == 1 else [Scale()]), residual, *([] if activation is None else [Activation(activation)])]
    numbers = [float(each) for each in (alpha, beta) if each != 1]  # type: ignore[arg-type]
    args: tuple[object, ...] = (a, b, [added], [], numbers, [], Epilogue(*steps).json, kind)
    return Call(_ours.epilogue_matmul.default, args, "matrix")


def _scaled(node: Node, activation: str | None) -> Call:
    a, b, scale_a, scale_b = (_argument(node, i, name) for i, name in enumerate(("self", "mat2", "scale_a", "scale_b")))
    bias = _argument(node, 4, "bias", None)
    if _argument(node, 5, "scale_result", None) is not None:
        raise OperandError("scale_result: the operator has no scale of its result")
    kind = _argument(node, 6, "out_dtype", None) or node.meta["val"].dtype
    fast = bool(_argument(node, 7, "use_fast_accum", False))
    args = (a, scale_a, b, scale_b, bias, activation, kind, "", "", fast)
    return Call(_ours.scaled_matmul.default, args, "" if bias is None else "bias")


def _grouped(node: Node, activation: str | None) -> Call:
    a, b = node.args[:2]
    offs, bias = _argument(node, 2, "offs", None), _argument(node, 3, "bias", None)
    if offs is None:
        return Call(_ours.matmul.default, (a, b, node.meta["val"].dtype))
    args = (a, b, offs, "offs", None, None, node.meta["val"].dtype, "", "", "", bias)
    return Call(_ours.grouped_matmul.default, args, "" if bias is None else "bias")


def _scaled_grouped(node: Node, activation: str | None) -> Call:
    a, b, scale_a, scale_b = (_argument(node, i, name) for i, name in enumerate(("self", "mat2", "scale_a", "scale_b")))
    offs, bias = _argument(node, 4, "offs", None), _argument(node, 5, "bias", None)
    if _argument(node, 6, "scale_result", None) is not None:
        raise OperandError("scale_result: the operator has no scale of its result")
    fast = bool(_argument(node, 8, "use_fast_accum", False))
    args = (a, b, offs, "offs", scale_a, scale_b, node.meta["val"].dtype, "", "", "", bias, None, fast)
    return Call(_ours.grouped_matmul.default, args, "" if bias is None else "bias")


def _known(readers: dict[str, Reader]) -> dict[str, tuple[object, Reader]]:
    """The products that this torch has, with the operator of each."""
    found: dict[str, tuple[object, Reader]] = {}
    for name, reader in readers.items():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(_aten, packet, None), overload or "default", None)
        if operator is not None:
            found[name] = operator, reader
    return found


PRODUCTS = _known({
    "mm": _product, "bmm": _product, "addmm": _addmm, "baddbmm": _addmm, "mm.dtype": _product, "bmm.dtype": _product,
    "_scaled_mm": _scaled, "_grouped_mm": _grouped, "_scaled_grouped_mm": _scaled_grouped,
})  # fmt: skip
_OTHERS = ("addmm.dtype", "baddbmm.dtype", "_scaled_mm_v2", "_scaled_grouped_mm_v2", "_int_mm")  # in reports alone
NAMES = {operator: name for name, (operator, _) in (PRODUCTS | _known(dict.fromkeys(_OTHERS, _product))).items()}
