"""Tables and paragraphs of the documentation, from the records in benchmarks/results and from programs."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs import reference
from layoutgemm import plan
from layoutgemm.arch import arch
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels import AlongK, Combined, IndexedRows, Prologue, Ragged, RowIndices, Sm100Config, Triangles
from layoutgemm.kernels.epilogue.chain import Bias, ColumnGroup, Epilogue, Quantize, RowReduce, Scale
from layoutgemm.kernels.operands.combinations import PARTS, REFUSED
from layoutgemm.kernels.operands.promoted import mainloop_of
from layoutgemm.torch_op.problem import code_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NO_BREAK = "\u00a0x\u00a0"  # sizes stay on one line

__all__ = [
    "account", "ampere_table", "api_table", "architectures_table", "behind", "combinations_table", "counters_table",
    "doors_table", "epilogue_table", "examples_count", "examples_table", "frameworks_table", "functions_table",
    "gated_table",
    "gemm_table", "indexed_table",
    "ladder_chart", "ladder_table", "launch_table", "level", "lines_table", "machine", "measured", "models_table",
    "operands_table", "operators_table", "orders_table", "overlap_table", "programs_table", "quantized_bytes_table",
    "quantized_few_table", "quantized_formats_table", "quantized_table", "reductions_table", "types_table",
    "variants_table",
]  # fmt: skip


# A cell of a column of numbers: "512", "0.98 (1.1)", "4096 x 4096", "-"
_NUMBER = re.compile(r"[-+\d.,()% x\u00a0]*")


@functools.cache
def record(name: str, gpu: str = "h200") -> Any:
    """A record of benchmarks/results, by its name without the GPU's."""
    return json.loads((RESULTS / f"{name}_{gpu}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table: text is aligned to the left, columns of numbers behind the first one to the right.

    >>> print(table(["a", "b", "c"], [["x", "1", "2 races"]]))
    | a | b | c |
    |---|--:|---|
    | x | 1 | 2 races |
    """
    lines = [head, *[[NO_BREAK.join(cell.split(" x ")) for cell in row] for row in rows]]
    columns = [[row[j] for row in rows] for j in range(1, len(head))]
    rule = "|---|" + "".join("--:|" if all(map(_NUMBER.fullmatch, column)) else "---|" for column in columns)
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], rule, *text[1:]])


def machine(name: str, gpu: str = "h200") -> str:
    """One line: the GPU, the versions and the date of a record."""
    found = record(name, gpu)
    facts = found.get("machine") or found.get("facts") or found
    said = [facts["gpu"], f"driver {facts['driver']}", f"CUDA {facts['cuda']}", f"torch {facts['torch']}"]
    for key in ("nvidia-cutlass-dsl", "dsl"):
        said += [f"nvidia-cutlass-dsl {facts[key]}"] if facts.get(key) else []
    said += [f"quack-kernels {facts['quack-kernels']}"] if facts.get("quack-kernels") else []
    return f"*{', '.join(said)}; {facts['date']}. The record: `benchmarks/results/{name}_{gpu}.json`.*"


def gemm_table(name: str = "gemm", gpu: str = "h200") -> str:
    """GEMM against torch.mm and the best peer, as in the README."""
    from benchmarks import tables

    head, rule, *lines = tables.gemm(record(name, gpu))
    return "\n".join([head, rule, *[NO_BREAK.join(line.split(" x ")) for line in lines]])


def behind(family: str) -> str:
    """A sentence: number of GEMM shapes where a peer is faster, and its largest lead."""
    from benchmarks.tables import median

    said = []
    for what in ("burst", "sustained"):
        ratios: dict[str, float] = {}
        for outcome in record("gemm")["outcomes"]:
            timed = [entry for entry in outcome["measured"] if entry[what]]
            ours = [median(entry, what) for entry in timed if entry["family"] == "ours"]
            peers = [median(entry, what) for entry in timed if entry["family"] == family]
            if ours and peers:
                sizes = outcome["problem"]
                ratios[f"{sizes['m']} x {sizes['n']} x {sizes['k']}"] = ours[0] / min(peers)
        faster = [shape for shape, ratio in ratios.items() if ratio > 1]
        worst = max(ratios, key=lambda shape: ratios[shape])
        most = f" (most at {worst}, {ratios[worst] - 1:.1%})" if faster else ""
        load = "in bursts" if what == "burst" else "under sustained load"
        said.append(f"in {len(faster) or 'none'} of {len(ratios)} shapes {load}{most}")
    return f"{family} is faster than this library {' and '.join(said)}."


def ladder_table() -> str:
    """One row per level, linked to its section."""
    rows = []
    for entry in record("ladder")["levels"]:
        page = "" if entry["level"] < 7 else "ladder_persistent.md"
        link = f"[{entry['level']}]({page}#level-{entry['level']}) {entry['name']}"
        guide = "-" if entry["guide"] is None else f"{entry['guide']:.0f}"
        rows.append([link, entry["c"], f"{entry['tflops']:.0f}", f"{entry['ratio']:.3f}", guide])
    return table(["level", "C", "TFLOP/s", "x torch.mm", "the guide's TFLOP/s"], rows)


def ladder_chart() -> str:
    """An SVG chart of the levels' rates, with torch.mm as a line."""
    found = record("ladder")
    entries, base = found["levels"], found["torch_mm"]["tflops"]
    left, width, step, top = 330, 460, 22, 34
    scale = width / 900
    height = top + step * len(entries) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{left + width + 60}" height="{height}" '
        f'viewBox="0 0 {left + width + 60} {height}" font-family="system-ui,sans-serif" font-size="12">',
        f"<title>TFLOP/s of each level at {found['size']}^3, bf16</title>",
        "<style>.paper{fill:#fff}.ink{fill:#111}.base{fill:#b3261e}.rule{stroke:#b3261e}"
        "@media (prefers-color-scheme:dark)"
        "{.paper{fill:#14161a}.ink{fill:#ddd}.base{fill:#f2938c}.rule{stroke:#f2938c}}</style>",
        '<rect width="100%" height="100%" class="paper"/><g class="ink">',
        f'<text x="16" y="20" font-weight="600">TFLOP/s at {found["size"]}^3, bf16, {found["gpu"]}</text>',
    ]
    for i, entry in enumerate(entries):
        y = top + i * step
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{entry["level"]} {entry["name"]}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{entry["tflops"] * scale:.1f}" height="{step - 7}" '
            f'fill="{"#3b6fb6" if entry["tflops"] >= base else "#9db8d9"}"/>'
        )
        # The rates stand in a column of their own: the line of torch.mm would run through those at the bars' ends.
        parts.append(f'<text x="{left + width + 44}" y="{y + 14}" text-anchor="end">{entry["tflops"]:.0f}</text>')
    x, bottom = left + base * scale, top + step * len(entries)
    parts.append(f'<path d="M{x:.1f} {top - 4}V{bottom + 4}" class="rule" stroke-dasharray="4 3" fill="none"/>')
    parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle" class="base">torch.mm {base:.0f}</text>')
    return "\n".join([*parts, "</g></svg>"])


