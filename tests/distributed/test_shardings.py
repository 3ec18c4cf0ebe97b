"""Sharding rules on gloo processes of one CPU, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from layoutgemm import matmul, quantize, scaled_matmul
from layoutgemm.distributed import all_gather_matmul, matmul_reduce_scatter, register_shardings
from layoutgemm.distributed.shardings import gated_rules, grouped_rules, product_rules, scaled_rules
from layoutgemm.errors import OperandError
from layoutgemm.kernels.run import operand_checks
from layoutgemm.nn import DenseLinear

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.skipif(
    not torch.distributed.is_available(),
    reason="this torch is built without torch.distributed: install PyTorch's own wheel",
)
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_every_placement_is_right(world: int, tmp_path: Path) -> None:
    commands = [[sys.executable, str(PROGRAM), str(rank), str(world), str(tmp_path / "store")] for rank in range(world)]
    root = PROGRAM.parents[2]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    started = [
        subprocess.Popen(each, cwd=root, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for each in commands
    ]
    try:
        outputs = [each.communicate(timeout=500)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert all(each.returncode == 0 for each in started), "\n".join(outputs)
    assert all("right" in output for output in outputs)


def test_rules_of_a_product_cover_both_plans() -> None:
    rules = product_rules((4, 8, 16), (16, 12), linear=True)
    assert (Shard(2), Replicate(), Shard(1)) in rules  # column-wise
    assert (Partial(), Shard(2), Shard(0)) in rules  # row-wise
    assert (Shard(0), Shard(0), Replicate()) in rules  # data parallel
    assert not [rule for rule in product_rules((8, 16), (16, 12), linear=False) if Partial() in rule]


class Shaped:
    """A tensor as a rule sees it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_scales_are_cut_along_their_own_dimension() -> None:
    """Four rows with four blocks of K, of one scale each: that the sizes agree says nothing."""
    rules = scaled_rules(Shaped(4, 512), Shaped(1, 4), Shaped(512, 256), Shaped(256, 4))
    (rows,) = [inputs for results, inputs in rules if results == [Shard(0)]]
    assert rows == [Shard(0), Replicate(), Replicate(), Replicate()]
    (columns,) = [inputs for results, inputs in rules if results == [Shard(1)]]
    assert columns == [Replicate(), Replicate(), Shard(1), Shard(0)]
    (along_k,) = [inputs for results, inputs in rules if results == [Partial()]]
    assert along_k == [Shard(1), Shard(1), Shard(0), Shard(1)]
    with_bias = scaled_rules(Shaped(4, 512), Shaped(1, 4), Shaped(512, 256), Shaped(256, 4), Shaped(256))
    assert [inputs[4] for results, inputs in with_bias if results == [Partial()]] == [Partial()]
    square = scaled_rules(Shaped(256, 200), Shaped(2, 2), Shaped(200, 100), Shaped(1, 2))  # 200 is no whole blocks
    assert [results for results, _ in square] == [[Replicate()], [Shard(0)], [Shard(1)]]


def test_what_lies_in_groups_is_not_cut() -> None:
    a, b, ends = Shaped(8, 16), Shaped(4, 16, 12), Shaped(4)
    found = [(results[0], inputs[:2]) for results, inputs in grouped_rules(a, b, ends, "offs")]
    assert not [inputs for _, inputs in found if Shard(0) in inputs]
    assert (Shard(1), [Replicate(), Shard(2)]) in found and (Partial(), [Shard(1), Shard(1)]) in found
    masked = [(results[0], inputs[:3]) for results, inputs in grouped_rules(b, Shaped(4, 12, 16), ends, "counts")]
    assert (Shard(0), [Shard(0), Shard(0), Shard(0)]) in masked
    assert not [inputs for _, inputs in masked if inputs[0] == Shard(1)]


def test_a_gate_is_not_parted_from_its_pair() -> None:
    assert not [rule for rule in gated_rules(Shaped(8, 16), Shaped(16, 12), "swiglu") if rule[0] == [Shard(1)]]
    scaled = Shaped(8, 256), Shaped(8, 1), Shaped(256, 12), Shaped(1, 12), None
    for activation, parted in (("swiglu", False), ("silu", True), (None, True)):
        rules = scaled_rules(*scaled, activation, None)
        assert ([Shard(1)] in [rule[0] for rule in rules]) == parted
        assert [Shard(0)] in [rule[0] for rule in rules]


