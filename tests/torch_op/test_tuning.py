"""Candidates, what is kept of a measurement, and that matmul takes it; the measuring itself is a GPU's."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm import QuantizedFormat, explain_matmul, matmul
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels.compile import cache as object_cache
from layoutgemm.kernels.compile import compiler as compiling
from layoutgemm.kernels.compile import worker as compile_apart
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Epilogue, Residual, RowReduce, Scale
from layoutgemm.kernels.operands.prologue import Prologue
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Config
from layoutgemm.kernels.sm90.quantized.choose import packed_config, packed_parts
from layoutgemm.kernels.sm90.quantized.feature_parts import FeatureParts, PartsChoice
from layoutgemm.kernels.streamed.choose import StreamedChoice
from layoutgemm.kernels.streamed.plan import StreamedConfig
from layoutgemm.torch_op import choose as choosing
from layoutgemm.torch_op import tuned_store as tuned
from layoutgemm.torch_op import tuning
from layoutgemm.torch_op.explanation import Explanation
from layoutgemm.torch_op.problem import Problem, StridedOperand
from layoutgemm.torch_op.solver import solve
from layoutgemm.torch_op.tunable.call import TunableCall
from layoutgemm.torch_op.tunable.epilogue import TunableEpilogue
from layoutgemm.torch_op.tunable.packed import TunablePacked
from layoutgemm.torch_op.tunable.prologue import TunablePrologue
from layoutgemm.torch_op.tunable.scaled_grouped import tunable
from layoutgemm.torch_op.tuning import candidates, name_of, tune, tune_call
from tests.torch_op.host_launches import bare_launches

GPU = "NVIDIA H200"
CHOICE = Sm90Choice(Sm90Config((128, 64), consumers=1, loader="warp", cluster=(1, 2)))
KEY = tuned.key_of((512, 512, 512, 1), ("bf16",) * 3, ("row", "row", "row"))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    return tmp_path / "layoutgemm-cache"


@pytest.fixture
def chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of one problem are made once, however many files leave the choice to them."""
    monkeypatch.setattr(choosing, "choose", functools.cache(choose))


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (16, 4096, 4096), (512, 1000, 64)])
def test_candidates(sizes: tuple[int, int, int]) -> None:
    found = list(candidates(*sizes))
    assert found[0] == choose(*sizes)[0] and len(found) == len(set(found)) >= 8
    assert len({name_of(choice) for choice in found}) == len(found)
    derived = 0
    for choice in found:
        try:
            choice.plan(*sizes, b="bf16:col")
            derived += 1
        except LayoutError:
            pass
    assert derived >= 0.8 * len(found)


def problem(gpu: str = GPU, **others: Any) -> Problem:
    square = StridedOperand((512, 512), (512, 1), "bf16")
    return Problem(square, square, square, ClusterOccupancy(), gpu, **others)


def test_matmul_takes_what_was_measured(own_cache: Path) -> None:
    assert solve(problem()).kernel.choice != CHOICE
    path = tuned.store(GPU, KEY, CHOICE, {"us": 1.5})
    assert path is not None and path.parent == own_cache / "tuned" and path.stat().st_mode & 0o077 == 0
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) == CHOICE
    found = solve(problem())
    assert found.kernel.choice == CHOICE and found.why == "measured by layoutgemm.tune"
    assert solve(problem("NVIDIA H100")).kernel.choice != CHOICE  # another GPU's
    given = Sm90Choice(Sm90Config((64, 64), consumers=1))
    assert solve(problem(config=given)).kernel.choice == given  # the caller's word comes first
    other = Sm90Choice(Sm90Config((256, 128)), swapped=True)
    tuned.store(GPU, KEY.replace("512", "640"), other, {})
    assert solve(problem()).kernel.choice == CHOICE  # kept beside the other


def test_a_result_that_does_not_fit_is_passed_over() -> None:
    tuned.store(GPU, KEY, Sm90Choice(Sm90Config((64, 64), consumers=1, stages=200)), {})
    assert solve(problem()).kernel.choice != CHOICE


BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
ROWS_OF_A = {dtype: torch.zeros(256, 512, dtype=dtype) for dtype in (BF16, FP8)}
B = {dtype: torch.zeros(384, 512, dtype=dtype).T for dtype in (BF16, FP8)}
B_OF_GROUPS = {dtype: torch.zeros(2, 384, 512, dtype=dtype).mT for dtype in (BF16, FP8)}
OF_ROWS: dict[str, Any] = {"scale_a": torch.ones(256, 1), "scale_b": torch.ones(1, 384)}
OF_BLOCKS: dict[str, Any] = {"scale_a": torch.ones(256, 4), "scale_b": torch.ones(3, 4)}
SWIGLU: dict[str, Any] = {"activation": "swiglu"}
GROUPS: dict[str, Any] = {"offsets": torch.tensor([0, 100, 256])}
OTHER_PRODUCTS: dict[str, Callable[[], Explanation]] = {
    "scaled": lambda: explain_matmul(ROWS_OF_A[FP8], B[FP8], **OF_BLOCKS),
    "scaled, gated": lambda: explain_matmul(ROWS_OF_A[FP8], B[FP8], **OF_BLOCKS, **SWIGLU),
    "rows, gated": lambda: explain_matmul(ROWS_OF_A[FP8], B[FP8], **OF_ROWS, **SWIGLU),
    "scaled, rows by index": lambda: explain_matmul(ROWS_OF_A[FP8], B[FP8], **OF_BLOCKS, rows=torch.arange(256)),
    "groups": lambda: explain_matmul(ROWS_OF_A[BF16], B_OF_GROUPS[BF16], **GROUPS),
    "groups, gated": lambda: explain_matmul(ROWS_OF_A[BF16], B_OF_GROUPS[BF16], **GROUPS, **SWIGLU),
    "masked groups": lambda: explain_matmul(
        torch.zeros(2, 128, 512, dtype=BF16), B_OF_GROUPS[BF16], counts=torch.tensor([3, 5])
    ),
    "groups along K": lambda: explain_matmul(
        torch.zeros(512, 256, dtype=BF16).T, torch.zeros(512, 384, dtype=BF16), offsets=torch.tensor([0, 256, 512])
    ),
}


