"""Races of configurations on a model of a device, their record, and the current choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import needs

needs.module("torch")

from benchmarks.choice_record import Standing, Timed, Tried, load, report, save, standing
from benchmarks.configurations import candidates, name_of, random_shapes
from benchmarks.tune_gemm import key_of, main, race
from layoutgemm.bench.method import BenchProblem, Contender, Launch, Operands
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from tests.benchmarks.model_device import ModelDevice

SHAPE = BenchProblem(256, 128, 64)
CHOICES = list(candidates(256, 128, 64, likely=5))


@pytest.fixture(autouse=True)
def short_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutgemm.bench.method.ROTATION_BYTES", 1.0)
    monkeypatch.setattr("layoutgemm.bench.method.GRAPH_SECONDS", 0.0)


def takes(device: ModelDevice, name: str, seconds: float, family: str = "ours") -> Contender:
    """A contender that is right, and takes that long."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        def one(operands: Operands) -> Launch:
            def launch() -> None:
                operands.c.copy_(operands.a.float() @ operands.b.float().T)
                device.now += seconds

            return launch

        return [one(operands) for operands in sets]

    return Contender(name, prepare, family)


def raced(times: Sequence[float], last: int) -> Tried:
    device = ModelDevice()
    field = {c: takes(device, key_of(c, "k"), t) for c, t in zip(CHOICES, times, strict=True)}
    return race(device, SHAPE, field, [takes(device, "torch.mm", 7e-6, "torch")], rounds=5, last=last)


def test_the_fastest_and_the_chosen_one_are_in_the_last_round(capsys: pytest.CaptureFixture[str]) -> None:
    tried = raced([9e-6, 5e-6, 6e-6, 4e-6, 8e-6, 3e-6], last=2)
    assert tried.torch == pytest.approx(7e-6)
    assert {t.choice: t.seconds for t in tried.kernels} == {
        c: pytest.approx(t) for c, t in zip(CHOICES, [9e-6, 5e-6, 6e-6, 4e-6, 8e-6, 3e-6])
    }
    assert [t.choice for t in tried.kernels if t.last] == [CHOICES[i] for i in (0, 3, 5)]
    assert f"{key_of(CHOICES[0], 'k')} (chosen)" in capsys.readouterr().out
    found = standing(tried)
    assert found.behind == pytest.approx(2.0) and found.torch / (found.chosen or 1) == pytest.approx(7 / 9)


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    other = Tried(BenchProblem(16, 4096, 4096, "n"), 1e-5, (Timed(choose(16, 4096, 4096, b_major="MN")[0], 9e-6),))
    tried = [raced([9e-6, 5e-6, 6e-6, 4e-6, 8e-6, 3e-6], last=2), other]
    save(tmp_path / "new" / "record.json", {"machine": {"gpu": "a model"}}, tried)
    facts, found = load(tmp_path / "new" / "record.json")
    assert facts == {"machine": {"gpu": "a model"}}
    assert [(t.problem, [(k.choice, k.last) for k in t.kernels]) for t in found] == [
        (t.problem, [(k.choice, k.last) for k in t.kernels]) for t in tried
    ]
    for before, after in zip(tried, found, strict=True):
        assert after.torch == pytest.approx(before.torch, abs=1e-9)
        assert [k.seconds for k in after.kernels] == pytest.approx([k.seconds for k in before.kernels], abs=1e-9)


@pytest.mark.parametrize("text", ["[]", "{}", '{"defaults": {}, "configurations": [3], "shapes": []}', "{"])
def test_an_invalid_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "no.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        load(path)


def test_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = Tried(BenchProblem(512, 512, 64), 1e-5, (Timed(CHOICES[0], 9e-6),))
    lost = replace(unknown, kernels=(Timed(Sm90Choice(replace(CHOICES[0].config, stages=2)), 9e-6),))
    save(tmp_path / "a.json", {}, [raced([9e-6, 5e-6, 6e-6, 4e-6, 8e-6, 8.9e-6], last=2)])
    save(tmp_path / "b.json", {}, [raced([4e-6, 5e-6, 6e-6, 4.01e-6, 8e-6, 8.9e-6], last=2), lost])
    assert main(["judge", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split() == f"{SHAPE} 125.0% behind the fastest, 0.778 of torch.mm".split()
    assert lines[1].split() == "512x512x64 what is chosen was not measured".split()
    assert lines[2] == "2 of 3 shapes: 62.50% behind the fastest on average, over 1% on 1"
    assert lines[3] == "ahead of torch.mm by more than 1% on 1, within 1% on 0, behind on 1, median 1.264"
    with pytest.raises(ValueError, match="512x512x64: what is chosen was not measured"):
        assert standing(lost).behind
    assert report([]) == [] and Standing(SHAPE, 1.0, 1.0, 1.0).behind == 0


@pytest.mark.parametrize("b_major", ["k", "n"])
@pytest.mark.parametrize("sizes", [(16, 6144, 4096), (64, 1000, 3016), (1000, 4096, 4096), (4096, 4096, 8192)])
def test_candidates_differ_in_name_and_can_mostly_be_derived(sizes: tuple[int, int, int], b_major: str) -> None:
    every, likely = list(candidates(*sizes, b_major)), list(candidates(*sizes, b_major, likely=7))
    assert likely[0] == every[0] == choose(*sizes, b_major="K" if b_major == "k" else "MN")[0]
    assert 1 < len(likely) <= 8 and set(likely) <= set(every)
    assert len({name_of(c) for c in every}) == len(set(every)) == len(every) > len(likely)
    derived = 0
    for choice in every[::7]:
        try:
            choice.plan(*sizes, b="bf16:col" if b_major == "k" else "bf16:row")
            derived += 1
        except LayoutError:
            pass
    assert derived >= 0.7 * len(every[::7])


def test_random_shapes_go_on_where_fewer_ended() -> None:
    assert random_shapes(30, seed=3)[:12] == random_shapes(12, seed=3) != random_shapes(12, seed=4)
