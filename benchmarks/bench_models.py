"""Models of transformers, a Llama and a Mixtral, by our products and by torch's.

    python benchmarks/bench_models.py --json models.json        # on a GPU
    python benchmarks/bench_models.py --packed --models llama --json packed.json    # linear layers of int4 weights
    python benchmarks/bench_models.py --tiny                    # anywhere: small sizes, which times say nothing about

Weights are random, and nothing is downloaded. One line a figure: model, step, tokens, mode, both times in ms, torch's
time over ours, and how far each one's result is from a float32 model.

    step      prefill and odd: logits of whole sequences; decode: of one token of each, without a cache; train: loss and
              gradients
    mode      eager; graph: the same launches captured in a CUDA graph; compiled: torch.compile(fullgraph=True)
    off       norm of the difference to the float32 model's logits, or gradients, over the norm of those

Both models have the same weights. In ours every torch.nn.Linear multiplies by `matmul`, and the experts by
`grouped_matmul` with offsets that stay on the device. torch's experts are transformers' "grouped_mm". Each round runs
both models in an order drawn anew, and times are medians of the rounds.

With `--packed` our linear layers but the last are `swap_linears`', of int4 in groups of 128; torch's have the same
weights in bfloat16, and the float32 model too.

A result is wrong where `off` is more than 1.5 times torch's and 2**-8, bfloat16's unit roundoff. Then the exit status
is 1.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import platform
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs

if importlib.util.find_spec("torch") is None:
    raise SystemExit(needs.refused("torch is not installed: pip install 'layoutgemm[dsl,torch]'"))

import torch

from layoutgemm import QuantizedFormat, grouped_matmul, matmul
from layoutgemm.bench import machine
from layoutgemm.nn import QuantizedLinear, swap_linears

Run = Callable[[], Any]
MODELS = ("llama", "mixtral")
MODES = ("eager", "graph", "compiled")
BEYOND_TORCH, ROUNDOFF = 1.5, 2.0**-8
GRADIENTS = 1 << 20  # elements of a parameter's gradient that are compared


class Step(NamedTuple):
    """A step to time: sequences, tokens of each, and whether gradients are computed."""

    name: str
    sequences: int
    tokens: int
    train: bool = False

    @property
    def shape(self) -> str:
        return f"{self.sequences}x{self.tokens}"


STEPS = (
    Step("prefill", 1, 4096), Step("prefill", 4, 512), Step("odd", 3, 77), Step("decode", 16, 1), Step("decode", 64, 1),
    Step("train", 2, 1024, True), Step("train", 3, 77, True),
)  # fmt: skip
PACKED_STEPS = (
    Step("decode", 1, 1), Step("decode", 4, 1), Step("decode", 16, 1), Step("decode", 64, 1), Step("prefill", 1, 4096),
)  # fmt: skip
TINY_STEPS = (Step("prefill", 2, 24), Step("odd", 3, 7), Step("decode", 4, 1), Step("train", 3, 7, True))


class Figure(NamedTuple):
    """A line of the table. Times in ms; `off` is our distance to the float32 model, `torch_off` torch's."""

    model: str
    step: str
    shape: str
    mode: str
    torch_ms: float
    ours_ms: float
    off: float
    torch_off: float

    @property
    def ratio(self) -> float:
        return self.torch_ms / self.ours_ms

    @property
    def right(self) -> bool:
        return self.off <= BEYOND_TORCH * self.torch_off + ROUNDOFF

    @property
    def recorded(self) -> dict[str, Any]:
        return {**self._asdict(), "ratio": self.ratio, "right": self.right}

    def line(self) -> str:
        wrong = "" if self.right else "  WRONG"
        return (
            f"{self.model:<8} {self.step:<8} {self.shape:>7} {self.mode:<9} {self.torch_ms:>10.3f} "
            f"{self.ours_ms:>10.3f} {self.ratio:>7.3f}  {self.off:.2e}  {self.torch_off:.2e}{wrong}"
        )


TIMES = f"{'torch ms':>10} {'ours ms':>10} {'ratio':>7}"
HEAD = f"{'model':<8} {'step':<8} {'tokens':>7} {'mode':<9} {TIMES}  {'off':<8}  torch's"

# --------------------------------------------------------------------------------------------------------------- layers


