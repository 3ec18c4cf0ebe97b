"""The choice of Inductor's autotuning in later processes, in C++, and in Inductor's cache. On the CPU."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch._functorch.config as functorch_config
import torch._inductor.config as config
from torch._inductor import ir, select_algorithm
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel import mm
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import layoutgemm.inductor.registration as module
from layoutgemm import inductor
from layoutgemm.errors import OperandError

NAME = "layoutgemm_matmul"


def test_a_later_process_has_the_function_that_cached_graphs_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor defined it where it tuned alone: "KernelNamespace has no attribute layoutgemm_matmul"."""
    if hasattr(select_algorithm.extern_kernels, NAME):  # as in a new process
        delattr(select_algorithm.extern_kernels, NAME)
        select_algorithm.ExternKernelChoice._registry.pop(NAME)
    mm.lazy_register_extern_choice.cache_clear()
    with inductor.register(devices=["cpu"]):
        assert getattr(select_algorithm.extern_kernels, NAME) is module.layoutgemm_matmul
    with inductor.register(devices=["cpu"]):
        pass


@pytest.mark.parametrize("cpp", [False, True])
def test_a_tuned_product_is_the_operator_where_inductor_writes_cpp(cpp: bool) -> None:
    """It had no name in C++: AOTInductor ended with an AssertionError."""
    a, b = torch.ones(8, 64).bfloat16(), torch.ones(64, 16).bfloat16()
    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(x) for x in (a, b)]
        traced = make_fx(torch.mm)(*inputs)
    tuned = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "cpp_wrapper": cpp}  # ours alone
    with inductor.register((), devices=["cpu"]), config.patch(tuned), V.set_fake_mode(mode):
        graph = GraphLowering(traced, example_inputs=inputs, cpp_wrapper=cpp)
        with V.set_graph_handler(graph):
            graph.run(*inputs)
    if cpp:
        assert [str(x.op_overload) for x in graph.operations if isinstance(x, ir.FallbackKernel)] == [
            "layoutgemm.matmul.default"
        ]
        return
    [made] = graph.operations
    assert made.python_kernel_name == "layoutgemm_direct.matmul"  # of fixed sizes a call site, once it is written
    assert (made.get_size(), made.get_dtype()) == ([8, 16], torch.bfloat16)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tuned_product_is_a_call_site_of_its_sizes(dynamic: bool) -> None:
    """Autotuning has chosen it. Sizes that change are a call with all checks."""
    a, b = torch.randn(8, 64).bfloat16(), torch.randn(64, 16).bfloat16()
    tuned = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "force_disable_caches": True}
    with inductor.register((), devices=["cpu"]), config.patch(tuned):
        found, [code] = run_and_get_code(torch.compile(lambda a, b: torch.mm(a, b), dynamic=dynamic), a, b)
    assert torch.equal(found, (a.double() @ b.double()).bfloat16())
    calls = [line for line in code.splitlines() if line.strip().startswith("layoutgemm_direct") and "out=" in line]
    assert len(calls) == 1 and ("config=" in calls[0]) is dynamic, calls


def test_cached_graphs_are_of_one_version_and_of_the_same_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product depends on its GPU, and Inductor knows the current one alone."""

    def key(products: Any = ("addmm",)) -> str:
        with inductor.register(products, autotune=False):
            return str(config.post_grad_custom_post_pass.uuid())

    first = key()
    assert key() == first and key(["bmm"]) != first
    assert re.fullmatch("[0-9a-f]{64}", module.package_hash())
    with monkeypatch.context() as patch:
        patch.setattr(module, "visible_gpus", lambda: ["NVIDIA A100 8.0"])
        assert key() != first
    monkeypatch.setattr(module, "package_hash", lambda: "another")
    assert key() != first


def in_another_thread(call: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_backward_graphs_are_compiled_in_the_thread_of_the_hooks() -> None:
    """autograd's threads have none of its hooks: they compiled backward graphs without them."""
    assert not functorch_config.force_non_lazy_backward_lowering
    with inductor.register(), inductor.register(["mm"]):
        assert functorch_config.force_non_lazy_backward_lowering
        found = in_another_thread(lambda: config.post_grad_custom_post_pass)
        assert (found is None) is module.hooks_of_threads()
    assert not functorch_config.force_non_lazy_backward_lowering


def test_hooks_of_the_process_are_removed_in_their_order_by_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 has one configuration for all threads: one that was put back too early came back with a later one."""
    monkeypatch.setattr(module, "hooks_of_threads", lambda: False)
    registered = inductor.register()
    later = in_another_thread(lambda: inductor.register(["bmm"]))
    with pytest.raises(OperandError, match=r"a later register\(\) is active: unregister that first"):
        registered.remove()
    in_another_thread(inductor.unregister)
    assert later._before is None
    registered.remove()
    assert config.post_grad_custom_post_pass is None


@pytest.mark.skipif(
    not module.hooks_of_threads(), reason="threads share one configuration in this torch: install 2.13 or later"
)
def test_hooks_are_of_a_thread_and_removed_there() -> None:
    a, b, out = torch.ones(4, 16).bfloat16(), torch.ones(16, 8).bfloat16(), torch.empty(4, 8).bfloat16()
    with inductor.register() as registered:
        with pytest.raises(
            OperandError, match=r"register\(\) was called in MainThread, and torch's hooks are a thread's"
        ):
            in_another_thread(registered.remove)
        with pytest.raises(OperandError, match=r"without a register.* in this thread; there is one in MainThread"):
            in_another_thread(inductor.unregister)
        in_another_thread(lambda: inductor.register(["bmm"]).remove())
        in_another_thread(lambda: module.layoutgemm_matmul(a, b, out=out))  # a compiled graph that runs
        assert torch.equal(out, a @ b)
        with ThreadPoolExecutor(1) as pool:  # a later one of another thread is no obstacle
            other = pool.submit(inductor.register, ["bmm"]).result()
            registered.remove()
            pool.submit(other.remove).result()
    assert config.post_grad_custom_post_pass is None
