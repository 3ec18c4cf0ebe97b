"""register() and unregister(): layoutgemm's hooks in torch._inductor.config, and their removal."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
import torch._functorch.config as functorch_config

from ..arguments import as_bool, checked, refusal
from ..errors import LayoutError, OperandError
from ..kernels.compile.cache import hash_of
from ..torch_op.api import matmul
from ..torch_op.compiled.call_sites import CallSite
from ..torch_op.compiled.guards import FIRST_GPU
from ..torch_op.compiled.lowering import matmul_node
from ..torch_op.compiled.lowering import register as register_lowerings
from ..torch_op.scaled_grouped import operators as _operators  # noqa: F401  # defines the operators that it rewrites to
from .rewrite import PRODUCTS, GraphReport, rewrite_graph

_PARTS = ("forward", "backward", "inference")

HOOKS = ("external_matmul", "post_grad_custom_post_pass")
DEFAULT = tuple(name for name in PRODUCTS if name != "mm")
_NOT_LAZY = "force_non_lazy_backward_lowering"
_active: list[Registration] = []  # of all threads, the latest last
_MAX_SITES = 4096  # shapes that autotuning or generated code has asked for; beyond, all begin anew
_sites: dict[tuple[object, ...], CallSite] = {}


def layoutgemm_matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """a @ b into `out`: the function that Inductor's autotuning times beside its own.

    Raises RuntimeError for a product without a kernel, such as of float32, and on a device that `register` was not
    asked for: Inductor then takes another one.
    """
    key = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, out.stride(), out.dtype, a.get_device())
    site = _sites.get(key)
    if site is not None:
        return site(a, b, out=out)
    _first_product(a, b, out)
    if a.get_device() >= FIRST_GPU and a.dtype is not torch.float32:  # of float32, tf32 is asked for at each call
        if len(_sites) >= _MAX_SITES:
            _sites.clear()
        _sites[key] = CallSite(_product)
    return None


def _product(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    matmul(a, b, out=out, out_dtype=out.dtype)


def _first_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """The product, or the refusals of `layoutgemm_matmul`."""
    own = _own()
    if own and a.device.type not in own[-1].devices:
        raise RuntimeError(f"layoutgemm does not compute on {a.device}: register(devices=) has {own[-1].on}")
    try:
        _product(a, b, out=out)
    except LayoutError as problem:
        said = f"mm of {list(a.shape)} and {list(b.shape)}: {problem}"
        if own:
            own[-1].refused.setdefault(said)
        raise RuntimeError(f"layoutgemm does not compute {said}") from problem


class Registration:
    """The hooks of one register(), a context manager that removes them.

    graphs   a report of each graph that was compiled since, the oldest first
    refused  products that Inductor's autotuning asked for and that have no kernel, with the reason: keys, in order
    """

    @checked(OperandError)
    def __init__(self, products: frozenset[str], devices: frozenset[str], autotune: bool) -> None:
        self.products, self.devices, self.autotune = products, devices, autotune
        self.on = " and ".join(sorted(devices))
        self.graphs: list[GraphReport] = []
        self.refused: dict[str, None] = {}
        self._before: tuple[list[Callable[..., None]], object] | None = None
        self.thread, self._lazy_before = threading.current_thread(), False

    def enter(self) -> Registration:
        """Set the hooks. Raises OperandError, naming the hook, for a torch without one."""
        config = config_with_hooks()
        register_lowerings()
        self._before = list(config.external_matmul), config.post_grad_custom_post_pass
        if self.autotune:
            _define_choice()
            setattr(config, HOOKS[0], [*self._before[0], layoutgemm_matmul])
        if self.products:
            setattr(config, HOOKS[1], _pass_of(self, self._before[1]))
        # Autograd's threads have a configuration of their own: backward graphs are compiled here, beside the forward.
        self._lazy_before = getattr(functorch_config, _NOT_LAZY, False)
        if hasattr(functorch_config, _NOT_LAZY):
            setattr(functorch_config, _NOT_LAZY, True)
        _active.append(self)
        _sites.clear()  # which devices may be asked is decided at the first product
        return self

    def remove(self) -> None:
        """Put back the configuration that register() found. Graphs that were compiled stay as they are."""
        if self._before is None:
            return
        if hooks_of_threads() and self.thread is not threading.current_thread():
            raise OperandError(
                f"register() was called in {self.thread.name}, and torch's hooks are a thread's: remove them there"
            )
        if _own()[-1] is not self:
            raise OperandError("a later register() is active: unregister that first")
        config = config_with_hooks()
        for name, value in zip(HOOKS, self._before):
            setattr(config, name, value)
        if hasattr(functorch_config, _NOT_LAZY):
            setattr(functorch_config, _NOT_LAZY, self._lazy_before)
        self._before = None
        _active.remove(self)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __str__(self) -> str:
        graphs = f"{len(self.graphs)} graph{'s' * (len(self.graphs) != 1)} seen"
        refused = [f"not tuned   {said}" for said in self.refused]
        return "\n".join([*map(str, self.graphs), *refused, graphs])


def register(
    products: Iterable[str] = DEFAULT, *, autotune: bool = True, devices: Iterable[str] = ("cuda",)
) -> Registration:
    """Let Inductor use layoutgemm in all that this thread compiles from here on, until `unregister()`.

    torch's configuration is a thread's; in torch 2.11 the process's, and so are the hooks. Backward graphs, which
    autograd's threads would compile, are compiled beside the forward.

    products  what the pass rewrites: addmm, bmm, _scaled_mm, _grouped_mm; "mm" too if named. A mm whose result goes
              into an activation is rewritten always. () for no pass
    autotune  whether mm may be chosen by Inductor's autotuning (mode="max-autotune")
    devices   of the products, of autotuning too; on "cpu" the operators compute the float64 reference

    The returned value removes the hooks as a context manager, and `graphs` says of each product what happened, forward
    and backward. Graphs that Inductor has in its cache are not compiled again, and are not in it.

    Raises OperandError for an unknown product, and for a torch without the hooks, by name and version.

    >>> registered = register(["addmm"], autotune=False)
    >>> unregister()
    """
    asked, on = _texts(products, "products", PRODUCTS), _texts(devices, "devices", ("cuda", "cpu"))
    autotune = as_bool(autotune, "autotune of register", OperandError)
    if unknown := sorted(asked - set(PRODUCTS)):
        raise OperandError(f"products {unknown}: known are {', '.join(PRODUCTS)}")
    if unknown := sorted(on - {"cuda", "cpu"}):
        raise OperandError(f"devices {unknown}: cuda or cpu")
    return Registration(asked, on, autotune).enter()


def _texts(given: object, what: str, known: Iterable[str]) -> frozenset[str]:
    """The texts of a list. Raises OperandError for anything else, as one text alone, whose letters it would list."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise OperandError(refusal(given, f"{what} of register", f"a list of {', '.join(known)}"))
    entries = list(given)
    if strange := [x for x in entries if not isinstance(x, str)]:
        raise OperandError(refusal(strange[0], f"an entry of {what}", f"one of {', '.join(known)}"))
    return frozenset(entries)