def program(number: int) -> Path:
    """The program of a level of Hopper's ladder."""
    return next((ROOT / "kernels").glob(f"hopper_{number:02}_*.py"))


def docstring(path: Path) -> str:
    """A program's docstring."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def account(name: str, title: str = "") -> str:
    """A program's docstring in a collapsed box, with a link to its source. The title is the program's name."""
    path = ROOT / name
    first, _, rest = docstring(path).partition("\n")
    rest = re.sub(r"^ *python \S+.*\n?|^Needs:.*\n?", "", rest, flags=re.MULTILINE).strip("\n")
    body = f"**{first}**\n\n{rest}".strip()
    inner = "\n".join(f"    {line}".rstrip() for line in body.splitlines())
    return f'??? note "{title or name}"\n\n{inner}\n\n    [The source: {name}]({source_page(name)})'


def source_page(name: str) -> str:
    """The page that shows a program, relative to a page in the site's root.

    >>> source_page("kernels/find_a_race.py")
    'programs/kernels-find_a_race.md'
    """
    return f"programs/{name.removesuffix('.py').replace('/', '-')}.md"


def measured(number: int) -> str:
    """A sentence with a level's rate and gain, from the ladder's record."""
    entries = record("ladder")["levels"]
    mine = [entry for entry in entries if entry["level"] == number]
    before = [entry for entry in entries if entry["level"] == number - 1][-1:]
    said = []
    for entry in mine:
        text = f"**{entry['tflops']:.0f} TFLOP/s**, {entry['ratio']:.3f} of torch.mm"
        said.append(f"{entry['name']}: {text}" if len(mine) > 1 else text)
    gain = mine[-1]["tflops"] / before[0]["tflops"] - 1 if before else 0.0
    against = f"; {gain:+.1%} against level {number - 1}" if before else ""
    guide = mine[-1]["guide"]
    published = f"; the guide's: {guide:.0f}, on an H800" if guide is not None else ""
    return f"{'; '.join(said)}{against}{published}. {mine[-1]['registers']} registers a thread."


def level(number: int) -> str:
    """A level's measurement, its command and its program's docstring."""
    path = program(number).relative_to(ROOT).as_posix()
    return f"{measured(number)}\n\n```sh\npython {path}\n```\n\n{account(path)}"


def counters_table() -> str:
    """Nsight Compute's counters of the first levels."""

    def value(level: dict[str, str], name: str) -> float:
        return float(level[name].split()[0].replace(",", ""))

    columns = {
        "L2 throughput, % of peak": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1, 0),
        "L2 hit rate, %": ("lts__t_sector_hit_rate.pct", 1, 0),
        "GB into SMs": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1e-9, 1),
        "GB from DRAM": ("dram__bytes_read.sum", 1e-9, 1),
        "DRAM, % of peak": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1, 0),
    }
    levels = record("ladder_ncu")["levels"]
    kept = {head: what for head, what in columns.items() if all(what[0] in entry for entry in levels.values())}
    rows = [
        [name.removeprefix("level "), *[f"{value(entry, key) * by:.{digits}f}" for key, by, digits in kept.values()]]
        for name, entry in levels.items()
    ]
    return table(["level", *kept], rows)