@pytest.mark.parametrize("product", OTHER_PRODUCTS)
def test_a_result_of_another_product_that_does_not_fit_is_passed_over(
    product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another build of this version may hold configurations that this one refuses."""
    fits, explain = Sm90Config((128, 128)), OTHER_PRODUCTS[product]
    kept = Sm90Choice(fits), Sm90Choice(replace(fits, stages=40)), Sm90Choice(replace(fits, tile_k=3))
    for choice, is_taken in zip((*kept, Sm90Choice(fits, swapped=True)), (True, False, False, False)):
        monkeypatch.setattr(tuned, "lookup", lambda *_, choice=choice: choice)
        assert (tuned.MEASURED in explain().why) == is_taken


DEEP = b"[" * 100_000 + b"]" * 100_000
DAMAGED = [
    b"", b"[1, 2]", b"3", b"null", b"{\"x\":", b"{}", b"\xff\xfe", b'{"KEY": {"config": 3}}', b'{"KEY": 3}', DEEP,
    b'{"KEY": ' + DEEP + b"}", b'{"KEY": {"swapped": false, "config": {"tile": ' + b"[" * 900 + b"]" * 900 + b"}}}",
    b'{"KEY": {"swapped": "no", "config": {"tile": [128, 64]}}}', b'{"KEY": {"swapped": false, "config": []}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:40]))
def test_a_damaged_file_is_none(content: bytes) -> None:
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    path.write_bytes(content.replace(b"KEY", KEY.encode()))
    os.utime(path, (1, 1))
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) is None
    tuned.store(GPU, KEY, CHOICE, {})
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) == CHOICE


VALUES = [None, True, -1, 0, 2, 3, 1e9, 1 << 70, "x", [], {}, [1], [[0, [1]], 2], [[[0, 0], 1]], [0, 0], ["a", "b"]]


@pytest.mark.usefixtures("chosen_once")
def test_whatever_a_tuned_file_holds_is_used_or_absent() -> None:
    """One value of an entry is exchanged for each of many: the entry is absent, or its plan is derived or refused."""
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    whole = json.loads(path.read_text())
    places = [(), ("swapped",), ("config",), *[("config", name) for name in whole[KEY]["config"]], ("config", "other")]
    used, described = 0, set()
    for place in places:
        for value in VALUES:
            changed = copy.deepcopy(whole)
            holder: Any = changed
            for name in (KEY, *place)[:-1]:
                holder = holder[name]
            holder[(KEY, *place)[-1]] = value
            path.write_text(json.dumps(changed))
            choice = tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3)
            try:
                found = solve(problem())
                used += found.kernel.choice == choice
                if found.kernel not in described:  # most values leave the entry unused
                    compiling.kernel_facts(compile_apart.plan_of(found.kernel))
                    described.add(found.kernel)
            except LayoutError as error:
                raise AssertionError((place, value)) from error
    assert used > 10


@pytest.mark.usefixtures("chosen_once")
def test_every_bit_of_a_tuned_file() -> None:
    path = tuned.store(GPU, KEY, CHOICE, {"us": 1.5})
    assert path is not None
    whole = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])] or b" ")
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        solve(problem())


def test_a_result_survives_a_damaged_neighbour() -> None:
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    entry = json.loads(path.read_text())[KEY]
    deep: Any = 0
    for _ in range(500):
        deep = [deep]
    path.write_text(json.dumps({KEY: entry, "a": 3, "b": {**entry, "more": deep}, "c": {"config": deep}}))
    tuned.store(GPU, "d", CHOICE, {})
    assert json.loads(path.read_text()).keys() == {KEY, "b", "d"}


_STORES = """
import os, sys, threading
from layoutgemm.torch_op import tuned_store as tuned
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.config import Sm90Config
def store(first):
    for i in range(first, first + 4):
        choice = Sm90Choice(Sm90Config((64, 64), consumers=1))
        assert tuned.store("NVIDIA H200", f"{process} {i}", choice, {"us": i}) is not None
children = []
for process in range(4):  # forked: each begins at once, and the package is imported once
    children.append(os.fork())
    if not children[-1]:
        break
else:
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
threads = [threading.Thread(target=store, args=(first,)) for first in (0, 4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.skipif(object_cache.fcntl is None, reason="file locks are POSIX's: run it on Linux or macOS")
def test_results_of_processes_and_threads_at_once_are_all_kept() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", _STORES], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    path = tuned.file_of(GPU)
    assert path is not None
    assert json.loads(path.read_text()).keys() == {f"{i} {j}" for i in range(4) for j in range(8)}
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.skipif(object_cache.fcntl is None, reason="file locks are POSIX's: run it on Linux or macOS")
def test_a_killed_holder_leaves_no_lock_and_a_live_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    path = tuned.file_of(GPU)
    assert path is not None
    program = (
        "import sys; from pathlib import Path; from layoutgemm.kernels import object_cache\n"
        "with object_cache.locked(Path(sys.argv[1])) as alone: print(alone, flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "True\n"
    monkeypatch.setattr(object_cache, "_LOCK_SECONDS", 0.05)
    with pytest.warns(RuntimeWarning, match=rf"the result for {KEY} is not kept: {path} is locked"):
        assert tuned.store(GPU, KEY, CHOICE, {}) is None and not path.exists()
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert tuned.store(GPU, KEY, CHOICE, {}) == path


@pytest.mark.skipif(object_cache.fcntl is None, reason="file locks are POSIX's: run it on Linux or macOS")
def test_a_child_that_is_forked_in_a_store_does_not_hold_the_lock_on() -> None:
    """The child has the open file, and with it the lock, until it ends: such as a process of a pool."""
    program = """
import os, sys
from layoutgemm.kernels.compile import cache as object_cache
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.config import Sm90Config
from layoutgemm.torch_op import tuned_store as tuned
place, children = object_cache.place, []
def fork(path, write):
    read, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(read, 1)  # until the parent ends
        os._exit(0)
    children.append((child, end))
    return place(path, write)
object_cache.place = fork
object_cache._LOCK_SECONDS = 0.0
choice = Sm90Choice(Sm90Config((64, 64), consumers=1))
print([tuned.store("NVIDIA H200", key, choice, {}) is not None for key in "abc"])
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[True, True, True]\n", done.stderr
    path = tuned.file_of(GPU)
    assert path is not None and json.loads(path.read_text()).keys() == {"a", "b", "c"}


@pytest.mark.parametrize("what", ["locked", "place"])
def test_a_result_that_cannot_be_kept_is_named(what: str, own_cache: Path) -> None:
    if what == "locked":
        own_cache.parent.mkdir(exist_ok=True)
        own_cache.write_text("mine")  # where the cache's folder would be
    else:
        path = tuned.file_of(GPU)
        assert path is not None
        path.mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="512x512x512x1 bf16:row bf16:row bf16:row is not kept"):
        assert tuned.store(GPU, KEY, CHOICE, {}) is None


@pytest.mark.parametrize("swapped", [False, True])
def test_a_result_that_loads_too_few_rows_is_passed_over(swapped: bool) -> None:
    """A kernel that would leave rows out is refused, from file and caller."""
    few = Sm90Choice(Sm90Config((64, 64), consumers=1, loaded_a_rows=8), swapped)
    col = StridedOperand((512, 512), (1, 512), "bf16")
    row = StridedOperand((512, 512), (512, 1), "bf16")
    product = Problem(row, col, row, ClusterOccupancy(), GPU)
    tuned.store(GPU, tuned.key_of((512, 512, 512, 1), ("bf16",) * 3, ("row", "col", "row")), few, {})
    assert solve(product).kernel.choice != few
    with pytest.raises(OperandError, match="rows = 8 of A's tile are loaded, and the product has 512"):
        solve(replace(product, config=few))


def test_a_reader_sees_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of one size, within one tick of a file system's clock: the second is another file."""
    choices = [Sm90Choice(Sm90Config((64, n), consumers=1)) for n in (64, 32)]
    for choice in choices * 3:
        path = tuned.store(GPU, KEY, choice, {})
        assert path is not None
        os.utime(path, (1, 1))
        assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) == choice


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes of files are POSIX's: run it on Linux or macOS")
def test_what_others_could_have_written_is_none() -> None:
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    path.chmod(0o666)
    os.utime(path, (1, 1))
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) is None


def test_refusals() -> None:
    for bad in ({"m": 0}, {"k": 1 << 31}, {"most": 0}, {"rounds": True}, {"jobs": 0}, {"budget": math.inf},
                {"budget": math.nan}, {"store": "no"}, {"progress": 3}, {"groups": 0}):  # fmt: skip
        with pytest.raises(OperandError, match=f"{next(iter(bad))} "):
            tune(**{"m": 64, "n": 64, "k": 64, **bad})  # type: ignore[arg-type]
        if bad.keys() & {"most", "rounds", "budget", "store", "progress"}:
            with pytest.raises(OperandError, match=f"{next(iter(bad))} "):
                tune_call(matmul, *[torch.zeros(64, 64).bfloat16()] * 2, **bad)  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="'bf16' or 'f16'"):
        tune(64, 64, 64, dtype="f32")
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="torch finds none"):
            tune(64, 64, 64)


