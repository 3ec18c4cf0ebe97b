"""NVIDIA's own kernels in the emulator: right, and without a finding, but for those that are real and named here.

The examples are downloaded once (`official/fetch.py`) and compiled without a GPU; PTX and host function are cached, so
that a second run imports no cutlass. A few run always, the whole set is marked slow.
"""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from layoutgemm.emulator.machine import Policy
from layoutgemm.emulator.mutate import sample, survey, unreached, verdict

from .official.compiled import missing
from .official.examples import EXAMPLES, Example, Shape
from .official.mutants import mutants_of
from .official.running import ORDERS, case, cases, kernel

FEW = (
    "ampere_tensorop_f16_mnn", "hopper_dense_f16_2x1", "hopper_dense_e4m3", "hopper_persistent_f16_2x1",
    "blackwell_dense_1sm", "blackwell_persistent_2sm", "blackwell_nvf4_2sm", "blackwell_mxf8",
    "blackwell_dynamic_2sm", "geforce_nvf4_pingpong",
)  # fmt: skip

# What is wrong in an example by PTX's word, and is reported at most of its shapes.
REAL = {
    # One barrier for each sub-tile of the epilogue where Hopper's example has two: the next tile's stmatrix is not
    # ordered after the bulk store that reads the buffer, unless the pipeline of a long k does it by chance.
    "geforce_f16": "race: stmatrix",
    "geforce_bf16_mnn": "race: stmatrix",
}
# Code that no shape reaches: the look at a barrier after the last k tile, which the compiler could not prove dead.
DEAD = {
    "blackwell_dense_1sm": [],
    "blackwell_persistent_1sm": ["shl.b32", "add.s32", "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"],
}


def example_or_skip(name: str) -> Example:
    example = EXAMPLES[name]
    if (reason := missing(example)) is not None:
        pytest.skip(reason)
    if not any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang")):
        pytest.skip("no C compiler links the compiled host function: install gcc or clang")
    return example


def run(example: Example, shape: Shape, policy: Policy | None = None) -> None:
    wrong, _ = verdict(kernel(example), case(example, shape, policy))
    real = REAL.get(example.name)
    assert not wrong or (real is not None and wrong.startswith(real)), wrong


@pytest.mark.parametrize("name", FEW)
def test_an_example_is_exact_and_clean(name: str) -> None:
    """The smallest shape, and a ragged one or the one with most to wait for, in turn in different orders."""
    example = example_or_skip(name)
    for shape, policy in zip((example.shapes[0], example.shapes[-2]), ORDERS, strict=False):
        run(example, shape, policy)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].shapes])
def test_every_example_is_exact_and_clean_at_all_shapes(name: str) -> None:
    example = example_or_skip(name)
    for number, shape in enumerate(example.shapes):
        run(example, shape, ORDERS[number % len(ORDERS)])


def test_the_race_of_the_geforce_example() -> None:
    """Two tiles for each block and k of two tiles: the second tile's stmatrix meets the first tile's pending store."""
    example = example_or_skip("geforce_f16")
    wrong, _ = verdict(kernel(example), case(example, (256, 128, 128, 1)))
    assert wrong.startswith("race: stmatrix") and "cp.async.bulk.tensor.3d.global.shared::cta" in wrong
    assert verdict(kernel(example), case(example, (256, 128, 256, 1)))[0] == ""  # a longer k orders them by chance
    assert verdict(kernel(example), case(example, (128, 128, 128, 1)))[0] == ""  # one tile


def test_the_missing_fence_of_the_fp8_example() -> None:
    """The promotion reads the accumulators after wgmma.wait_group, and the next wgmma.mma_async writes them without the
    wgmma.fence that PTX asks for after any access of a thread. Practice differs, so that a switch asks for it.
    """
    example, strict = example_or_skip("hopper_fp8_2xacc"), Policy(register_strict=True)
    wrong, _ = verdict(kernel(example), case(example, (128, 128, 256, 1), strict))
    assert wrong.startswith("protocol: no wgmma.fence between the last access")
    assert verdict(kernel(example), case(example, (128, 128, 256, 1)))[0] == ""
    assert verdict(kernel(example), case(example, (128, 128, 128, 1), strict))[0] == ""  # one k tile: nothing follows


@pytest.mark.parametrize("name", DEAD)
def test_the_shapes_reach_every_instruction(name: str) -> None:
    example = example_or_skip(name)
    left = unreached(kernel(example), cases(example, (Policy(), Policy(waits="reluctant"))))
    assert [ins.opcode for ins in left] == DEAD[name]


def test_a_sample_of_mutants_is_caught() -> None:
    """Spread over all kinds, those left out that are known to change nothing."""
    example = example_or_skip("blackwell_dense_1sm")
    chosen = sample([m for m in mutants_of(example) if not equivalent(m.kind, m.change, m.place)], 24)
    assert len(Counter(m.kind for m in chosen)) >= 8
    assert survey(kernel(example), cases(example), chosen).survivors == []


def equivalent(kind: str, change: str, place: str) -> bool:
    """Mutants that change nothing here.

    The leading offset, which swizzled K-major operands do not use; waits of the epilogue for buffers that are used
    once; barriers and fences that are there twice, or after others; looks at a barrier whose answer only saves a wait;
    a producer that waits for the next stage's release, which comes after its own.
    """
    return (
        (kind == "descriptor" and "leading offset" in change)
        or (kind == "barrier" and "try_wait" in place)
        or "wait_group.read" in place
        or (kind == "deletion" and ("try_wait" in place or "bar.sync" in place or "fence" in place))
        or (kind in ("parity", "barrier") and "try_wait.parity.acquire" in place)
        or "relinquish" in place
    )