def epilogue_table() -> str:
    """Time of each epilogue at 8192^3, relative to the kernel without one."""
    rows = []
    for name, case in record("epilogue")["cases"].items():
        found = case["8192"]
        more = f"{found['extra_bytes'] / 2**20:.0f}" if found["extra_bytes"] else "-"
        rows.append([name, f"{found['time_ratio']:.3f}", more])
    return table(["epilogue", "time, x plain kernel", "extra MiB moved"], rows)


def gated_table() -> str:
    """The gated product's fastest measured tile against torch's three calls."""
    rows = []
    for shape, found in record("gated")["shapes"].items():
        best = min((us, name) for name, us in found.items() if name.startswith("gated"))
        three, alone = found["torch.mm, silu, product"], found["the product alone, torch.mm"]
        times = [f"{us:.0f}" for us in (best[0], alone, three)]
        rows.append([shape.replace("x", " x "), *times, f"{three / best[0]:.2f}"])
    return table(["tokens x H x K", "gated, us", "torch.mm alone", "torch, three calls", "x"], rows)


def combinations_table() -> str:
    """Parts of a Hopper product that no kernel has together, and the reasons."""
    merged: dict[tuple[str, str], list[str]] = {}
    for (first, other), why in REFUSED.items():
        merged.setdefault((other, why), []).append(f"{first} (`{PARTS[first][0]}=`)")
    rows = [[other, ", ".join(parts), why.replace("|", "\\|")] for (other, why), parts in merged.items()]
    return table(["a product with", "takes no", "because"], sorted(rows))


# What comes before the reason of a refusal: the argument, and whose kernel refuses.
_REASON = re.compile(r"^(\w+( = \S+)?: )?(not by the kernel of \w+: )?")


def architectures_table() -> str:
    """Parts of a product by architecture, as `layoutgemm.plan` derives or refuses them."""
    names = ("sm_80", "sm_89", "sm_120a", "sm_90a", "sm_100a")
    rows = []
    for said, asked in _parts_alone().items():
        cells: list[str] = []
        reasons: dict[str, None] = {}
        for name in names:
            try:
                plan(512, 512, 512, **{"b": "bf16:col", "arch": name, **asked})
                cells.append("yes")
            except PlanError as error:
                cells.append("-")
                reasons[_REASON.sub("", str(error)).replace("|", "\\|")] = None
        rows.append([said, *cells, "; ".join(reasons)])
    return table(["part", *names, "because"], rows)


