"""The census of known and unknown instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutgemm.emulator.ptx.coverage import census, main, refusals
from layoutgemm.emulator.ptx.parser import parse
from tests.emulator.official.compiled import compiled, missing
from tests.emulator.official.examples import EXAMPLES

TEXT = """
.target sm_90a
.entry kernel() {
  .reg .b32 %r<3>; .reg .pred %p;
  mov.b32 %r0, 1;
  add.s32 %r1, %r0, 2;
  add.b99 %r1, %r0, 2;
  fly.away %r1, %r0;
  bar.sync 0;
  bar.sync.sideways 0;
  ret;
}
"""


def test_every_refusal_of_a_kernel_is_found_not_the_first() -> None:
    (kernel,) = parse(TEXT)
    refused = refusals(kernel)
    assert {kernel.instructions[pc].opcode for pc in refused} == {"add.b99", "fly.away", "bar.sync.sideways"}
    assert "PTX line 8" in refused[3]


def test_spellings_are_counted_by_text() -> None:
    found = census([("one", TEXT), ("two", TEXT)])
    assert list(found) == sorted(found)
    assert found["add.s32"].kernels == {"one": 1, "two": 1} and not found["add.s32"].refused
    assert found["fly.away"].refused.startswith("one: PTX line 8")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(TEXT)
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "? fly.away" in out and out.endswith("7 spellings, 3 of them unknown\n")
    path.write_text(TEXT.replace("  add.b99 %r1, %r0, 2;\n  fly.away %r1, %r0;\n", "").replace(".sideways", ""))
    assert main([str(path), "--unknown"]) == 0
    assert capsys.readouterr().out == "4 spellings, 0 of them unknown\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_official_kernels_have_no_unknown_spelling(name: str) -> None:
    example = EXAMPLES[name]
    if (reason := missing(example)) is not None:
        pytest.skip(reason)
    unknown = {opcode for kernel in parse(compiled(example).ptx) for opcode in refusals(kernel).values()}
    assert not unknown
