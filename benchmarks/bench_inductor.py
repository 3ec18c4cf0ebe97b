"""A Llama and a BERT of transformers, unchanged, compiled by Inductor.

Inductor makes its own choice, then chooses with layoutgemm registered.

    python benchmarks/bench_inductor.py --json FILE --models llama      # on a GPU, about two minutes a model
    python benchmarks/bench_inductor.py --steps train                   # those steps alone
    python benchmarks/bench_inductor.py --mode default                  # without autotuning: about 20 s a step
    python benchmarks/bench_inductor.py --tiny                          # anywhere: small sizes, no autotuning

Weights are random. Each model is compiled twice with fullgraph=True, so that a graph break is an error: as torch has
it, and inside `layoutgemm.inductor.register()`. Inference is timed launched by the host ("inductor"), and captured in a
CUDA graph ("graph"). Lines are those of `bench_models`: both times, their ratio, and the distance of each from a
float32 model. Behind them stands what was rewritten. The exit status is 1 for a result further off than `bench_models`
allows.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch

from benchmarks import needs
from benchmarks.bench_models import (
    HEAD,
    Figure,
    Step,
    captured,
    distance,
    machine_of,
    medians,
    model_of,
    no_transformers,
    result,
    work,
)
from layoutgemm import inductor

MODE = "max-autotune-no-cudagraphs"
STEPS = {
    "llama": (Step("prefill", 4, 512), Step("decode", 16, 1), Step("train", 2, 1024, True)),
    "encoder": (Step("forward", 8, 512), Step("odd", 3, 77), Step("train", 8, 512, True)),
}
TINY_STEPS = (Step("forward", 3, 16), Step("train", 3, 16, True))
DEVICES = ("cuda", "cpu")


def encoder(tiny: bool) -> torch.nn.Module:
    """A BERT with random weights, float32, without dropout."""
    import transformers

    torch.manual_seed(0)
    hidden, inner, layers, heads, words = (64, 128, 2, 4, 256) if tiny else (1024, 4096, 4, 16, 30522)
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
            vocab_size=words, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def made(name: str, tiny: bool) -> torch.nn.Module:
    """A model of float32."""
    return encoder(tiny) if name == "encoder" else model_of(name, tiny)


def own_code(model: torch.nn.Module) -> Callable[..., Any]:
    """A call of a model by a code object of its own. Dynamo keeps what it compiled by code, not by module.

    >>> own_code(torch.nn.Identity())(3)
    3
    """
    names: dict[str, Any] = {"model": model}
    exec("def call(*given, **named):\n    return model(*given, **named)", names)
    call: Callable[..., Any] = names["call"]
    return call


def figures(
    name: str,
    steps: Sequence[Step],
    tiny: bool,
    rounds: int,
    device: str,
    say: Callable[[str], object] = print,
    mode: str = MODE,
) -> tuple[list[Figure], dict[str, str]]:
    """The figures of a model, and what was rewritten, by step."""
    exact = made(name, tiny).to(device)
    theirs = copy.deepcopy(exact)
    for parameter in theirs.parameters():  # buffers of positions stay float32, as transformers has them
        parameter.data = parameter.data.to(torch.bfloat16)
    ours, found, reports = copy.deepcopy(theirs), [], {}
    for step in steps:
        for model in (exact, theirs, ours):
            model.train(step.train)
        generator = torch.Generator().manual_seed(step.sequences * step.tokens)
        words = torch.randint(0, exact.config.vocab_size, (step.sequences, step.tokens), generator=generator).to(device)
        want = result(exact, step, work(exact, exact, step, words))
        torch._dynamo.reset()
        mode = "default" if tiny else mode
        runs = {
            "torch": work(theirs, torch.compile(own_code(theirs), fullgraph=True, mode=mode), step, words),
            "ours": work(ours, torch.compile(own_code(ours), fullgraph=True, mode=mode), step, words),
        }
        off = {"torch": distance(result(theirs, step, runs["torch"]), want)}
        with inductor.register(devices=DEVICES) as registered:
            off["ours"] = distance(result(ours, step, runs["ours"]), want)
        ways = {"inductor": runs}
        if device == "cuda" and not step.train:  # launches by the host bound a step of few tokens
            ways["graph"] = {who: captured(run) for who, run in runs.items()}
        for way, each in ways.items():
            ms = {who: value * 1e3 for who, value in medians(each, rounds, device == "cuda").items()}
            figure = Figure(name, step.name, step.shape, way, ms["torch"], ms["ours"], off["ours"], off["torch"])
            say(figure.line())
            found.append(figure)
        reports[f"{name} {step.name} {step.shape}"] = str(registered)
    return found, reports


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without transformers, or without a GPU unless --tiny."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(STEPS), help="of llama, encoder")
    parser.add_argument("--tiny", action="store_true", help="small models; without a GPU on the CPU")
    parser.add_argument("--steps", default="", help="names of steps, of prefill, decode, forward, odd, train; all")
    parser.add_argument("--mode", default=MODE, help=f"torch.compile's, {MODE}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(None if options.tiny else needs.no_gpu(), no_transformers()):
        return status
    on_gpu = torch.cuda.is_available()
    facts = machine_of(on_gpu)
    print(facts)
    print(HEAD, flush=True)
    record: dict[str, Any] = {"machine": facts, "tiny": options.tiny, "mode": options.mode}
    record.update(rounds=options.rounds, figures=[])
    right = True
    for name in options.models.split(","):
        all_steps = TINY_STEPS if options.tiny else STEPS[name]
        steps = tuple(step for step in all_steps if step.name in options.steps.split(",") or not options.steps)
        found, reports = figures(
            name, steps, options.tiny, options.rounds, "cuda" if on_gpu else "cpu", mode=options.mode
        )
        right = right and all(figure.right for figure in found)
        record["figures"] += [one.recorded for one in found]
        record.setdefault("rewritten", {}).update(reports)
        for step, report in reports.items():
            print(f"{step}:\n{report}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