def functions_table() -> str:
    """The torch functions by architecture: what each GPU runs, as the code that launches asks.

    tcgen05 where an Sm100Config asks for it: functions without `config=` have none.
    """
    names = ("sm_80", "sm_86", "sm_89", "sm_120a", "sm_90a", "sm_100a")

    def cells(kind: str, takes_config: bool = True, **asked: object) -> list[str]:  # of inputs of a type
        found = []
        for name in names:
            code = code_of(arch(name).capabilities[0], Sm100Config() if takes_config else None)
            by = {None: "-", "sm_90a": "wgmma", "sm_100a": "tcgen05, asked for"}.get(code, "mma.sync")
            found.append(by if _multiplies(name, kind, asked) else "-")
        return found

    blocks = AlongK.of(8, multiple=128)
    rows = [
        ["`matmul`, `gemm`: bf16, f16, f32 as tf32", *cells("bf16")],
        ["the same of int8 and uint8", *cells("i8")],
        ["the same of float8", *cells("e4m3")],
        ["`quantized_matmul`, `quantized_grouped_matmul`", *cells("bf16", False)],
        ["`grouped_matmul`: bf16, f16", *cells("bf16", ragged=Ragged.of(8), batch=8)],
        ["the same of float8", *cells("e4m3", ragged=Ragged.of(8), batch=8)],
        [
            "`fp8_grouped_matmul` with the gradient of B",
            *cells("e4m3", False, along_k=blocks, batch=8, mainloop=mainloop_of((1, 1))),
        ],
        ["`scaled_matmul`", *cells("e4m3", mainloop=mainloop_of((1, 128)))],
        ["`fp8_matmul`", *cells("e4m3", False, mainloop=mainloop_of((1, 128)))],
    ]
    return table(["torch function", *names], rows)


def _multiplies(name: str, kind: str, asked: Mapping[str, Any]) -> bool:
    """True if `plan` has a kernel of these inputs for an architecture; `asked`: its other arguments."""
    try:
        plan(512, 512, 512, arch=name, a=kind, b=f"{kind}:col", **{"c": None, **asked})
    except LayoutError:
        return False
    return True


def _parts_alone() -> dict[str, dict[str, Any]]:
    gated = Combined.of(lambda g, u, ops: g * ops.sigmoid(g) * u)
    return {
        "epilogue, its reductions": {"epilogue": Epilogue(Bias(), RowReduce("softmax"))},
        "function of neighbouring columns": {"epilogue": Epilogue(ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0])))},
        "C of 8 bits, `Quantize`": {"epilogue": Epilogue(Quantize()), "c": "e4m3"},
        "gate, several B (`gated=`)": {"gated": gated},
        "second pair (`pair=`)": {"pair": 64},
        "function of A (`prologue=`)": {"prologue": Prologue.of(lambda x, i, k, ops: x * 2.0)},
        "some tiles (`order=`)": {"order": "lower"},
        "symmetric (`order=`)": {"order": "symmetric"},
        "triangular operands (`triangles=`)": {"triangles": Triangles("lower")},
        "rows by index (`indexed=`)": {"indexed": IndexedRows(RowIndices(512), RowIndices(512))},
        "groups of rows, masked ones (`ragged=`)": {"ragged": Ragged.of(8), "batch": 8},
        "groups along K (`along_k=`)": {"along_k": AlongK.of(8), "batch": 8, "a": "bf16:col", "b": "bf16"},
        "scales of 128 of K (`mainloop=`)": {
            "a": "e4m3",
            "b": "e4m3:col",
            "c": "bf16",
            "mainloop": mainloop_of((1, 128)),
        },
        "rows copied first": {"indexed": IndexedRows(RowIndices(512), copy=True)},
        "8-bit integers": {"a": "i8", "b": "i8:col", "c": "f32", "epilogue": Epilogue(Scale())},
        "8-bit floats": {"a": "e4m3", "b": "e4m3:col", "c": "bf16"},
        "MXFP8 (`scales=`)": {"a": "e4m3", "b": "e4m3:col", "scales": "mxfp8"},
        "NVFP4, MXFP4 (`scales=`)": {"a": "e2m1", "b": "e2m1:col", "scales": "nvfp4"},
    }