# Each order in a fork of one process: importing torch takes longer than all else.
ORDERS = """
import os, torch
for first in ("import layoutgemm.tune", "from layoutgemm import tune; assert callable(tune)", ""):
    if os.fork():
        os.wait()
        continue
    exec(first)
    import layoutgemm
    from layoutgemm.tune import Tuning
    assert callable(layoutgemm.tune) and Tuning.__name__ == "Tuning"
    try:
        layoutgemm.tune(0, 1, 1)
    except layoutgemm.errors.OperandError as error:
        print(error, flush=True)
    break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's: run it on Linux or macOS")
def test_tune_is_called_whatever_was_imported_first() -> None:
    done = subprocess.run([sys.executable, "-c", ORDERS], capture_output=True, text=True, timeout=60)
    said = done.stdout.splitlines()
    assert len(said) == 3 and all(line.startswith("m must be at least 1, not 0") for line in said), done.stderr


# ------------------------------------------------------------------------------------------------- scaled and grouped


SCALED = tunable(512, 256, 512, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", None)
GROUPED = tunable(512, 256, 512, "bf16", "k", "k", None, None, 4)


GATED = [
    tunable(512, 256, 512, "bf16", "k", "k", None, None, None, "swiglu"),
    tunable(512, 256, 512, "bf16", "k", "k", None, None, 4, "geglu"),
    tunable(512, 256, 512, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", None, "swiglu"),
    tunable(512, 256, 512, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", 4, "swiglu"),
]
ROWS_OF = ("e4m3", "k", "k", "RowWise", "RowWise")
FORMS = {
    "rows": tunable(128, 128, 512, *ROWS_OF, None),
    "rows, exact": tunable(128, 128, 512, *ROWS_OF, None, use_fast_accum=False),
    "tensors": tunable(128, 128, 512, "e4m3", "k", "k", "TensorWise", "TensorWise", None),
    "one scale, few rows": tunable(16, 128, 512, "e4m3", "k", "k", "TensorWise", None, None),
    "rows, gated": tunable(128, 128, 512, *ROWS_OF, None, "swiglu"),
    "rows, gated, exact": tunable(128, 128, 512, *ROWS_OF, None, "swiglu", use_fast_accum=False),
    "groups, rows": tunable(128, 128, 512, *ROWS_OF, 4),
    "groups, rows, exact": tunable(128, 128, 512, *ROWS_OF, 4, use_fast_accum=False),
    "masked": tunable(128, 128, 512, "bf16", "k", "k", None, None, 4, form="masked"),
    "masked, scaled": tunable(128, 128, 512, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", 4, form="masked"),
    "masked, gated": tunable(128, 128, 512, "bf16", "k", "k", None, None, 4, "swiglu", form="masked"),
    "along K": tunable(128, 128, 512, "bf16", "mn", "mn", None, None, 4, form="K"),
    "along K, scaled": tunable(128, 128, 512, "e4m3", "k", "k", "BlockWise1x128", "BlockWise1x128", 4, form="K"),
    "along K, rows": tunable(128, 128, 512, *ROWS_OF, 4, form="K"),
}
GATED_IDS = ["gated", "gated groups", "gated, scaled", "gated groups, scaled"]


@pytest.fixture
def an_h200(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The current GPU, for candidates."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    return torch


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize(
    "variant", [SCALED, GROUPED, *GATED, *FORMS.values()], ids=["scaled", "grouped", *GATED_IDS, *FORMS]
)
def test_variants_have_candidates_that_differ(variant: Any) -> None:
    found = list(variant.candidates())
    assert len(found) == len(set(found)) > 20
    derived = 0
    for choice in found:
        try:
            derived += variant.plan(choice).k == 512
        except LayoutError:
            pass
    assert derived > 8 and variant.plan(found[0]).tile[:2] == found[0].config.tile


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are asked for on a GPU are made here."""
    for name in ("randn", "rand", "tensor", "empty"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *x, made=made, device=None, **more: made(*x, **more))
    torch.manual_seed(0)


