"""The whole driver on a model of a device: who is admitted, who goes on, what the table and the JSON say."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_gemm, peers
from layoutgemm.bench import machine
from layoutgemm.bench import method as bench
from layoutgemm.bench import outcome as bench_outcome
from layoutgemm.bench.method import BenchProblem, Contender
from layoutgemm.bench.outcome import DeviceLost, Measured, Method, Outcome, line, measure
from tests.benchmarks.model_device import ModelDevice, timed

SMALL = BenchProblem(48, 32, 64)


@pytest.fixture(autouse=True)
def two_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of four launches over two sets instead of thousands over ten thousand."""
    monkeypatch.setattr(bench_gemm.gc, "collect", lambda: 0)  # the model has no memory to free
    monkeypatch.setattr(BenchProblem, "sets", property(lambda self: 2))
    monkeypatch.setattr(BenchProblem, "launches", property(lambda self: 4))


def field(device: ModelDevice) -> list[Contender]:
    return [
        timed(device, "torch.mm", 2e-6, "torch.mm"),
        *(timed(device, f"lib#{i}", 1e-6 * cost, "lib") for i, cost in enumerate((3.0, 1.5, 2.5, 1.6))),
        timed(device, "mine", 1e-6, "ours"),
    ]


def test_a_family_is_ranked_and_its_best_go_on() -> None:
    device = ModelDevice(throttle=1.25)
    out = measure(device, SMALL, field(device), Method(5, sustained_rounds=2, keep={"lib": 2}))
    assert {m.name for m in out.measured} == {"torch.mm", "lib#1", "lib#3", "mine"}
    assert dict(out.fell_out) == pytest.approx({"lib#0": 3e-6, "lib#2": 2.5e-6})
    by = {m.name: m for m in out.measured}
    assert by["mine"].seconds == pytest.approx(1e-6) and len(by["mine"].burst) == 5
    # one of each family runs at sustained load, slower by the throttle
    assert [m.name for m in out.measured if m.sustained] == ["torch.mm", "lib#1", "mine"]
    assert by["mine"].sustained_seconds == pytest.approx(1.25e-6)
    assert (by["mine"].clock_mhz, by["mine"].power_w) == (1500.0, 650.0)
    assert out.failed == ()


def wrong(a: Any, b: Any, c: Any) -> None:
    c.copy_(a.float() @ b.float().T)
    c[3, 5] += 8  # what a lost 64-element block of K leaves


def unwritten(a: Any, b: Any, c: Any) -> None:
    c[1:].copy_((a.float() @ b.float().T)[1:])


def test_wrong_or_raising_contenders_are_named_and_not_timed() -> None:
    device = ModelDevice()
    state = {"n": 0}

    def restless(a: Any, b: Any, c: Any) -> None:
        state["n"] += 1
        c.copy_((a.float() @ b.float().T) * (1 + (state["n"] > 2) * 2**-9))

    def raises(sets: Any) -> Any:
        raise ImportError("No module named 'lib'")

    out = measure(
        device,
        SMALL,
        [
            timed(device, "torch.mm", 2e-6),
            timed(device, "wrong", 1e-6, work=wrong),
            timed(device, "unwritten", 1e-6, work=unwritten),
            timed(device, "restless", 1e-6, work=restless),
            Contender("absent", raises),
            Contender("short", lambda sets: [lambda: None]),
        ],
        Method(3, sustained_rounds=0),
    )
    why = dict(out.failed)
    assert [m.name for m in out.measured] == ["torch.mm"]
    assert set(why) == {"wrong", "unwritten", "restless", "absent", "short"}
    assert why["wrong"].startswith("wrong: an element of C is off by ")
    assert why["unwritten"] == "wrong: an element of C is off by nan times the bound"
    assert why["restless"] == "a second run gave other bits"
    assert why["absent"] == "ImportError: No module named 'lib'"
    assert why["short"] == "OperandError: prepare gave 1 launches for 2 operand sets"


def test_launches_that_do_not_record_are_found() -> None:
    """A launch on another stream runs at once and is missing from the graph."""
    device = ModelDevice()
    device.record = lambda launches: lambda: None
    out = measure(device, SMALL, [timed(device, "stray", 1e-6)], Method(3, sustained_rounds=0))
    assert out.failed == (("stray", "the recorded launches give other bits than the eager ones"),)