def reductions_table() -> str:
    """Time of each reduction at two sizes, relative to the product without one."""
    costs = record("reductions", "h100")["costs"]
    names = [name for name in next(iter(costs.values())) if name != "plain"]
    rows = [[name, *[f"{found[name] / found['plain']:.3f}" for found in costs.values()]] for name in names]
    return table(["reduction", *[f"M = N = K = {size}" for size in costs]], rows)


def programs_table() -> str:
    """The programs of kernels/variant_*.py, and torch's fastest form of each formula."""
    rows = []
    for name, sizes in record("programs")["programs"].items():
        for found in sizes:
            us = found["us"]
            best = min(value for peer, value in us.items() if peer == "eager" or peer.startswith("torch"))
            times = [f"{us[key]:.1f}" for key in ("ours", "product alone", "eager")]
            ratio = f"{best / us['ours']:.2f}"
            rows.append([name, " x ".join(map(str, found["sizes"])), *times, f"{best:.1f}", ratio])
    head = ["program", "M x N x K", "us", "product alone", "torch, eager", "torch, fastest", "x torch's speed"]
    return table(head, rows)


def orders_table() -> str:
    """Triangular and symmetric products: microseconds, and time relative to the full product."""
    sizes = record("orders", "h100")["sizes"]
    names = {
        "the lower triangle": "lower",
        "A @ A.T, symmetric": "symmetric",
        "A lower triangular": "A lower",
        "A and B lower triangular": "A and B lower",
        "all of C": "full",
        "torch.mm": "torch.mm",
        "torch.compile, (a @ b).tril()": "torch.compile (a @ b).tril()",
    }

    def cell(us: dict[str, float], name: str) -> str:
        best = min(value for key, value in us.items() if key == name or key.startswith(f"{name}, "))
        return f"{best:.1f} ({best / us['full']:.3f})"

    rows = [[said, *[cell(found["us"], name) for found in sizes.values()]] for said, name in names.items()]
    return table(["product", *[f"M = N = K = {size}" for size in sizes]], rows)


def variants_table() -> str:
    """Scaled and grouped products as users call them, beside DeepGEMM and torch's nearest functions."""
    deepgemm = ("deepgemm", "deepgemm pdl")
    peers = {
        "scaled": (*deepgemm, "torch._scaled_mm, blocks", "torch._scaled_mm, rows", "ours of bf16"),
        "grouped": (*deepgemm, "torch._grouped_mm", "a loop of torch.mm"),
        "grouped, scaled": (*deepgemm, "torch._scaled_grouped_mm, rows"),
        "masked": (*deepgemm, "torch._grouped_mm, packed"),
        "masked, scaled": deepgemm,
        "along K": ("torch._grouped_mm", "a loop of torch.mm"),
    }
    rows = []
    for name, found in record("scaled_grouped", "h100")["shapes"].items():
        kind, _, sizes = name.rpartition(" ")
        ours = found["ours"]
        beside = [f"{peer} {found[peer]:.1f} ({found[peer] / ours:.2f})" for peer in peers[kind] if found.get(peer)]
        rows.append([kind, sizes.replace("x", " x "), f"{ours:.1f}", "; ".join(beside)])
    heads = [
        "product",
        "experts x rows x N x K, or M x N x K",
        "us",
        "others, us (ratio: above 1 layoutgemm is faster)",
    ]
    return table(heads, rows)


def operands_table() -> str:
    """Functions of several products in the chosen tile, beside torch.compile in both forms."""
    from benchmarks.bench_operands import ratio

    said = {"silu": "silu(p) q", "blend": "p + 0.5 q", "four": "max(p q - r s, 0)"}
    rows = []
    for row in record("operands", "h100")["times"]:
        us = row["us"]
        times = [f"{us[name]:.1f}" for name in ("ours", "torch.compile", "torch.compile, f32")]
        rows.append([said[row["formula"]], " x ".join(map(str, row["size"])), *times, f"{ratio(us):.3f}"])
    heads = ["function", "M x N x K", "us", "torch.compile, us", "torch.compile, f32, us", "faster torch / layoutgemm"]
    return table(heads, rows)