class Linear(torch.nn.Linear):
    """A linear layer by `matmul`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return matmul(input, self.weight.t(), bias=self.bias)


def experts_forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Experts by `grouped_matmul`: rows sorted by expert, and offsets that the host never reads."""
    tokens, chosen = top_k_index.shape
    sorted_experts, order = top_k_index.flatten().sort()
    bounds = torch.arange(self.num_experts + 1, device=sorted_experts.device)
    offsets = torch.searchsorted(sorted_experts, bounds, out_int32=True)
    rows = hidden_states[order // chosen]
    gate, up = grouped_matmul(rows, self.gate_up_proj.mT, offsets).chunk(2, dim=-1)
    out = grouped_matmul(self.act_fn(gate) * up, self.down_proj.mT, offsets)
    out = out * top_k_weights.flatten()[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out[back].view(tokens, chosen, -1).sum(dim=1).to(hidden_states.dtype)


def with_our_layers(model: torch.nn.Module) -> int:
    """Have linear layers and experts multiply by this library. Returns the number of layers that now do."""
    count = 0
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Linear
        elif hasattr(module, "gate_up_proj") and hasattr(module, "num_experts"):
            kind = type(module)
            module.__class__ = type(f"Our{kind.__name__}", (kind,), {"forward": experts_forward})
        else:
            continue
        count += 1
    return count


def with_packed_layers(model: torch.nn.Module, others: Sequence[torch.nn.Module]) -> int:
    """Pack the linear layers but the last, and give other models the same weights. Returns the number of layers
    packed."""
    weights = QuantizedFormat("int4", 128)
    swaps = swap_linears(model, where=lambda name, _: not name.endswith("lm_head"), weights=weights)
    packed = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)]
    for name, layer in packed:
        for other in others:
            weight = other.get_submodule(name).weight
            weight.data = layer.weight.dense(torch.float32).to(torch.bfloat16).to(weight.dtype)
    assert len(packed) == len(swaps.replaced)
    return len(packed)


def model_of(name: str, tiny: bool, seed: int = 0) -> torch.nn.Module:
    """A model of transformers of float32, with random weights."""
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2} if tiny else {}
    torch.manual_seed(seed)
    if name == "llama":
        sizes = (64, 128, 2, 256) if tiny else (4096, 14336, 4, 32000)
        hidden, inner, layers, words = sizes
        heads = heads or {"num_attention_heads": 32, "num_key_value_heads": 8}
        config = transformers.LlamaConfig(
            hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, vocab_size=words,
            max_position_embeddings=8192, **heads,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)
    hidden, inner, layers, words, experts, chosen = (64, 48, 2, 256, 4, 2) if tiny else (2048, 1024, 4, 32000, 64, 8)
    heads = heads or {"num_attention_heads": 16, "num_key_value_heads": 4}
    config = transformers.MixtralConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, vocab_size=words,
        num_local_experts=experts, num_experts_per_tok=chosen, max_position_embeddings=8192, **heads,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("grouped_mm")
    return model


# ------------------------------------------------------------------------------------------------------------ measuring


def work(model: Any, forward: Callable[..., Any], step: Step, words: torch.Tensor) -> Run:
    """One run of a step: logits, or the loss with new gradients."""
    if not step.train:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                logits: torch.Tensor = forward(words, use_cache=False).logits
            return logits

        return infer

    def train() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss: torch.Tensor = forward(words, labels=words, use_cache=False).loss
        loss.backward()
        return loss

    return train


def result(model: Any, step: Step, run: Run) -> list[torch.Tensor]:
    """Results of a step as float32: logits, or the first elements of each parameter's gradient."""
    value = run()
    if not step.train:
        return [value.detach().float()]
    found = [p.grad.flatten()[:GRADIENTS].float() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def distance(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The norm of the difference of two lists of tensors, over the second's norm.

    >>> distance([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 0.0])])
    1.3333333333333333
    """
    if len(got) != len(want):
        return float("inf")
    off = sum(float((x - y).double().square().sum()) for x, y in zip(got, want))
    return float((off / sum(float(y.double().square().sum()) for y in want)) ** 0.5)


def captured(run: Run) -> Run:
    """The launches of a run as a CUDA graph. A host that waits for the GPU would be refused."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return value

    return replay


def in_mode(model: Any, step: Step, words: torch.Tensor, mode: str, backend: str) -> Run:
    """A step's run in a mode."""
    forward = torch.compile(model, fullgraph=True, backend=backend) if mode == "compiled" else model
    run = work(model, forward, step, words)
    return captured(run) if mode == "graph" else run