@pytest.fixture
def two_ranks() -> Any:
    """A mesh of this process and one that is not there: placements are those of two, values are not."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    register_shardings()
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def test_a_dtensor_before_its_rules_are_registered_names_the_call(two_ranks: Any, monkeypatch: Any) -> None:
    a, b = (first_of(torch.ones(8, 8).bfloat16(), two_ranks, Replicate()) for _ in range(2))
    assert "DTensor" not in operand_checks.WITHOUT_RULES
    monkeypatch.setitem(operand_checks.WITHOUT_RULES, "DTensor", "of which `register_shardings` has removed this")
    for product in (matmul, lambda a, b: matmul(a, b, activation="relu"), lambda a, b: scaled_matmul(a, b, a, b)):
        with pytest.raises(OperandError, match="a is a DTensor, of which `register_shardings` has removed this"):
            product(a, b)


def first_of(whole: Any, mesh: Any, placement: Any) -> Any:
    """The DTensor of which this process has the first part."""
    part = whole.chunk(2, placement.dim)[0] if isinstance(placement, Shard) else whole
    sizes = {"shape": whole.shape, "stride": whole.stride()}
    return DTensor.from_local(part.contiguous(), mesh, [placement], run_check=False, **sizes)


def test_kept_choices_differ_by_an_activation(two_ranks: Any) -> None:
    """DTensor keeps a rule's choice by its arguments. The key of a text is set in a private place of torch's."""
    (a, of_a), (b, of_b) = quantize(torch.ones(8, 128).bfloat16()), quantize(torch.ones(256, 128).bfloat16())
    given = [first_of(x, two_ranks, Replicate()) for x in (a, of_a)]
    given += [first_of(b.mT, two_ranks, Shard(1)), first_of(of_b.mT, two_ranks, Shard(1))]
    for activation, found in (("silu", Shard(1)), ("swiglu", Replicate()), ("silu", Shard(1))):
        assert scaled_matmul(*given, activation=activation).placements == (found,), activation


def test_the_gradient_of_a_batch_cut_unevenly_is_summed(two_ranks: Any) -> None:
    a, b = torch.ones(3, 5, 8, dtype=torch.bfloat16), torch.ones(8, 4, dtype=torch.bfloat16)
    left, right = (first_of(*x).requires_grad_() for x in ((a, two_ranks, Shard(0)), (b, two_ranks, Replicate())))
    matmul(left, right).sum().backward()
    assert left.grad.shape == a.shape and right.grad.shape == b.shape


class Adapter(torch.nn.Module):
    """A layer in another's place, as large as this process's part of its weight."""

    def __init__(self, base_layer: Any):
        super().__init__()
        self.base_layer = base_layer
        self.out_features, self.in_features = base_layer.weight.to_local().shape


def test_an_adapter_of_a_sharded_weight_takes_no_activated_layer_s_place(two_ranks: Any) -> None:
    for activation in (None, "gelu"):
        model = torch.nn.Sequential(DenseLinear(8, 4, activation=activation))
        parallelize_module(model, two_ranks, {"0": ColwiseParallel()})
        if activation is None:
            model[0] = Adapter(model[0])
            assert model[0].out_features == 2
            continue
        with pytest.raises(
            OperandError, match="0 is a DenseLinear with activation='gelu', and a module of Adapter with out"
        ):
            model[0] = Adapter(model[0])


def test_products_of_shards_refuse_dtensors_and_meshes(two_ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.ones(8, 64).bfloat16(), torch.ones(64, 8).bfloat16()
    sharded = distribute_tensor(x, two_ranks, [Replicate()])
    with pytest.raises(OperandError, match=r"a_shard is a DTensor \[Replicate\(\)\]: .* its own part, x.to_local"):
        all_gather_matmul(sharded, w)
    with pytest.raises(OperandError, match=r"b is a DTensor"):
        matmul_reduce_scatter(x, distribute_tensor(w, two_ranks, [Replicate()]))
    with pytest.raises(OperandError, match=r"group is DeviceMesh: .*mesh.get_group\(\)"):
        all_gather_matmul(x, w, two_ranks)
    assert all_gather_matmul(x.to("meta"), w.to("meta")).shape == (16, 8)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda _: "cuda:nccl")
    with pytest.raises(OperandError, match="tensors are on the CPU, and the group's backend is cuda:nccl: gloo"):
        all_gather_matmul(x, w)
