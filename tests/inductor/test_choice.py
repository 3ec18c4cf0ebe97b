"""The choice of Inductor's autotuning in later processes, in C++, and in Inductor's cache. On the CPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch._inductor.config as config
from torch._inductor import ir, select_algorithm
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel import mm
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import layoutgemm.inductor.registration as module
from layoutgemm import inductor

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
    assert made.python_kernel_name == f"extern_kernels.{NAME}"
    assert (made.get_size(), made.get_dtype()) == ([8, 16], torch.bfloat16)


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