def test_a_faulty_baseline_is_timed_and_keeps_its_fault() -> None:
    device = ModelDevice()
    out = measure(device, SMALL, [timed(device, "torch.mm", 2e-6, work=wrong)], Method(3, sustained_rounds=0))
    assert out.measured[0].fault.startswith("wrong") and not out.failed
    assert "FAULT" in "\n".join(bench_outcome.details(out))


def test_a_broken_device_ends_the_run_and_names_the_contender() -> None:
    device = ModelDevice()

    def kill(a: Any, b: Any, c: Any) -> None:
        device.dead = True

    with pytest.raises(DeviceLost, match="killer has broken the device"):
        measure(device, SMALL, [timed(device, "torch.mm", 2e-6), timed(device, "killer", 1e-6, work=kill)])


# The driver -----------------------------------------------------------------------------------------------------------


def options(**changes: Any) -> argparse.Namespace:
    parsed = bench_gemm.arguments([])
    for name, value in changes.items():
        setattr(parsed, name, value)
    return parsed


def drive(
    device: ModelDevice, problems: list[BenchProblem], setup: float = 1.0, **changes: Any
) -> tuple[list[str], list[Outcome], list[str]]:
    """Run the driver; every problem takes `setup` seconds beside what is timed."""
    said: list[str] = []
    last: list[Outcome] = []

    def contenders(problem: BenchProblem) -> list[Contender]:
        device.now += setup
        return field(device)

    ended = bench_gemm.run(
        device,
        problems,
        contenders,
        options(sustained_from=0.0, **changes),
        said.append,
        lambda outcomes: last.__setitem__(slice(None), outcomes),
        clock=lambda: device.now,
    )
    assert not ended.lost
    return ended.notes, last, said


def test_the_driver_measures_every_shape_and_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_gemm.peers.LEFT_OUT, "a peer", "not here")
    problems = [SMALL, BenchProblem(16, 48, 32)]
    notes, outcomes, said = drive(ModelDevice(), problems, rounds=3, sustained_rounds=1)
    assert [o.problem for o in outcomes] == problems and not notes
    assert sum("us" in text for text in said) >= 2
    text = bench_gemm.report(outcomes, {"gpu": "a model"}, ["a note"])
    assert text.splitlines()[0] == "gpu a model"
    assert text.splitlines()[-1] == "a note"
    assert "left out: a peer: not here" in text


def test_a_short_budget_leaves_out_sustained_load_first_and_says_so() -> None:
    problems = [BenchProblem(16, 16, 16 * i) for i in range(1, 6)]
    notes, outcomes, _ = drive(ModelDevice(), problems, setup=5.0, rounds=3, sustained_rounds=3, budget=60.0)
    with_load = [o.problem.k // 16 for o in outcomes if any(m.sustained for m in o.measured)]
    assert len(outcomes) == 5, notes
    assert 0 < len(with_load) < 5
    assert sum("no sustained figures" in note for note in notes) == 5 - len(with_load)


def test_a_spent_budget_leaves_out_shapes_and_says_so() -> None:
    problems = [BenchProblem(16, 16, 16 * i) for i in range(1, 6)]
    notes, outcomes, _ = drive(ModelDevice(), problems, setup=20.0, rounds=3, no_sustained=True, budget=50.0)
    assert len(outcomes) == 2
    assert sum("left out, the time budget" in note for note in notes) == 3


def test_shapes_and_pairs_parse_or_say_why_not() -> None:
    assert bench_gemm.shape("512x6144x4096") == (512, 6144, 4096)
    for bad in ("512x6144", "axbxc", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="not of the form MxNxK"):
            bench_gemm.shape(bad)
    assert bench_gemm.pair("mine=/x/y=z.o") == ("mine", "/x/y=z.o")
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        bench_gemm.pair("mine")


def test_an_unknown_contender_is_refused_and_a_known_one_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json" if name == "quack" else name))
    with pytest.raises(SystemExit):
        bench_gemm.arguments(["--contender", "torch.mm,cutlass"])
    assert "nothing is called 'cutlass'" in capsys.readouterr().err
    parsed = bench_gemm.arguments(["--contender", "quack,mine", "--object", "mine=a.o", "--object", "other=b.o"])
    names = [c.name for c in bench_gemm.contenders(BenchProblem(16, 4096, 4096), parsed)]
    assert names[0] == "torch.mm" and names[-1] == "mine"
    assert [name for name in names if name.startswith("quack")] == names[1:-1]
    assert len(names) == 6


def test_a_missing_peer_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "quack" else found(name))
    monkeypatch.setattr(peers, "LEFT_OUT", {})
    parsed = bench_gemm.arguments(["--contender", "torch.mm,quack"])
    assert [c.name for c in bench_gemm.contenders(BenchProblem(16, 4096, 4096), parsed)] == ["torch.mm"]
    assert bench_gemm.report([], {}, []).splitlines()[-1] == (
        "left out: quack: no package quack: pip install quack-kernels"
    )