def frameworks_table() -> str:
    """Torch's time over ours for each door and number of rows."""
    times = record("frameworks", "h200")["us"]
    compiled = record("frameworks", "h100")["us"]
    times |= {name: found for name, found in compiled.items() if name.startswith("inductor")}
    sizes = list(dict.fromkeys(size for found in times.values() for size in found))
    rows = [
        [name, *[f"{us['torch'] / us['layoutgemm']:.3f}" if (us := found.get(size)) else "-" for size in sizes]]
        for name, found in sorted(times.items(), key=lambda item: item[0].partition(", ")[2])
    ]
    return table(["door, model", *[f"{size.partition('x')[0]} rows" for size in sizes]], rows)


def doors_table() -> str:
    """Experts and products of JAX: us of ours, and the framework's own time over it."""
    rows = []
    for line in record("doors")["lines"]:
        (_, theirs), (_, own) = line["us"].items()
        rows.append([line["door"], line["size"].replace("x", " x "), f"{own:.0f}", f"{theirs / own:.3f}"])
    return table(["door", "size", "us", "the framework's own / layoutgemm"], rows)


def operators_table() -> str:
    """Products through the Operator API: ours, and the times of NVIDIA's fastest operator and of torch over it."""
    rows = []
    for found in record("operators")["cases"]:
        us, hosts, theirs = found["us"], found["host us"], found["theirs"]
        own = us["layoutgemm"]
        peers = [f"{us[name] / own:.2f}" for name in (theirs, "torch")]
        rows.append([found["case"], f"{own:.1f}", *peers, f"{hosts['layoutgemm']:.0f}, {hosts[theirs]:.0f}"])
    return table(["product", "us", "NVIDIA's fastest, x ours", "torch, x ours", "host us, ours and theirs"], rows)


def models_table(name: str, gpu: str = "h100") -> str:
    """A model's steps in each mode: milliseconds of ours, and torch's time over it."""
    figures = record(name, gpu)["figures"]
    modes = list(dict.fromkeys(found["mode"] for found in figures))
    steps: dict[tuple[str, str], dict[str, Any]] = {}
    for found in figures:
        steps.setdefault((f"{found['model']}, {found['step']}", found["shape"]), {})[found["mode"]] = found
    rows = []
    for (step, tokens), by_mode in steps.items():
        cells = [(f"{by_mode[mode]['ours_ms']:.3f}", f"{by_mode[mode]['ratio']:.3f}") for mode in modes]
        rows.append([step, tokens, *[text for pair in cells for text in pair]])
    head = [text for mode in modes for text in (f"{mode}, ms", f"x torch, {mode}")]
    return table(["model, step", "tokens", *head], rows)


def quantized_table(name: str = "quantized", gpu: str = "h200", weights: str = "int4 g128") -> str:
    """Packed weights of a format: time, and its ratio to reading them, to bf16, and to the best peer."""
    rows = []
    for row in record(name, gpu)["rows"]:
        if row["format"] != weights or row["rows"] in (4, 8):  # between the others
            continue
        times = row["us"]
        us = times[row.get("chosen", "default")]
        reading = f"{us / row['ideal us']:.2f}" if row["rows"] <= 64 else "-"  # more rows compute, rather than read
        peers = {"quack gemm_w4a16": "quack", "_weight_int4pack_mm": "int4pack", "torch.mm": "torch.mm"}
        best, peer = min((times[each], said) for each, said in peers.items() if each in times)
        sizes = f"{row['rows']} x {row['n']} x {row['k']}"
        bf16 = f"{times['bf16 matmul'] / us:.2f}"
        rows.append([sizes, f"{us:.1f}" + r"\*" * ("differs" in row), reading, bf16, f"{best / us:.2f}, {peer}"])
    head = ["M x N x K", "us", "time, x reading", "speed, x bf16 matmul", "speed, x best peer"]
    return table(head, rows)


def quantized_few_table() -> str:
    """Packed int4 weights as chosen, up to 64 rows: us, and the time relative to reading the weights."""
    found: dict[str, dict[int, str]] = {}
    for row in record("quantized_few")["rows"]:
        us = row["us"][row.get("chosen", "default")]
        found.setdefault(f"{row['n']} x {row['k']}", {})[row["rows"]] = f"{us:.1f} ({us / row['ideal us']:.2f})"
    rows = sorted(set().union(*found.values()))
    head = ["weights", f"M = {rows[0]}, us (x reading)", *[f"M = {m}" for m in rows[1:]]]
    return table(head, [[size, *[cells[m] for m in rows]] for size, cells in found.items()])


