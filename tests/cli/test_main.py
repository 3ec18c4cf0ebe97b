"""The command line: what the demo says, and that it fails when something does not hold."""

import argparse
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import layoutgemm
from layoutgemm.cli.main import main, make_parser
from layoutgemm.kernels.sm90.choose.rules import choose


def test_demo_derives_checks_runs_and_draws(tmp_path, capsys):
    svg = tmp_path / "new" / "map.svg"
    assert main(["demo", "-m", "65", "-n", "70", "-k", "40", "--device", "reference", "--svg", str(svg)]) == 0
    text = capsys.readouterr().out
    for part in (
        "1. The derivation",
        "box (k 64, m 64)",
        "checks hold",
        "3. The compiled kernel",
        "ran on: NumPy executor",
        "against float64",
        "equal within the bound",
        f"written to {svg}",
    ):
        assert part in text, part
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_layout_comes_from_standard_input(capsys, monkeypatch):
    text = "MMA_Atom\n  ThrID: _32:_1\n"
    for given, arguments, status, said in (
        ("tensor<ptr<f16, smem> o (4,8):(8,1)>\n", ["prove", "-", "(4,8):(8,1)"], 0, "proven"),
        ("tCsA: (4,8):(8,1)\n", ["show", "-", "--json"], 0, '"layout": "(4,8):(8,1)"'),
        ("(64,64):(64,1)", ["banks", "-"], 1, "8"),
        (text, ["banks", "-"], 2, "a listing of ThrID: paste the line of one layout"),
        ("", ["show", "-"], 2, "- reads a layout from standard input, which is empty here"),
        ("(4,8):(8,1)", ["prove", "-", "-"], 2, "which is empty here"),  # the first has read it
        (" " * (1 << 16) + "(4,8):(8,1)", ["show", "-"], 2, "standard input has more than 65536 characters"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        try:
            got = main(arguments)
        except SystemExit as stop:
            got = stop.code
        out = capsys.readouterr()
        assert (got, said in out.out + out.err) == (status, True), (arguments, out)


def test_explain(capsys):
    assert main(["explain", "64", "64", "64", "-b", "bf16:col"]) == 0
    assert "0x4000004000010000" in capsys.readouterr().out


def test_errors_are_one_line_and_status_2(capsys):
    assert main(["explain", "0", "64", "64"]) == 2
    assert capsys.readouterr().err.startswith("layoutgemm: PlanError: m = 0: a size is 1 to")
    with pytest.raises(SystemExit) as stop:
        main(["explain", "64"])
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "arguments, status, text",
    [
        (["(4,8):(8,1)", "(4,8):(8,2)"], 1, "not equivalent: (0,1) gives 1 and 2"),
        (["(64,M//64):(1,64)", "M:1", "--given", "64 | M"], 0, "given 64 | M:\nproven by coalesced normal form"),
        (["(M,N):(1,ld)", "(M,N):(1,M)", "--given", "ld >= M"], 1, "at M=1, N=2, ld=2: (0,1) gives 2 and 1"),
        (["S<3,4,3> o 0 o (M,64):(64,1)", "(M,64):(64,1)"], 1, "not equivalent at M=3: (2,0) gives 144 and 128"),
        (["S<3,4,3> o 0 o (M,64):(64,1)", "S<3,4,3> o 0 o (M,(8,8)):(64,(1,8))"], 0, "proven"),
        (["S<3,3,3> o 0 o (M,10):(10,1)", "S<2,3,3> o 0 o (M,10):(10,1)", "--given", "M <= 25"], 3, "undecided"),
    ],
)
def test_prove(capsys, arguments, status, text):
    assert main(["prove", *arguments]) == status
    assert text in capsys.readouterr().out


def test_prove_names_missing_facts(capsys):
    assert main(["prove", "(64,M//64):(1,64)", "M:1"]) == 2
    error = capsys.readouterr().err
    assert "needs 64 | M" in error and error.count("\n") == 1


def told(capsys, status, *arguments):
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_prove_for_programs(capsys):
    said = told(capsys, 1, "prove", "(M,N):(1,ld)", "(M,N):(1,M)", "--given", "ld >= M")
    assert (said["verdict"], said["coord"], said["left"], said["right"]) == ("refuted", [0, 1], 2, 1)
    assert said["sizes"] == {"M": 1, "N": 2, "ld": 2}
    assert told(capsys, 0, "prove", "(64,M//64):(1,64)", "M:1", "--given", "64 | M")["verdict"] == "proven"
    hard = ("S<3,3,3> o 0 o (M,10):(10,1)", "S<2,3,3> o 0 o (M,10):(10,1)", "--given", "M <= 25")
    assert told(capsys, 3, "prove", *hard)["verdict"] == "undecided"


def test_demo_for_programs(capsys, tmp_path):
    sizes = ("-m", "65", "-n", "70", "-k", "40")
    said = told(capsys, 0, "demo", *sizes, "--device", "reference", "--svg", str(tmp_path / "map.svg"))
    assert said["ok"] and said["run"]["ran_on"] == "NumPy executor" and said["run"]["share_of_bound"] <= 1
    assert said["plan"]["m"] == 65 and (tmp_path / "map.svg").exists()


def test_tune_for_programs(capsys, monkeypatch):
    tune = importlib.import_module("layoutgemm.torch_op.tuning")
    choice, _ = choose(512, 512, 512)
    found = tune.Tuning(choice, 1e-6, 2e-6, 3e-6, ((choice, 1e-6),), ((choice, "wrong"),), None)
    monkeypatch.setattr(tune, "tune", lambda *sizes, **options: found)
    said = told(capsys, 0, "tune", "512", "512", "512")
    assert (said["fastest"], said["seconds"], said["torch_seconds"]) == (tune.name_of(choice), 1e-6, 3e-6)
    assert said["failed"][0]["why"] == "wrong"


@pytest.mark.parametrize("module", ["layoutgemm", "layoutgemm.cli.main"])
def test_runs_as_a_module(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("layoutgemm ")


# Prints the loaded parts of the package that are not of every command, and libraries that take long to load.
PARTS_LOADED = """
import contextlib, io, sys
from layoutgemm.cli.main import main

with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
parts = {name.split(".")[1] for name in sys.modules if name.startswith("layoutgemm.")}
print(*sorted(parts & {"bench", "checks", "emulator", "kernels", "torch_op"}))
print(*sorted({"cutlass", "jax", "numpy", "sympy", "torch"} & set(sys.modules)))
print(sum(name.startswith("layoutgemm.atoms.") for name in sys.modules))
"""


@pytest.mark.parametrize(("line", "parts", "libraries", "atoms"), [
    ("--help", "", "", 0), ("--version", "", "", 0), ("bench --help", "bench", "", 0),
    ("show (4,8):(8,1)", "", "", 8), ("prove (4,8):(8,1) (4,8):(8,1)", "", "", 8), ("show wgmma:64:bf16:C", "", "", 12),
    ("swizzle (64,64):(64,1)", "checks", "numpy", 12), ("banks --help", "checks", "", 12), ("box 128x64", "", "", 27),
    ("plan 4096 4096 4096", "checks kernels", "numpy", 99),
])  # fmt: skip
def test_a_command_loads_what_it_needs(line, parts, libraries, atoms):
    """Start-up is most of a short command's time: none loads the files of the others."""
    command = [sys.executable, "-c", PARTS_LOADED, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, slow, files = done.stdout.split("\n")[:3]
    assert (loaded, slow) == (parts, libraries) and int(files) <= atoms, done.stdout


def test_a_command_has_its_aliases_and_no_other_is_loaded():
    only = next(a for a in make_parser("explain")._actions if isinstance(a, argparse._SubParsersAction))
    assert "--teaching" in only.choices["plan"].format_help() and only.choices["plan"] is only.choices["explain"]
    assert set(only.choices) == set(subcommands()) and "--svg" not in only.choices["show"].format_help()


def test_no_command_prints_the_help(capsys):
    assert main([]) == 2
    assert "  layoutgemm demo" in capsys.readouterr().out


# Star imports and functions of torch where torch is not: a finder that finds none stands in for a machine without.
WITHOUT_TORCH = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Nothing())
from layoutgemm import *
print(Layout((4, 8)), GemmPlan.__name__, "torch" in sys.modules)
try:
    from layoutgemm import matmul
except ImportError as error:
    print(error.name, error)
import pydoc, layoutgemm
print(hasattr(layoutgemm, "matmul"), "class Layout" in pydoc.render_doc(layoutgemm, renderer=pydoc.plaintext))
try:
    layoutgemm.matmul
except AttributeError as error:
    print(error)
"""


def test_the_package_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    first, second, third, fourth = done.stdout.splitlines()
    assert third == "False True" and fourth.startswith("layoutgemm.matmul needs torch: pip install")
    assert first == "(4,8):(1,4) GemmPlan False"
    assert second.startswith("torch layoutgemm.matmul needs torch: pip install 'layoutgemm[torch]'")


def test_a_misspelt_name_is_nearly_found():
    with pytest.raises(AttributeError) as missing:
        _ = layoutgemm.wgma
    assert (missing.value.name, missing.value.obj) == ("wgma", layoutgemm) and "wgmma" in dir(layoutgemm)


# ------------------------------------------------------------------------------------------------ every subcommand


def subcommands() -> dict[str, argparse.ArgumentParser]:
    found = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def examples() -> list[tuple[str, str]]:
    return [
        (name, line.strip())
        for name, parser in subcommands().items()
        for line in parser.format_help().splitlines()
        if line.startswith(f"  layoutgemm {name} ")
    ]


# What a machine without a GPU cannot run.
NEEDS_GPU = ("tune", "bench")


@pytest.mark.parametrize(("name", "line"), examples())
def test_examples_of_the_helps(name, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.ptx").write_text(PTX)
    (tmp_path / "script.py").write_text("import sys\nassert sys.argv[1:] == ['--mnk', '256,256,64']\n")
    words = shlex.split(line, comments=True)[1:]
    if name in NEEDS_GPU:
        make_parser().parse_args(words)
        return
    status = main(words)
    said = capsys.readouterr()
    told = re.search(r"# status (\d)(.*)", line)
    allowed = {0} if told is None else {0, 1} if " where " in told[2] else {int(told[1])}
    assert status in allowed and not said.err and said.out, (status, said)
    if "--json" in words:
        assert isinstance(json.loads(said.out), dict)


def test_commands_of_the_readme(tmp_path, monkeypatch, capsys):
    """Those that print at once, as they stand there; swizzle, banks and the like say 1 for a negative answer."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^layoutgemm (?:show|swizzle|banks|desc|box|plan|prove) .*$", readme, flags=re.MULTILINE)
    assert len(lines) >= 7
    monkeypatch.chdir(tmp_path)
    for line in lines:
        status = main(shlex.split(line, comments=True)[1:])
        said = capsys.readouterr()
        assert said.out and not said.err and status == int("8-way" in line), line
        assert "8-way" not in line or "gives 8 words" in said.out


def test_every_help_has_an_example():
    without = set(subcommands()) - {name for name, _ in examples()} - {"explain"}
    assert not without


def refusal(capsys, arguments: str) -> str:
    """The one line that a command says when it refuses."""
    try:
        status = main(shlex.split(arguments))
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    assert status == 2, (status, said)
    assert not said.out and said.err.count("\n") == 1, said
    return said.err


@pytest.mark.parametrize(("raised", "said"), [
    (MemoryError("7 TiB"), "not enough memory (7 TiB): try a smaller problem"),
    (ModuleNotFoundError("no torch", name="torch"), "pip install 'layoutgemm[torch]'; layoutgemm doctor"),
])  # fmt: skip
def test_a_missing_package_is_one_line(capsys, monkeypatch, raised, said):
    def lacks(*given):
        raise raised

    monkeypatch.setattr("layoutgemm.cli.prove.stated", lacks)
    assert said in refusal(capsys, "prove M:1 M:1")
    assert said in told(capsys, 2, "prove", "M:1", "M:1")["error"]


@pytest.mark.parametrize(("arguments", "text"), [
    ("prove '(4,8' M:1", "a layout is written '(M,N):(N,1)'"),
    ("prove S<3,3,3> M:1", "write 'S<3,3,3> o 0 o (8,64):(64,1)'"),
    ("tune 64 64 64", "layoutgemm doctor"), ("demo --device cuda", "'emulator' and 'reference' need no GPU"),
    ("emulate --ranks 0 k.py", "'0': write a number from 1"),
    ("emulate --order sideways k.py", "write late, early"),
    ("emulate k.ptx --arg i32=1 --save 1=x.npy", "--save 1: the call has 1 argument(s)"),
    ("emulate k.ptx --save out.npy", "write N=FILE.npy"), ("emulate k.ptx --mutants -3", "'-3': write a number from 1"),
    ("emulate k.ptx --grid x", "write 4 or 4,2,1, x first"), ("nonsense", "see layoutgemm --help"),
    ("shwo S<3,4,3>", "invalid choice: 'shwo'; do you mean 'show'? (choose from"),
    ("desc 128x64 --swizzle 128", "do you mean '128B'? (choose from"),
    ("banks wgmma:64:bf16:C", "wgmma:64:bf16:C is an instruction, held by threads, and shared memory holds tiles"),
    ("plan 64 64 64 --a f8", "it takes no --a f8; do you mean --arch?; see layoutgemm plan --help"),
    ("plan 64 64 64 --tile 64", "do you mean --tile-n or --tile-k?"),
    ("show 4:1 5:1", "layoutgemm show: it takes no 5:1"),
    ("show wgmma.m64n256k16", "an atom wgmma:64:bf16:C"), ("show ldmatrix.x4", "a copy copy:ldmatrix:4"),
    ("show 4:1 --svg /", "--svg / is a folder: name a file in it"),
    ("swizzle schedule:grouped:4:8x8", "is an order of tiles, and shared memory holds tiles"),
    ("prove mma:m16n8k16:bf16 mma:m16n8k16:f16", "'mma:m16n8k16:bf16' is an instruction, held by threads, and no lay"),
    ("prove 4:1 copy:ld:128", "'copy:ld:128' is an instruction"), ("prove 4:1 schedule:linear", "is an order of tiles"),
    ("show -3:1", "extent must be at least 1, not -3"), ("desc -1x64", "'-1x64': a tile is written MNxK"),
    ("box 128x64 --of 256x64 --at -1,0", "--at -1,0: the matrix has tiles 0,0 to 1,0"),
    ("show 4:1 --rows -2:", "'-2:' is not a part: write FROM:TO"), ("show 4:1 -5", "it takes no -5"),
    ("banks (64,64):(64,1) --threads (4,8):(9,1)", "is to number 32 threads 0 to 31, each once"),
    ("show S<4,3,3>", "B = 4 > |S| = 3, so the two fields of bits overlap"),
])  # fmt: skip
def test_refusals(capsys, monkeypatch, arguments, text):
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert text in refusal(capsys, arguments)


def test_the_help_of_all_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "  layoutgemm demo" in capsys.readouterr().out


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 p)
.reqntid 32, 1, 1
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    .reg .f32 %f<2>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.f32 %f1, [%rd2];
    add.f32 %f1, %f1, %f1;
    st.global.f32 [%rd2], %f1;
    ret;
}
"""


def test_a_tile_goes_where_a_layout_goes(capsys):
    tile = "smem:64x64:bf16:K:128B"
    assert main(["prove", "Sw<3,4,3> o smem_ptr[16b](unset) o (64,64):(64,1)", tile]) == 0
    assert main(["prove", tile, "smem:64x64:bf16:K:64B"]) == 1
    assert "not equivalent" in capsys.readouterr().out


def test_a_closed_pipe_is_no_verdict():
    command = [sys.executable, "-m", "layoutgemm", "show", "(64,64):(64,1)", "--rows", "0:64", "--columns", "0:64"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.wait(60) == 141 and child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full: run it on Linux")
@pytest.mark.parametrize("options", ["", "--json"])
def test_output_that_cannot_be_written_is_one_line_and_no_verdict(options):
    line = f"{shlex.quote(sys.executable)} -m layoutgemm show '(4,8):(8,1)' {options}"
    done = subprocess.run(["sh", "-c", f"{line} >/dev/full"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr, done
    done = subprocess.run(["sh", "-c", f"{line} >&-"], capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and done.stderr == "layoutgemm: LayoutError: stdout is closed: there is nowhere to print to\n"
    )


def test_a_file_of_bytes_is_not_ptx(capsys, tmp_path):
    (tmp_path / "k.ptx").write_bytes(b"\x7fELF\x02\xa6")
    assert "k.ptx is not text (byte 5 is 0xa6), and PTX is" in refusal(capsys, f"emulate {tmp_path}/k.ptx")


def completed(script: str, *words: str) -> list[str]:
    """The proposals of bash for the last word."""
    line = " ".join(map(shlex.quote, words))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _layoutgemm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on PATH: install it")
def test_bash_completes_commands_options_and_choices(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "layoutgemm", "s") == ["show", "swizzle"]
    assert completed(script, "layoutgemm", "plan", "--te") == ["--teaching"]
    assert completed(script, "layoutgemm", "explain", "--tile") == ["--tile-n", "--tile-k"]
    assert completed(script, "layoutgemm", "desc", "128x64", "--swizzle", "6") == ["64B"]
    assert completed(script, "layoutgemm", "completion", "f") == ["fish"]
    assert set(completed(script, "layoutgemm", "")) >= set(subcommands())


def test_completion_of_other_shells(capsys):
    assert main(["completion", "zsh"]) == 0 and capsys.readouterr().out.startswith("autoload -Uz bashcompinit")
    script = told(capsys, 0, "completion", "fish")["script"]
    assert "-n __fish_use_subcommand -f -a show -d " in script
    assert "-n '__fish_seen_subcommand_from desc' -l major -x -a 'K MN'" in script