def test_an_object_may_be_for_some_shapes_only() -> None:
    parsed = bench_gemm.arguments(["--contender", "torch.mm,ours", "--object", "big@8192+64x32x16=big.o"])
    for sizes, there in (((64, 32, 16), True), ((64, 32, 8), False), ((8192, 8192, 8192), True)):
        names = [c.name for c in bench_gemm.contenders(BenchProblem(*sizes), parsed)]
        assert names == ["torch.mm", "layoutgemm", *(["big"] if there else [])]


def test_the_program_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of `main` but the GPU: the closing table, the JSON, the exit status."""
    device = ModelDevice()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "facts", lambda: {"gpu": "a model"})
    monkeypatch.setattr(machine, "sampler", lambda: ("nothing", None))
    monkeypatch.setattr(bench, "CudaDevice", lambda sampler: device)
    monkeypatch.setattr(bench_gemm, "FAMILIES", {"torch.mm": lambda p: [timed(device, "torch.mm", 2e-6)]})
    path = tmp_path / "gemm.json"
    ours = "mine=tests.benchmarks.model_device:product"
    assert bench_gemm.main(["--shapes", "48x32x64,16", "--ours", ours, "--rounds", "3", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "gpu a model, cublasLt unknown" in out and out.count("48x32x64") == 2
    facts, outcomes = bench_outcome.load(path)
    assert facts["method"]["rounds"] == 3
    assert [[m.name for m in o.measured] for o in outcomes] == [["torch.mm", "mine"]] * 2


@pytest.mark.parametrize(("says", "lost", "status"), [("gone", True, 3), ("nothing broken has the device", False, 0)])
def test_the_exit_status_is_that_of_the_device_not_of_a_word(
    says: str, lost: bool, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that is lost after the first shape; a note that says "broken" of one that is not."""
    device, run = ModelDevice(), bench_gemm.run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "facts", dict)
    monkeypatch.setattr(machine, "sampler", lambda: ("nothing", None))
    monkeypatch.setattr(bench, "CudaDevice", lambda sampler: device)
    monkeypatch.setattr(bench_gemm, "FAMILIES", {"torch.mm": lambda p: [timed(device, "torch.mm", 2e-6)]})

    def second_is_lost(device: Any, problem: BenchProblem, *rest: Any) -> Outcome:
        if lost and problem.m == 16:
            raise DeviceLost(says)
        return measure(device, problem, *rest)

    def noted(*given: Any, **named: Any) -> bench_gemm.Ended:
        ended = run(*given, **named)
        return ended._replace(notes=[*ended.notes, says])

    monkeypatch.setattr(bench_gemm, "measure", second_is_lost)
    monkeypatch.setattr(bench_gemm, "run", noted)
    argv = ["--shapes", "48x32x64,16", "--contender", "torch.mm", "--rounds", "1"]
    assert bench_gemm.main(argv) == status
    out = capsys.readouterr().out
    assert says in out and ("16x16x16: gone; the run ends here" in out) is lost


def test_a_callable_of_ours_is_imported_when_its_turn_comes() -> None:
    parsed = bench_gemm.arguments(["--ours", "good=tests.benchmarks.model_device:product"])
    parsed.ours.append(("absent", "no.such:thing"))
    parsed.contender = "good,absent"
    device = ModelDevice()
    found = bench_gemm.contenders(SMALL, parsed)[1:]
    out = measure(device, SMALL, found, Method(1, sustained_rounds=0))
    assert [c.name for c in found] == ["good", "absent"]
    assert [m.name for m in out.measured] == ["good"]
    assert out.failed == (("absent", "ModuleNotFoundError: No module named 'no'"),)