def quantized_bytes_table() -> str:
    """Weights of 8 bits as chosen: us, and its ratio to reading; of more rows, the speed relative to bf16 weights."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for row in record("quantized_bytes")["rows"]:
        us = row["us"][row.get("chosen", "default")]
        dense = [row["us"][name] for name in ("bf16 matmul", "torch.mm") if name in row["us"]]
        ratio = us / row["ideal us"] if row["rows"] <= 16 else min(dense) / us
        cells = found.setdefault((row["format"], f"{row['n']} x {row['k']}"), {})
        cells[row["rows"]] = f"{us:.{us < 100:d}f} ({ratio:.2f})"
    counts = sorted({rows for cells in found.values() for rows in cells})
    head = ["weights", "N x K", *[f"M = {rows}" for rows in counts]]
    lines = sorted(found.items(), key=lambda line: line[0][0])  # sizes as in the record
    return table(head, [[*names, *[cells.get(rows, "-") for rows in counts]] for names, cells in lines])


def quantized_formats_table() -> str:
    """Formats of packed weights of 8192 x 8192: time, and its ratio to reading the weights."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for row in record("quantized")["rows"]:
        if (row["n"], row["k"]) == (8192, 8192) and row["rows"] in (1, 16, 4096):
            found.setdefault(row["format"], {})[row["rows"]] = row["us"]["default"], row["ideal us"]
    rows = [
        [name, *[f"{us[m][0]:.1f} ({us[m][0] / us[m][1]:.2f})" for m in (1, 16)], f"{us[4096][0]:.0f}"]
        for name, us in found.items()
    ]
    return table(["weights of 8192 x 8192", "M = 1, us (x reading)", "M = 16", "M = 4096, us"], rows)


def overlap_table(name: str, gpu: str = "h200") -> str:
    """Products that overlap with communication, beside the product alone and the best peer."""
    found = record(name, gpu)
    rows = []
    for case, times in found["us"].items():
        peers = [
            (us, peer) for peer, us in times.items() if ("NCCL" in peer or "symm" in peer) and us.__class__ is float
        ]
        if not peers or "product alone" not in times:
            continue
        what, _, sizes = case.rpartition(" ")
        us, (best, peer) = times["ours"], min(peers)
        said = f"{best:.0f}, {'NCCL' if 'NCCL' in peer else 'symm_mem'}"
        alone = f"{us / times['product alone']:.2f}"
        rows.append([f"{what}, {sizes.replace('x', ' x ')}", f"{us:.0f}", alone, said, f"{best / us:.2f}"])
    head = [
        f"M x N x K of all {found['ranks']} GPUs",
        "us",
        "time, x product alone",
        "best peer, us",
        "speed, x best peer",
    ]
    return table(head, rows)