def seconds(run: Run, times: int, on_gpu: bool) -> float:
    """Seconds per run of several in a row."""
    if not on_gpu:
        start = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - start) / times
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / times


def medians(runs: dict[str, Run], rounds: int, on_gpu: bool) -> dict[str, float]:
    """Median seconds of each contender, in an order drawn anew each round."""
    rng = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    times = 1
    for run in runs.values():  # warm, and long enough to time: 20 ms
        run()
        if on_gpu:
            times = max(times, min(200, int(0.02 / max(seconds(run, 2, on_gpu), 1e-6)) + 1))
    for _ in range(rounds):
        for name in rng.sample(list(runs), len(runs)):
            samples[name].append(seconds(runs[name], times, on_gpu))
    return {name: statistics.median(values) for name, values in samples.items()}


def figures(
    name: str, steps: Sequence[Step], modes: Sequence[str], tiny: bool, rounds: int, device: str, backend: str,
    say: Callable[[str], object] = print, packed: bool = False,
) -> list[Figure]:  # fmt: skip
    """The figures of a model, each said as soon as it is measured."""
    exact = model_of(name, tiny).to(device)
    theirs = copy.deepcopy(exact)
    for parameter in theirs.parameters():  # buffers of positions stay float32, as transformers has them
        parameter.data = parameter.data.to(torch.bfloat16)
    ours = copy.deepcopy(theirs)
    assert (with_packed_layers(ours, (exact, theirs)) if packed else with_our_layers(ours)) > 0
    found = []
    for step in steps:
        for model in (exact, theirs, ours):
            model.train(step.train)
        generator = torch.Generator().manual_seed(step.sequences * step.tokens)
        words = torch.randint(0, exact.config.vocab_size, (step.sequences, step.tokens), generator=generator).to(device)
        want = result(exact, step, work(exact, exact, step, words))
        for mode in modes:
            torch._dynamo.reset()
            runs, off = {}, {}
            for who, model in (("torch", theirs), ("ours", ours)):
                runs[who] = in_mode(model, step, words, mode, backend)
                off[who] = distance(result(model, step, runs[who]), want)
            times = medians(runs, rounds, device == "cuda")
            ms = {who: value * 1e3 for who, value in times.items()}
            figure = Figure(name, step.name, step.shape, mode, ms["torch"], ms["ours"], off["ours"], off["torch"])
            say(figure.line())
            found.append(figure)
    return found


def no_transformers() -> str | None:
    """The reason why there are no models, or None."""
    found = importlib.util.find_spec("transformers") is not None
    return None if found else "transformers is not installed: pip install 'layoutgemm[bench-models]'"


def machine_of(on_gpu: bool) -> dict[str, Any]:
    """The machine and the versions of a record; a warning of theirs is left out."""
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    facts = machine.facts() if on_gpu else {"gpu": None, "cpu": platform.processor(), "torch": torch.__version__}
    return {**facts, "transformers": machine.version("transformers")}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without transformers, or without a GPU unless --tiny."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help="of llama, mixtral")
    parser.add_argument("--modes", default=",".join(MODES), help="of eager, graph, compiled")
    parser.add_argument("--tiny", action="store_true", help="small models; without a GPU on the CPU")
    parser.add_argument("--packed", action="store_true", help="linear layers of int4 weights, without training")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(None if options.tiny else needs.no_gpu(), no_transformers()):
        return status
    on_gpu = torch.cuda.is_available()
    modes = [mode for mode in options.modes.split(",") if on_gpu or mode != "graph"]
    facts = machine_of(on_gpu)
    print(facts)
    print(HEAD)
    found: list[Figure] = []
    for name in options.models.split(","):
        # without a GPU nothing is worth compiling: the graphs run as they were traced
        where = ("cuda", "inductor") if on_gpu else ("cpu", "aot_eager")
        steps: Sequence[Step] = TINY_STEPS if options.tiny else PACKED_STEPS if options.packed else STEPS
        steps = [step for step in steps if not (options.packed and step.train)]
        found += figures(name, steps, modes, options.tiny, options.rounds, *where, packed=options.packed)
    if options.json:
        rows = [figure.recorded for figure in found]
        asked = {"tiny": options.tiny, "packed": options.packed, "rounds": options.rounds}
        record = {"machine": facts, **asked, "figures": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    least = min(found, key=lambda figure: figure.ratio)
    print(f"least: {least.ratio:.3f}, {least.model} {least.step} {least.shape} {least.mode}")
    return 0 if all(figure.right for figure in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