@pytest.mark.usefixtures("on_cpu", "an_h200")
def test_a_product_of_few_rows_is_measured_with_its_operands_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = FORMS["one scale, few rows"]
    with bare_launches(monkeypatch) as noted:
        on = variant.operands()
        found, _ = tuning._derivable(variant.candidates(), variant.plan)
        for choice in [choice for choice in found if choice.swapped][:3]:
            variant.call(on, choice)
        assert len(noted.arguments) == 3
        assert all(x[:3] == [on.b.data_ptr(), on.a.data_ptr(), on.out.data_ptr()] for x in noted.arguments)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_called_judged_and_taken(name: str) -> None:
    """The product is right, other operands' is wrong, and a measured configuration is taken."""
    variant = FORMS[name]
    on = variant.operands()
    variant.call(on, None)
    assert variant.off(on) <= 1
    if on.scales:
        variant.call(on._replace(scales={key: 2 * x for key, x in on.scales.items()}), None)
    elif variant.form == "K":
        variant.call(on._replace(offsets=torch.where(on.offsets < 512, on.offsets // 2, on.offsets)), None)
    else:
        variant.call(on._replace(b=on.b.roll(1, 0)), None)
    assert variant.off(on) > 1
    on.out[-1].fill_(float("nan"))
    assert not variant.off(on) <= 1
    given = dict(on.scales)
    if on.offsets is not None:
        given["counts" if variant.form == "masked" else "offsets"] = on.offsets
    if variant.recipes is not None:
        given |= {"recipe_a": variant.recipes.a, "recipe_b": variant.recipes.b or None}
        given |= {} if variant.fast else {"use_fast_accum": False}

    def explained() -> str:
        found = explain_matmul(on.a, on.b, activation=variant.activation, **given)
        return found.why if "cluster 2x1" in found.kernel else ""

    config = Sm90Config((64, 128), consumers=1, loader="warp", cluster=(2, 1))
    taken = {tuned.key_of(x.sizes, *x.name): key for key, x in FORMS.items()}
    for key, other in FORMS.items():
        if other.sizes == variant.sizes and other.name != variant.name:
            assert tuned.store(GPU, tuned.key_of(other.sizes, *other.name), Sm90Choice(config), {}) is not None
            assert "measured" not in explained(), key
    own = tuned.key_of(variant.sizes, *variant.name)
    assert taken[own] == name or name in ("rows", "tensors")  # one kernel with scales of rows and of tensors
    assert tuned.store(GPU, own, Sm90Choice(config), {}) is not None
    assert explained().endswith("measured by layoutgemm.tune")


def test_variants_take_what_was_measured() -> None:
    config = Sm90Config((64, 64), consumers=1, loader="warp", cluster=(2, 1))
    a, b = torch.empty(512, 512, dtype=torch.float8_e4m3fn), torch.empty(256, 512, dtype=torch.float8_e4m3fn).mT
    scales = {"scale_a": torch.ones(512, 4), "scale_b": torch.ones(2, 4)}
    x, y = torch.empty(512, 512, dtype=torch.bfloat16), torch.empty(4, 256, 512, dtype=torch.bfloat16).mT
    offsets = torch.tensor([0, 1, 2, 3, 512])
    for variant, explain in (
        (SCALED, lambda: explain_matmul(a, b, **scales)), (GROUPED, lambda: explain_matmul(x, y, offsets=offsets)),
    ):  # fmt: skip
        assert "measured" not in explain().why and "cluster 2x1" not in explain().kernel
        assert tuned.store(GPU, tuned.key_of(variant.sizes, *variant.name), Sm90Choice(config), {}) is not None
        assert explain().why.endswith("measured by layoutgemm.tune") and "cluster 2x1" in explain().kernel


@pytest.mark.parametrize("variant", GATED, ids=GATED_IDS)
def test_gated_products_take_what_was_measured(variant: Any) -> None:
    """And not what was measured of the product without the gate, or with another."""
    config = Sm90Config((64, 128), consumers=1, loader="warp", cluster=(2, 1))
    kind = torch.bfloat16 if variant.dtype == "bf16" else torch.float8_e4m3fn
    front = () if variant.experts is None else (4,)
    a, b = torch.empty(512, 512, dtype=kind), torch.empty(*front, 512, 512, dtype=kind).mT
    given = {} if variant.recipes is None else {"scale_a": torch.ones(512, 4), "scale_b": torch.ones(*front, 4, 4)}
    given |= {"offsets": torch.tensor([0, 1, 2, 3, 512])} if front else {}

    def explained() -> str:
        found = explain_matmul(a, b, activation=variant.activation, **given)
        assert "gated by" in found.kernel and "torch gates" not in found.kernel
        return found.why if "cluster 2x1" in found.kernel else ""

    plain, other = replace(variant, activation=None), replace(variant, activation="geglu")
    other = other if variant.activation == "swiglu" else replace(variant, activation="swiglu")
    for wrong in (plain, other):
        assert tuned.store(GPU, tuned.key_of(wrong.sizes, *wrong.name), Sm90Choice(config), {}) is not None
        assert "measured" not in explained()
    assert tuned.store(GPU, tuned.key_of(variant.sizes, *variant.name), Sm90Choice(config), {}) is not None
    assert explained().endswith("measured by layoutgemm.tune")


def test_tune_measures_a_gated_product_and_keeps_it(an_h200: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With times of the test's own: the last candidate is the fastest."""
    seen: list[Any] = []

    def measured(problem: Any, contest: Any, choices: Any, *others: Any) -> Any:
        seen.extend(choices)
        return {choice: 1.0 / (1 + place) for place, choice in enumerate(choices)}, [], float("nan")

    monkeypatch.setattr(tuning, "_tunable_gpu", lambda *device: GPU)
    monkeypatch.setattr(tuning, "_measure", measured)
    found = tune(512, 256, 512, activation="swiglu", most=6, progress=lambda text: None)
    assert found.choice == seen[-1] and len(seen) == 6 and found.kept is not None
    a, b = an_h200.empty(512, 512).bfloat16(), an_h200.empty(512, 512).bfloat16().T
    assert explain_matmul(a, b, activation="swiglu").why == "measured by layoutgemm.tune"
    assert explain_matmul(a, b[:, :256]).why != "measured by layoutgemm.tune"


def test_few_rows_of_a_gated_product_have_narrow_tiles(an_h200: Any) -> None:
    few = tunable(16, 14336, 4096, "bf16", "k", "k", None, None, None, "swiglu")
    assert {choice.config.tile for choice in list(few.candidates())[:12]} >= {(64, 32), (64, 64), (64, 224)}


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("variant", GATED, ids=GATED_IDS)
def test_a_gated_product_is_called_and_judged(variant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU: the call that is timed gives the product, and that with gate and up exchanged is wrong."""
    for name in ("randn", "rand", "tensor", "empty"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *x, made=made, device=None, **more: made(*x, **more))
    torch.manual_seed(0)
    on = replace(variant, m=64).operands()
    replace(variant, m=64).call(on, None)
    assert on.out.shape == (64, 256) and on.b.shape[-1] == 512 and variant.by_torch() is None
    off = replace(variant, m=64).off
    assert off(on) <= 1
    turned = {"b": on.b.roll(256, -1), "scales": {name: x.roll(2, -2) for name, x in on.scales.items()}}
    turned["scales"] |= {"scale_a": on.scales["scale_a"]} if on.scales else {}
    replace(variant, m=64).call(on._replace(**turned), None)
    assert off(on) > 1


@pytest.mark.parametrize(
    "given, text",
    [
        ({"activation": "relu"}, "activation 'relu': gates are tuned, 'swiglu', 'geglu'"),
        ({"activation": "swiglu", "b_major": "mn"}, "a gated product's kernel reads a K-major B"),
        ({"activation": "swiglu", "dtype": "f32"}, "dtype 'f32'"),
        ({"groups": 0}, "groups must be at least 1, not 0"), ({"groups": True}, "groups must be an integer, not True"),
        ({"recipe_b": "BlockWise128x128"}, "recipe_b without a recipe_a"),
        ({"recipe_a": "RowWise", "recipe_b": "BlockWise1x128", "dtype": "e4m3"}, "recipe_a RowWise and recipe_b Block"),
        ({"recipe_a": "BlockWise1x128", "dtype": "e4m3", "use_fast_accum": False}, "others have one way to add"),
        ({"use_fast_accum": False}, "use_fast_accum=False: of scales of RowWise or TensorWise"),
        ({"use_fast_accum": 1}, "use_fast_accum = 1: True or False"),
        ({"form": "K"}, "form 'K' without groups"), ({"form": "columns", "groups": 2}, "form 'columns': groups are of"),
        ({"form": "K", "groups": 2}, "a_major 'k', b_major 'k': of groups along K both are 'mn'"),
        ({"form": "K", "groups": 2, "activation": "swiglu"}, "groups along K take no gate"),
        ({"form": "K", "groups": 2, "dtype": "e4m3", "a_major": "mn", "b_major": "mn"}, "'k' for A, and of 8"),
        ({"recipe_a": "Rows"}, "recipe_a 'Rows': do you mean 'RowWise'"),
        ({"recipe_a": "BlockWise1x128"}, "dtype 'bf16': 'e4m3', 'e5m2'"),
        ({"recipe_a": "BlockWise128x128", "dtype": "e4m3", "groups": 2}, "groups end at any row"),
        ({"groups": 2, "a_major": "mn"}, "a_major 'mn', b_major 'k'"),
        ({"groups": 2, "dtype": "tf32"}, "dtype 'tf32'"),
    ],
)  # fmt: skip
def test_variants_that_mean_nothing_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OperandError, match=text):
        tune(64, 64, 256, **given)


def test_measuring_ranks_and_reports_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a device and times of the test's own."""
    fast, slow, wrong, refused = (Sm90Choice(Sm90Config((64, n), consumers=1)) for n in (64, 128, 192, 256))
    times = {"torch": 3.0, "0": 2.0, "1": 4.0}

    class Device:
        def record(self, launches: Any) -> Any:
            return launches

        def seconds(self, replay: Any) -> float:
            return 1e-3

    def call(on: Any, choice: Any) -> None:
        if choice == refused:
            raise PlanError("refused here")
        on[0].fill_(2.0 if choice == wrong else 1.0)

    monkeypatch.setattr(tuning, "CudaDevice", Device)
    monkeypatch.setattr(tuning, "burst", lambda device, replays, rounds, draw: {x: [times[x]] for x in replays})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)

    def off(on: Any, choice: Any) -> float:
        call(on, choice)
        return float((on[0] - 1).abs().max()) * 2

    contest = tuning._Contest(lambda: (torch.zeros(2),), call, None, off)
    problem, said = tuning.BenchProblem(4096, 4096, 4096), []
    found, failed, of_torch = tuning._measure(problem, contest, [fast, slow, wrong, refused], 4, 9, 1.0, said.append)
    repeats = max(1, problem.launches // problem.sets) * problem.sets
    assert found == {fast: 2.0 / repeats, slow: 4.0 / repeats} and of_torch != of_torch
    assert [(choice, text.partition(":")[0]) for choice, text in failed] == [
        (wrong, "wrong"),
        (refused, "refused here"),
    ]
    assert said == ["measuring 2 configurations, 9 rounds of 0.0 s"]  # torch has no such product
    contest = contest._replace(by_torch=lambda on: None)
    assert tuning._measure(problem, contest, [fast, slow], 1, 9, 1.0, said.append)[2] == 3.0 / repeats
    assert said[1] == "measuring 1 configurations and torch's, 9 rounds of 0.0 s"


# --------------------------------------------------------------------------------------------------------- prologues


SCALED_ROWS = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
WITH_PROLOGUE = TunablePrologue(512, 256, 512, "bf16", "k", "mn", SCALED_ROWS)


@pytest.mark.usefixtures("on_cpu", "an_h200")
def test_a_product_with_a_prologue_is_called_judged_and_taken() -> None:
    found, failed = tuning._derivable(WITH_PROLOGUE.candidates(), WITH_PROLOGUE.plan)
    assert len(found) == len(set(found)) > 20 and not failed
    on = WITH_PROLOGUE.operands()
    WITH_PROLOGUE.call(on, None)
    assert WITH_PROLOGUE.off(on) <= 1
    WITH_PROLOGUE.call(on._replace(given={**on.given, "w": on.given["w"].roll(1)}), None)
    assert WITH_PROLOGUE.off(on) > 1
    on.out[-1].fill_(float("nan"))
    assert not WITH_PROLOGUE.off(on) <= 1

    def explained(prologue: Prologue) -> str:
        told = explain_matmul(on.a, on.b, prologue=prologue, given=on.given)
        return told.why if "cluster 1x2" in told.kernel else ""

    assert not explained(SCALED_ROWS)
    config = Sm90Config((64, 128), consumers=1, loader="warp", cluster=(1, 2))
    assert tuned.store(GPU, tuned.key_of(WITH_PROLOGUE.sizes, *WITH_PROLOGUE.name), Sm90Choice(config), {}) is not None
    assert explained(SCALED_ROWS).endswith("measured by layoutgemm.tune")
    assert not explained(Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd / w, rstd="m", w="k:bf16"))
    large = Sm90Config((64, 64), consumers=1, stages=200)
    tuned.store(GPU, tuned.key_of(WITH_PROLOGUE.sizes, *WITH_PROLOGUE.name), Sm90Choice(large), {})
    assert "an estimate" in explain_matmul(on.a, on.b, prologue=SCALED_ROWS, given=on.given).why


def test_prologues_that_are_not_tuned() -> None:
    for more, message in (
        ({"prologue": lambda x: x}, "prologue is a function"),
        ({"prologue": SCALED_ROWS, "groups": 4}, "groups and prologue"),
        ({"prologue": SCALED_ROWS, "use_fast_accum": False}, "use_fast_accum and prologue"),
        ({"prologue": SCALED_ROWS, "dtype": "e4m3"}, "dtype 'e4m3'"),
    ):
        with pytest.raises(OperandError, match=message):
            tune(64, 64, 64, **more)


# --------------------------------------------------------------------------------------------------------- epilogues


FINISHED = Epilogue(Scale("half"), Residual("bf16", beta=None), RowReduce("sum", "sums"), Amax(), Activation("relu"))
WITH_EPILOGUE = TunableEpilogue(512, 256, 512, "bf16", "k", "mn", FINISHED)


@pytest.mark.usefixtures("on_cpu", "an_h200")
def test_a_product_with_an_epilogue_is_called_judged_and_taken() -> None:
    found, failed = tuning._derivable(WITH_EPILOGUE.candidates(), WITH_EPILOGUE.plan)
    assert len(found) == len(set(found)) > 20 and not failed
    on = WITH_EPILOGUE.operands()
    assert len(on.results) == 2, "C and the sums: the largest value is combined with the one before"
    WITH_EPILOGUE.call(on, None)
    assert WITH_EPILOGUE.off(on) <= 1
    wrong = {**on.given, "d": on.given["d"].roll(1, 0)}
    WITH_EPILOGUE.call(on._replace(given=wrong), None)
    assert WITH_EPILOGUE.off(on) > 1
    WITH_EPILOGUE.call(on, None)
    on.given["sums"][3] *= 1.5
    assert WITH_EPILOGUE.off(on) > 1
    WITH_EPILOGUE.call(on, None)
    on.out[-1].fill_(float("nan"))
    assert not WITH_EPILOGUE.off(on) <= 1

    def explained(epilogue: Epilogue) -> bool:
        given = {operand.name: on.given[operand.name] for operand in epilogue.given}
        told = explain_matmul(on.a, on.b, epilogue=epilogue, given=given)
        return "tile 64x128" in told.kernel and told.why.endswith("measured by layoutgemm.tune")

    assert not explained(FINISHED)
    config = Sm90Config((64, 128), consumers=1, loader="warp")
    assert tuned.store(GPU, tuned.key_of(WITH_EPILOGUE.sizes, *WITH_EPILOGUE.name), Sm90Choice(config), {}) is not None
    assert explained(FINISHED) and not explained(Epilogue(*FINISHED.steps[1:]))


def test_epilogues_that_are_not_tuned() -> None:
    for more, message in (
        ({"epilogue": Activation("relu")}, "epilogue is Activation"),
        ({"epilogue": Epilogue()}, "at least one step"),
        ({"epilogue": FINISHED, "groups": 4}, "groups and epilogue"),
        ({"epilogue": FINISHED, "prologue": SCALED_ROWS}, "prologue and epilogue"),
        ({"epilogue": FINISHED, "dtype": "e4m3"}, "dtype 'e4m3'"),
    ):
        with pytest.raises(OperandError, match=message):
            tune(64, 64, 64, **more)


# ----------------------------------------------------------------------------------------------------- packed weights


INT4 = QuantizedFormat("int4", 128)
FEW_ROWS = TunablePacked(2, 128, 2048, "bf16", INT4)


@pytest.mark.parametrize(("rows", "least"), [(1, 50), (16, 30), (256, 8), (4096, 8)])
def test_packed_weights_have_candidates_with_plans(rows: int, least: int) -> None:
    variant = TunablePacked(rows, 8192, 8192, "bf16", INT4)
    found, failed = tuning._derivable(variant.candidates(), variant.plan)
    assert variant.plan(found[0]).config == variant.plan(None).config
    assert len({name_of(choice) for choice in found}) == len(found) >= least and len(failed) <= len(found) // 4


@pytest.mark.parametrize("two", [True, False])
def test_two_launches_are_tuned_beside_one(two: bool) -> None:
    """The default is measured first, the likeliest others behind it."""
    variant = TunablePacked(1024, 7168 if two else 6144, 20480 if two else 4096, "bf16", INT4)
    found = list(variant.candidates())
    cuts = [choice for choice in found if isinstance(choice, PartsChoice)]
    assert found[1 - two : 5 - two] == cuts and len({*cuts}) == 4
    parts = packed_parts(variant.n, variant.m, variant.k, weights=INT4)
    default = PartsChoice(FeatureParts(parts)) if two else Sm90Choice(packed_config(6144, 1024, 4096, weights=INT4))
    assert found[0] == default
    assert "features: " in name_of(cuts[0]) and variant.plan(cuts[0]).m == cuts[0].config.parts[0][0]
    one = [choice.config.tile for choice in found if isinstance(choice, Sm90Choice)]
    assert one[0] == (192, 256) or two  # the least estimate


@pytest.mark.usefixtures("on_cpu", "an_h200")
def test_a_product_with_packed_weights_is_called_judged_and_taken() -> None:
    on = FEW_ROWS.operands()
    FEW_ROWS.call(on, None)
    assert FEW_ROWS.off(on) <= 1
    FEW_ROWS.call(on._replace(x=on.x.roll(1, 1)), None)
    assert FEW_ROWS.off(on) > 1
    on.out[-1].fill_(float("nan"))
    assert not FEW_ROWS.off(on) <= 1

    def explained(x: Any = on.x, **others: Any) -> tuple[str, bool]:
        told = explain_matmul(x, on.weight, **others)
        return told.kernel, told.why == tuned.MEASURED

    before = explained()
    key = tuned.key_of(FEW_ROWS.sizes, *FEW_ROWS.name)
    config = StreamedConfig(8, 3, 2, split=2)
    assert tuned.store(GPU, key, StreamedChoice(config), {}) is not None
    kernel, measured = explained(bias=torch.ones(128), activation="silu")
    assert measured and "8 warps of 3 slots" in kernel and "K in 2 parts" in kernel and not before[1]
    assert not explained(on.x[:1])[1] and not explained(config=StreamedConfig())[1]
    tuned.store(GPU, key, Sm90Choice(Sm90Config((64, 8), consumers=1, store="direct")), {})
    assert "tile 64x8" in explained()[0] and tuned.lookup(GPU, FEW_ROWS.sizes, *FEW_ROWS.name) is not None
    small = Sm90Config((64, 8), consumers=1, store="direct")
    tuned.store(GPU, key, PartsChoice(FeatureParts(((64, small), (64, small)))), {})
    assert explained()[0].count("Sm90Plan 64x2x2048") == 2 and explained()[1]
    for broken in ([[64, {"tile": [64, 8]}]], [[1, 2, 3]], [[64], [64]], 5, [["64", {}], [64, {}]]):
        assert tuned.choice_of({"swapped": False, "parts": broken}) is None
    for wrong in (StreamedChoice(StreamedConfig(slots=200)), PartsChoice(FeatureParts(((64, small), (128, small))))):
        tuned.store(GPU, key, wrong, {})
        assert explained() == before


@pytest.mark.usefixtures("on_cpu")
def test_tune_measures_packed_weights_and_keeps_the_fastest(an_h200: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_tunable_gpu", lambda *device: GPU)
    monkeypatch.setattr(
        tuning,
        "_measure",
        lambda problem, contest, choices, *rest: ({c: 9 - i for i, c in enumerate(choices)}, [], 1.0),
    )
    found = tune(2, 128, 2048, weights=INT4, most=3, progress=lambda line: None)
    assert len(found.measured) == 3 and name_of(found.choice).startswith("streamed")
    assert tuned.lookup_any(GPU, FEW_ROWS.sizes, *FEW_ROWS.name) == found.choice
    assert tuned.lookup(GPU, FEW_ROWS.sizes, *FEW_ROWS.name) is None, "no other product takes it"


def test_packed_weights_that_are_not_tuned() -> None:
    for more, message in (
        ({"weights": "int4"}, "weights is 'int4': a QuantizedFormat"),
        ({"weights": INT4, "groups": 4}, "groups and weights"),
        ({"weights": INT4, "b_major": "mn"}, "b_major and weights"),
        ({"weights": INT4, "epilogue": FINISHED}, "epilogue and weights"),
        ({"weights": INT4, "dtype": "e4m3"}, "dtype 'e4m3': packed weights are tuned for x of"),
        ({"weights": INT4, "k": 100}, "K = 100 is 0 groups of 128"),
    ):
        with pytest.raises(OperandError, match=message):
            tune(64, 64, **{"k": 128, **more})


def test_every_product_takes_the_choice_of_a_tuning() -> None:
    """As `Tuning.choice` has it. A swapped one is of the transposed product, which few products have."""
    config = Sm90Config((64, 128), consumers=1)
    x, w, ends = torch.zeros(96, 128).bfloat16(), torch.zeros(3, 128, 128).bfloat16().mT, torch.tensor([9, 40, 96])
    x8, of_x, of_w = torch.zeros(96, 128).to(torch.float8_e4m3fn), torch.ones(96, 1), torch.ones(3, 1, 128)
    w8, order = torch.zeros(3, 128, 128).to(torch.float8_e4m3fn).mT, torch.arange(96)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (layoutgemm.grouped_matmul, (x, w), {"offs": ends}),
        (layoutgemm.grouped_matmul, (x, (w, w)), {"offs": ends, "combine": "silu"}),
        (layoutgemm.grouped_matmul, (x8, w8), {"offs": ends, "scale_a": of_x, "scale_b": of_w}),
        (layoutgemm.matmul, (x, w[0]), {"rows": order}),
        (layoutgemm.matmul, (x, w[0]), {"out_rows": order}),
        (layoutgemm.matmul, (x, w[0]), {"add_rows": order, "order": "hilbert"}),
    ]  # fmt: skip
    for call, operands, options in calls:
        found = layoutgemm.explain_matmul(*operands, config=Sm90Choice(config), **options)
        assert found == layoutgemm.explain_matmul(*operands, config=config, **options)
        want = call(*operands, config=config, **options)
        assert torch.equal(call(*operands, config=Sm90Choice(config), **options), want)
        for function in (call, layoutgemm.explain_matmul):
            with pytest.raises(OperandError, match=r"config is of the transposed product \(swapped\)"):
                function(*operands, config=Sm90Choice(config, swapped=True), **options)
            with pytest.raises(OperandError, match="config is a str; it is an Sm90Config"):
                function(*operands, config="fast", **options)
    assert layoutgemm.scaled_matmul(x8, of_x, w8[0], torch.ones(1, 128), config=Sm90Choice(config)).shape == (96, 128)


# ------------------------------------------------------------------------------------------------------ tune_call


X, W, G = (torch.zeros(*size).bfloat16() for size in ((256, 128), (128, 128), (2, 128, 128)))
X8, W8, G8 = (x.to(torch.float8_e4m3fn) for x in (X, W, G))
ENDS, STARTS = (torch.tensor(x, dtype=torch.int32) for x in ([100, 256], [0, 100, 256]))
ROWS, EVERY, OF_COLUMNS = torch.arange(256), torch.ones(256, 1), torch.ones(1, 128)
SCALED_K = {"prologue": Prologue.of(lambda x, i, k, ops, s: x * s, s="k"), "given": {"s": torch.ones(128)}}
SUMS = {"epilogue": Epilogue(RowReduce("sum", "r")), "given": {"r": torch.empty(256)}}
ORDER, RELU = {"order": "lower"}, {"epilogue": Epilogue(Activation("relu"))}
BLOCKS = {"recipe_a": "BlockWise1x128", "recipe_b": "BlockWise128x128"}
SILU = {"combine": "silu"}
CALLS_OF_PARTS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "combine": (layoutgemm.matmul, (X, (W, W)), SILU),
    "combine, reduced": (layoutgemm.matmul, (X, (W, W)), SILU | SUMS),
    "pairs": (layoutgemm.matmul, ((X, X), (W, W)), {}),
    "pairs, combined": (layoutgemm.matmul, ((X, X), ((W, W), (W, W))), SILU),
    "order": (layoutgemm.matmul, (X, W), ORDER),
    "order, prologue": (layoutgemm.matmul, (X, W), ORDER | SCALED_K),
    "rows": (layoutgemm.matmul, (X, W), {"rows": ROWS}),
    "add_rows": (layoutgemm.matmul, (X, W), {"add_rows": ROWS % 7}),
    "groups, combine": (layoutgemm.grouped_matmul, (X, (G, G)), {"offs": ENDS, **SILU}),
    "groups, steps": (layoutgemm.grouped_matmul, (X, G), {"offs": ENDS, **RELU}),
    "groups, prologue": (layoutgemm.grouped_matmul, (X, G), {"offs": ENDS, **SCALED_K}),
    "groups, rows": (layoutgemm.grouped_matmul, (X, G), {"offsets": STARTS, "rows": ROWS, "out_rows": ROWS}),
    "groups along K, steps": (layoutgemm.grouped_matmul, (X.mT, X), {"offs": ENDS, **RELU}),
    "scales, steps": (layoutgemm.scaled_matmul, (X8, EVERY, W8.mT, OF_COLUMNS[:, :1]), RELU | BLOCKS),
}


@pytest.mark.usefixtures("an_h200")
def test_tune_call_keeps_a_configuration_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are the test's own: one configuration is faster than the usual one, for every door and part."""
    fast = Sm90Choice(Sm90Config((128, 128), loader="warpgroup", chunks=1))
    times: dict[Any, float] = {None: 2.0, fast: 1.0}
    monkeypatch.setattr(tuning, "_tunable_gpu", lambda device: GPU)
    monkeypatch.setattr(tuning, "_measure", lambda *given: (times, [], float("nan")))
    quiet: dict[str, Any] = {"progress": lambda text: None}
    with bare_launches(monkeypatch) as noted:
        for name, (door, operands, options) in CALLS_OF_PARTS.items():
            found = tuning.tune_call(door, *operands, **quiet, **options)
            assert found.choice == fast and found.kept is not None, name
            door(*operands, **options)
            assert (taken := noted.plans[-1].config).tile == (128, 128) and taken.loader == "warpgroup", name
        kept = json.loads(found.kept.read_text())
        assert len(kept) == len(CALLS_OF_PARTS)  # no two calls share a result
        assert layoutgemm.explain_matmul(X, W, **ORDER).why.endswith(tuned.MEASURED)
        assert layoutgemm.explain_matmul(X, W, order="upper").why.endswith("of the grid")
        times[fast] = 3.0  # the usual one is the fastest: the result goes
        assert tuning.tune_call(layoutgemm.matmul, X, W, **quiet, **ORDER).choice is None
        assert not layoutgemm.explain_matmul(X, W, **ORDER).why.endswith(tuned.MEASURED)


def test_tune_call_judges_each_configuration_by_the_usual_ones_results() -> None:
    """Copies share memory as the operands do, and each call adds to a fresh `out`."""
    x = torch.randn(64, 32).bfloat16()
    wrong = Sm90Choice(Sm90Config((64, 64), consumers=1))

    def door(a: Any, b: Any, *, out: Any, config: Any) -> Any:
        assert a.data_ptr() == b.data_ptr() and a.data_ptr() != x.data_ptr()
        return out.add_((a.float() @ b.float()) * (1.2 if config == wrong else 1 + 2.0**-9))

    variant = TunableCall(door, (x, x.mT), {"out": torch.zeros(64, 64)})
    assert variant.off(None) == 0 and variant.off(Sm90Choice(Sm90Config((128, 64)))) == 0 and variant.off(wrong) > 1
    assert not variant.options["out"].any()
    with pytest.raises(PlanError, match="looks for no measured configuration"):
        _ = variant.asked


def test_calls_that_tune_call_refuses() -> None:
    with pytest.raises(OperandError, match=r"door is torch\.matmul"):
        tuning.tune_call(torch.matmul, X, W)
    with pytest.raises(OperandError, match="config: it is what tune_call finds"):
        tuning.tune_call(layoutgemm.matmul, X, W, config=CHOICE)
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="torch finds none"):
            tuning.tune_call(layoutgemm.matmul, X, W)