def api_table() -> str:
    """The API pages, with the objects of each."""
    rows = []
    for page in sorted(reference.API.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        names = ", ".join(f"`{name}`" for _, name, _ in reference.entries(text) if "." not in name)
        if names:
            rows.append([f"[{text.partition(chr(10))[0].lstrip('# ')}]({page.name})", names])
    return table(["page", "names"], rows)


def types_table() -> str:
    """The fastest measured tile of other types against torch: ratio of times, and TOP/s."""
    found: dict[str, dict[str, str]] = {}
    for case in record("types")["cases"]:
        pair, _, shape = case["case"].rpartition(" ")
        ours = min(us for name, us in case["us"].items() if name.startswith("ours"))
        m, n, k = case["sizes"]
        base = case["us"].get("torch")
        rate = 2 * m * n * k / ours / 1e6
        found.setdefault(pair, {})[shape] = f"{base / ours:.3f} ({rate:.0f})" if base else f"- ({rate:.0f})"
    shapes = list(next(iter(found.values())))
    rows = [[pair, *[cells.get(shape, "-") for shape in shapes]] for pair, cells in found.items()]
    return table(["A x B", *shapes], rows)


def ampere_table() -> str:
    """The mma.sync kernels: every contender, bursts and sustained."""
    found = record("ampere")
    shapes = [name for name in found if name != "facts"]
    contenders = list(dict.fromkeys(name for shape in shapes for name in found[shape]))

    def cell(shape: str, name: str) -> str:
        case = found[shape].get(name)
        if case is None or case.get("fault"):
            return "-"
        m, n, k = map(int, shape.split("x"))
        held = case.get("sustained_us")
        return f"{case['tflops']:.0f}" + (f" ({2 * m * n * k / held / 1e6:.0f})" if held else "")

    return table(["contender", *shapes], [[name, *[cell(shape, name) for shape in shapes]] for name in contenders])


def indexed_table() -> str:
    """Rows by index: microseconds, and those of a copy and a product."""
    names = ("gather", "scatter", "gather, scatter, factors", "rows in order", "index_select, ours",
             "index_select, torch", "ours, index_copy_")  # fmt: skip
    found = record("indexed", "h100")["us"]
    rows = [[shape, *[f"{us[name]:.1f}" if name in us else "-" for name in names]] for shape, us in found.items()]
    return table(["product", *names], rows)


def launch_table() -> str:
    """Host time of a call."""
    found = record("launch")["seconds"]
    return table(["call", "us"], [[name, f"{s * 1e6:.1f}"] for name, s in found.items()])


def examples_table(source: str = "") -> str:
    """Other people's kernels on an emulated GPU, or those whose script matches: the outcome of each run."""
    from benchmarks.run_examples import RECORD, examples, judged

    found = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = []
    for one in examples():
        if (done := found.get(one.name)) is None or not re.search(source, f"{one.source} {one.script}"):
            continue
        kinds: dict[str, int] = {}
        for finding in done["findings"]:
            kinds[finding["kind"]] = kinds.get(finding["kind"], 0) + 1
        why = one.defect if done["state"] == "defect" else one.reason
        said = (why or done["error"]) if done["status"] != 0 else done["skipped"]
        found_kinds = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        notes = [
            one.cut and f"left out: {one.cut}",
            found_kinds,
            _plain(judged(one, done["findings"])),
            _plain(said)[:160],
        ]
        call = " ".join(one.name.split()[1:]).replace("*", " ")
        launches = str(done["launches"])
        state = f"{done['state']}, {done['build']}"
        rows.append([f"`{call}`", one.arch, launches, state, f"{done['seconds']:.0f}", "; ".join(filter(None, notes))])
    head = ["script and arguments", "GPU", "launches", "outcome, commit", "s", "findings, judgement, or stop"]
    return table(head, rows)


def _plain(text: str) -> str:
    """Text without the characters that Markdown reads."""
    return re.sub(r"[|<>`*_\\]", " ", text)


def examples_count(source: str = "") -> str:
    """The number of listed runs, and the recorded ones by commit and outcome."""
    from benchmarks.run_examples import RECORD, STATES, examples

    found = json.loads(RECORD.read_text(encoding="utf-8"))
    names = [one.name for one in examples() if re.search(source, one.source)]
    done = [found[name] for name in names if name in found]
    rows = []
    for build in dict.fromkeys(row["build"] for row in done):
        own = [row["state"] for row in done if row["build"] == build]
        rows.append([build, str(len(own)), *[str(own.count(state)) for state in STATES]])
    every = [row["state"] for row in done]
    ended = sum(every.count(state) for state in ("right", "unchecked", "launched nothing"))
    said = f"{len(names)} runs are listed; {ended} ended as the script wants, and {every.count('defect')} met a defect."
    return f"{said}\n\n" + table(["commit", "runs", *STATES], rows)


def lines_table() -> str:
    """Times of unaligned rows read in place, copied first, and by torch."""
    rows = []
    for row in record("lines")["rows"]:
        us = row["us"]
        if "torch" in us and len(us) > 1:
            size = " x ".join(map(str, row["size"]))
            which = f"{row['bytes']}, {'A and B' if row['both'] else 'A'}"
            times = [f"{us[key]:.1f}" if key in us else "-" for key in ("in place", "copied", "torch")]
            rows.append([size, which, *times])
    return table(["M x N x K", "rows aligned to, bytes", "in place, us", "copied, us", "torch, us"], rows)


def plain(markdown: str) -> str:
    """A Markdown file of the repository as part of a page.

    >>> plain("# T\\n\\nsee [x](results/a.json) and [y](https://example.org)\\n")
    'see x and [y](https://example.org)\\n'
    """
    body = markdown.partition("\n")[2].lstrip("\n")
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", body)
