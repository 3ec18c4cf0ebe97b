"""One arithmetic instruction on 32 lane values, on uniform values, and on mixtures."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from layoutgemm.emulator.ptx.program import CodeSegment, Program
from tests.emulator.run_ptx import REGISTERS, module, program

WIDTH = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}
EDGES = {
    1: (0, 1),
    8: (0, 1, 2, 0x7F, 0x80, 0xFF, 0x55, 0x77),
    16: (0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0xFFFE, 0x00FF, 0x5555),
    32: (0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x55555555, 0xFFFF0000),
    64: (0, 1, 2, 63, 64, 65, 1 << 31, 1 << 32, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1,
         (1 << 64) - 2, 0x5555555555555555, 0xFFFFFFFF00000000),
}  # fmt: skip


@lru_cache(maxsize=4)
def loaded(text: str) -> Program:
    return program(module(text, {}, "sm_100a", shared=False))


def register(kind: str, number: int) -> str:
    return f"%{REGISTERS[kind]}{number}"


def as_register(values: list[int], kind: str) -> Any:
    if kind == "pred":
        return np.array(values, dtype=bool)
    return np.array(values, dtype=np.uint64 if kind == "b64" else np.int64)


def evaluate(text: str, inputs: list[tuple[str, list[int]]], outputs: list[str], uniform: tuple[int, ...] = ()) -> Any:
    """The outputs' values after the instruction: [output][lane].

    text     with {0}, {1}, ... for output registers and {a}, {b}, {c}, {d} for inputs
    inputs   (kind of register, 32 values, or one) of each
    uniform  inputs that are given as one int, their first value
    """
    names = {"abcd"[n]: register(kind, n) for n, (kind, _) in enumerate(inputs)}
    targets = [register(kind, 10 + n) for n, kind in enumerate(outputs)]
    loaded_program = loaded(text.format(*targets, **names) + ";")
    step = loaded_program.steps[0]
    assert isinstance(step, CodeSegment), text
    registers: list[Any] = [None] * len(loaded_program.index)
    for n, (kind, values) in enumerate(inputs):
        one = values[0] if kind != "pred" else bool(values[0])
        at = loaded_program.index[register(kind, n)]
        registers[at] = one if n in uniform else as_register(values, kind)
    with np.errstate(all="ignore"):
        step.run(registers, None)
    out = []
    for name, kind in zip(targets, outputs):
        value = registers[loaded_program.index[name]]
        check_form(value, kind)
        out.append([int(x) for x in value] if isinstance(value, np.ndarray) else [int(value)] * 32)
    return out


def check_form(value: Any, kind: str) -> None:
    """A register's value has the type that `values.py` promises."""
    if isinstance(value, np.ndarray):
        wanted = {"pred": (np.bool_,), "b64": (np.uint64,)}.get(kind, (np.int64,))
        assert value.shape == (32,) and value.dtype.type in wanted, (value.dtype, kind)
    else:
        assert type(value) is (bool if kind == "pred" else int), (type(value), value)
    if kind != "pred":
        low, top = (int(np.min(value)), int(np.max(value))) if isinstance(value, np.ndarray) else (value, value)
        assert 0 <= low and top < 1 << WIDTH[kind], (low, top, kind)


def operands(kinds: list[str], rng: np.random.Generator, extra: tuple[int, ...] = ()) -> list[list[int]]:
    """32 values for each kind: edges, small ones and random bits."""
    found = []
    for kind in kinds:
        bits = WIDTH[kind]
        pool = EDGES[bits] + tuple(x for x in extra if x < 1 << bits)
        values = []
        for _ in range(32):
            way = rng.integers(4)
            if way < 2:
                values.append(int(pool[rng.integers(len(pool))]))
            elif way == 2 and bits > 1:
                values.append(int(rng.integers(0, 70)) & (1 << bits) - 1)
            else:
                values.append(int.from_bytes(rng.bytes(8), "little") & (1 << bits) - 1)
        found.append(values)
    return found


def agree(text: str, kinds: list[str], outputs: list[str], reference: Any, extra: tuple[int, ...] = (), same: Any = None,  # noqa: E501
          rounds: int = 2) -> None:  # fmt: skip
    """The instruction gives what `reference` says of each lane, however its operands are kept.

    reference  ints -> an int, or a tuple for several outputs
    same       compares two values of an output; equality by default
    """
    rng = np.random.default_rng(len(text))
    same = same or (lambda got, want: got == want)
    ways = [(), tuple(range(len(kinds))), *[(n,) for n in range(len(kinds)) if len(kinds) > 1]]
    for round_ in range(rounds):
        values = operands(kinds, rng, extra)
        for uniform in ways:
            lanes = [[v[0]] * 32 if n in uniform else v for n, v in enumerate(values)]
            got = evaluate(text, list(zip(kinds, lanes)), outputs, uniform)
            for lane in range(32 if len(uniform) < len(kinds) else 1):
                arguments = [v[lane] for v in lanes]
                want = reference(*arguments)
                want = want if isinstance(want, tuple) else (want,)
                for n, (result, right) in enumerate(zip(got, want)):
                    assert same(result[lane], right), (
                        f"{text}: {[hex(x) for x in arguments]} gives {result[lane]:#x}, not {right:#x}"
                        f" (output {n}, uniform {uniform}, round {round_})"
                    )