def test_the_table_of_shapes_is_whole() -> None:
    assert len(bench_gemm.SHAPES) == len(set(bench_gemm.SHAPES)) == 28


def test_the_watchdog_is_overdue_only_without_progress() -> None:
    now = {"t": 0.0}
    dog = bench_gemm.Watchdog(10.0, print, lambda: now["t"])
    now["t"] = 9.0
    dog.mark("a step")
    now["t"] = 18.0
    assert not dog.overdue()
    now["t"] = 20.0
    assert dog.overdue() and dog.step == "a step"


# The table and the JSON -----------------------------------------------------------------------------------------------


def result(name: str, family: str, us: float, sustained_us: float | None = None) -> Measured:
    held = () if sustained_us is None else (sustained_us / 1e6,)
    return Measured(name, family, "", 0.5, 1.7e-3, (us / 1e6,) * 3, held, *((1500.0, 640.0) if held else (None, None)))


LARGE = Outcome(
    BenchProblem(8192, 8192, 8192),
    (
        result("torch.mm", "torch.mm", 1388.0, 1596.0),
        result("cublasLt#3", "cublasLt", 1346.0, 1536.0),
        result("quack", "quack", 1347.0, 1529.0),
        result("mine", "ours", 1295.0, 1498.0),
        result("mine slow", "ours", 1400.0),
    ),
)


def test_a_line_holds_rates_and_ratios() -> None:
    left, right, names = line(LARGE).split(" | ")
    assert left.split() == ["8192x8192x8192", "1295.00", "849.0", "311", "0.00", "1.072", "1.039"]
    assert right.split() == ["734.0", "1.065", "1.021", "1500", "640"]
    assert names == "mine; cublasLt#3"
    assert [len(part) for part in line(LARGE).split(" | ")[:2]] == [len(p) for p in bench_outcome.HEAD.split(" | ")[:2]]


def test_without_ours_the_best_peer_is_the_subject() -> None:
    peers = Outcome(LARGE.problem, LARGE.measured[:3])
    assert line(peers).split(" | ")[2] == "cublasLt#3; quack"
    alone = Outcome(LARGE.problem, LARGE.measured[:1])
    assert line(alone).split(" | ")[0].split()[-2:] == ["1.000", "-"]
    assert line(Outcome(SMALL)).split() == ["48x32x64", "nothing", "ran"]


def test_json_comes_back_as_it_went(tmp_path: Any) -> None:
    outcome = Outcome(LARGE.problem, LARGE.measured, (("lib#0", 3e-6),), (("bad", "wrong"),))
    path = tmp_path / "results" / "gemm.json"
    bench_outcome.save(path, {"gpu": "a model", "rounds": 3}, [outcome])
    assert bench_outcome.load(path) == ({"gpu": "a model", "rounds": 3}, [outcome])


def test_best_of_keeps_the_named_number_of_each_family() -> None:
    family = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}
    seconds = {"a": 3.0, "b": 1.0, "c": 2.0, "d": math.inf, "e": 5.0}
    assert bench_outcome.best_of(family, seconds, {"x": 2}) == ["b", "c", "d", "e"]
    assert bench_outcome.best_of(family, seconds, {"x": 9}) == list(family)
    assert bench_outcome.best_of({}, {}, {"x": 1}) == []


def test_without_torch_one_line_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert bench_gemm.main(["--shapes", "64"]) == 2
    assert capsys.readouterr().err == "torch is not installed: make bench-gemm installs it, and the peers\n"


def test_without_the_dsl_only_other_contenders_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cutlass" else found(name))
    assert bench_gemm.main(["--shapes", "64x64x64"]) == 2
    assert "pip install 'layoutgemm[dsl]'; --contender torch.mm,cublasLt" in capsys.readouterr().err

    class BeyondTheCheck(Exception):
        pass

    def stop() -> None:
        raise BeyondTheCheck

    monkeypatch.setattr("layoutgemm.bench.machine.sampler", stop)
    with pytest.raises(BeyondTheCheck):
        bench_gemm.main(["--shapes", "64x64x64", "--contender", "torch.mm"])