def unregister() -> None:
    """Remove the hooks of the last register() of this thread.

    In torch 2.11 it is the last of all threads. Raises OperandError without one.
    """
    own = _own()
    if not own:
        others = ", ".join(sorted({each.thread.name for each in _active}))
        raise OperandError(
            "unregister() without a register()" + f" in this thread; there is one in {others}" * bool(others)
        )
    own[-1].remove()


@functools.cache
def hooks_of_threads() -> bool:
    """True where a thread has hooks of its own.

    False where torch has one configuration for all threads, as torch 2.11.
    """
    import torch._inductor.config as config

    return isinstance(getattr(config._config[HOOKS[1]], "user_override", None), ContextVar)


def _own() -> list[Registration]:
    """The registrations whose hooks the current thread has, the latest last."""
    here = threading.current_thread()
    return [each for each in _active if each.thread is here or not hooks_of_threads()]


def config_with_hooks() -> ModuleType:
    """torch._inductor.config. Raises OperandError, naming torch's version, where it lacks a hook."""
    import torch._inductor.config as config

    for name in HOOKS:
        if not hasattr(config, name):
            raise OperandError(f"torch {torch.__version__} has no torch._inductor.config.{name}: 2.11 and later have")
    return config


def _define_choice() -> None:
    """Say what Inductor writes where autotuning has chosen the product: a call site, and its operator in C++."""
    from torch._inductor import ir
    from torch._inductor.kernel.mm import lazy_register_extern_choice
    from torch._inductor.virtualized import V

    choice = lazy_register_extern_choice(layoutgemm_matmul)

    def node(a: ir.IRNode, b: ir.IRNode) -> object:
        if V.graph.cpp_wrapper:
            return ir.FallbackKernel.create(torch.ops.layoutgemm.matmul.default, a, b, a.get_dtype())
        layout = ir.FixedLayout(a.get_device(), a.get_dtype(), [a.get_size()[0], b.get_size()[1]])
        return matmul_node(layout, a, b)

    choice.kernel_creator = node


@functools.cache
def package_hash() -> str:
    """A hash of the package. Graphs that another version of it wrote are not this one's."""
    return hash_of(Path(__file__).parent.parent)


def visible_gpus() -> list[str]:
    """The name and architecture of each GPU: Inductor's key has the current one's alone."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"{x.name} {x.major}.{x.minor}" for x in map(torch.cuda.get_device_properties, range(count))]


def _part_being_compiled() -> str:
    """The part of a model that is being compiled, or ""."""
    from torch._functorch.aot_autograd import get_graph_being_compiled

    name = get_graph_being_compiled()
    return next((part for part in _PARTS if f"_{part}" in name), "")


def _pass_of(registration: Registration, before: object) -> object:
    """The pass, after those that were configured before."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    earlier: list[Callable[[torch.fx.Graph], None]]
    earlier = list(before) if isinstance(before, (list, tuple)) else [] if before is None else [before]  # type: ignore[list-item]

    class LayoutgemmPass(CustomGraphPass):
        """Earlier passes, then the rewriting."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            for each in earlier:
                each(graph)
            report = rewrite_graph(graph, registration.products, registration.devices)
            registration.graphs.append(replace(report, part=_part_being_compiled()))

        def uuid(self) -> str | None:
            """Identifies the pass in Inductor's cache. Returns None, for no caching, where an earlier pass has no
            identity."""
            ids = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in earlier]
            if any(x is None for x in ids):
                return None
            asked = sorted(registration.products), sorted(registration.devices)
            said = [package_hash(), *map(repr, (ids, *asked, visible_gpus()))]
            return hashlib.sha256("\0".join(said).encode()).hexdigest()

    return LayoutgemmPass()
