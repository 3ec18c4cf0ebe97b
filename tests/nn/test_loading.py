"""Models from safetensors: shards, packed layers, ties, and refusals before anything changes."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")
save_file = needs.module("safetensors.torch").save_file

from layoutgemm.errors import OperandError, TensorError
from layoutgemm.nn import Checkpoint, QuantizedLinear, ScaledLinear, load_checkpoint, swap_linears
from layoutgemm.nn.checkpoint import INDEX

BF16 = torch.bfloat16


def write(path: Path, tensors: Mapping[str, Any]) -> None:
    save_file({name: x.contiguous() for name, x in tensors.items()}, path)


def sharded(path: Path, *shards: Mapping[str, Any], config: object = None) -> Path:
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, tensors in zip(files, shards, strict=True):
        write(path / file, tensors)
    places = {name: file for file, tensors in zip(files, shards, strict=True) for name in tensors}
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    if config is not None:
        (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    return path


class Model(torch.nn.Module):
    """An embedding, two layers, and a head that is tied to the embedding."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 128, dtype=BF16)
        self.up = torch.nn.Linear(128, 64, bias=False, dtype=BF16)
        self.down = torch.nn.Linear(64, 128, dtype=BF16)
        self.norm = torch.nn.LayerNorm(128, dtype=BF16)
        self.head = torch.nn.Linear(128, 8, bias=False, dtype=BF16)
        self.register_buffer("places", torch.arange(3.0), persistent=False)
        if tied:
            self.head.weight = self.embed.weight


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def dense() -> dict[str, Any]:
    return {
        "embed.weight": normal(8, 128), "down.weight": normal(128, 64), "down.bias": normal(128),
        "norm.weight": normal(128), "norm.bias": normal(128),
    }  # fmt: skip


def packed(front: str, n: int = 64, k: int = 128, group: int = 64, seed: int = 0) -> dict[str, Any]:
    """A layer as GPTQ has it."""
    rng = np.random.default_rng(seed)
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, (k // 8, n)).astype(np.int32))
    scales = torch.from_numpy(rng.uniform(0.01, 0.02, (k // group, n))).half()
    zeros = torch.from_numpy(np.full((k // group, n // 8), 0x77777777, np.int64).astype(np.int32))
    return {f"{front}.qweight": words, f"{front}.qzeros": zeros, f"{front}.scales": scales}


def on_meta(**options: bool) -> Any:
    with torch.device("meta"):
        return Model(**options)


def test_packed_layers_of_shards_are_replaced_and_ties_stay(tmp_path: Path) -> None:
    layer = packed("up")
    one = {"up.qweight": layer["up.qweight"], "embed.weight": dense()["embed.weight"]}  # a layer of two shards
    two = {name: x for name, x in {**layer, **dense()}.items() if name not in one}
    path = sharded(tmp_path, one, two, config={"quant_method": "gptq", "bits": 4})
    model = on_meta()
    loaded = load_checkpoint(model, path)
    assert str(loaded).splitlines() == [
        "replaced  up  by QuantizedLinear",
        "left      down: its weight is bfloat16 in the checkpoint",
        "left      head: its weight is bfloat16 in the checkpoint, as embed.weight",
        "on meta   places: no state dict has it",
        "1 of 3 linear layers packed, of 2 files",
    ]
    assert model.head.weight is model.embed.weight and not any(x.is_meta for x in model.parameters())
    alone = QuantizedLinear.from_checkpoint(Checkpoint(path).under("up"), "gptq", dtype=BF16)
    assert torch.equal(model.up.dequantized(), alone.dequantized())
    assert all(torch.equal(x, dense()[name]) for name, x in model.named_parameters())
    assert [each.name for each in swap_linears(model).replaced] == ["down", "head"]
    assert isinstance(model.up, QuantizedLinear) and model.head.weight is model.embed.weight


def test_tensors_are_renamed(tmp_path: Path) -> None:
    """A checkpoint of a model inside of another one, with a layer of another name."""
    model, layer = on_meta(), packed("lm.mlp.up")
    write(tmp_path / "model.safetensors", layer | {f"lm.{name}": x for name, x in dense().items()})

    def rename(name: str) -> str:
        return name.removeprefix("lm.").replace("mlp.", "")

    with pytest.raises(
        OperandError, match=r"missing in the checkpoint, which has lm\.down\.bias, .*: Checkpoint\(path, re"
    ):
        load_checkpoint(model, tmp_path)
    found = Checkpoint(tmp_path, rename)
    assert [each.name for each in load_checkpoint(model, found, "gptq").replaced] == ["up"]
    assert torch.equal(found.tensor("up.qweight"), layer["lm.mlp.up.qweight"]) and [*found.under("down")]
    assert torch.equal(model.down.bias, dense()["down.bias"])
    with pytest.raises(OperandError, match=r"lm\.down\.bias and lm\.down\.weight are both renamed to down"):
        Checkpoint(tmp_path, lambda name: name.split(".")[1])
    with pytest.raises(OperandError, match="is None: a name"):
        Checkpoint(tmp_path, lambda name: None)


def test_a_model_in_memory_keeps_its_tensors(tmp_path: Path) -> None:
    model = Model()
    before = {name: x.data_ptr() for name, x in model.named_parameters()}
    write(tmp_path / "model.safetensors", {**dense(), "up.weight": normal(64, 128).float()})
    loaded = load_checkpoint(model, tmp_path)
    assert {name: x.data_ptr() for name, x in model.named_parameters()} == before and not loaded.replaced
    assert torch.equal(model.up.weight, normal(64, 128)) and torch.equal(model.head.weight, dense()["embed.weight"])


def test_a_packed_head_ends_its_tie(tmp_path: Path) -> None:
    path = sharded(tmp_path, {**dense(), "up.weight": normal(64, 128), **packed("head", 8)})
    model = Model()
    loaded = load_checkpoint(model, path, "gptq")
    assert loaded.untied == (("embed.weight", "head.weight"),) and isinstance(model.head, QuantizedLinear)
    assert torch.equal(model.embed.weight, dense()["embed.weight"])


def test_float8_layers_become_scaled_layers(tmp_path: Path) -> None:
    weight, scale = normal(64, 128).to(torch.float8_e4m3fn), torch.full((1, 1), 0.5)
    one = {**dense(), "up.weight": weight, "up.weight_scale_inv": scale}
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = on_meta()
    assert [each.by for each in load_checkpoint(model, sharded(tmp_path, one, config=config)).replaced] == [
        "ScaledLinear"
    ]
    assert isinstance(model.up, ScaledLinear) and torch.equal(model.up.dequantized(), (weight.float() * 0.5).to(BF16))


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (64, 1)], ids=str)
def test_float8_weights_of_one_scale_or_of_rows_keep_x(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """As Devstral has them: "fp8" with "weight_block_size": null."""
    weight, scale = normal(64, 128).to(torch.float8_e4m3fn), torch.rand(shape).to(BF16)
    stored = {**dense(), "up.weight": weight, f"up.{name}": scale, "up.activation_scale": torch.tensor(0.5)}
    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    path = sharded(tmp_path, stored, config=config)
    with pytest.raises(OperandError, match=r"activation_scale is surplus: .* x is not quantised: .* leaves it"):
        load_checkpoint(Model(), path)
    load_checkpoint(model := Model(), path, ignore=["*.activation_scale"])
    assert isinstance(model.up, QuantizedLinear)
    assert torch.equal(model.up.dequantized(), (weight.double() * scale.double()).to(BF16))


def test_scales_of_blocks_may_be_exponents(tmp_path: Path) -> None:
    """As DeepSeek has them with "scale_fmt": "ue8m0", in files as F8_E8M0."""
    made = torch.Generator().manual_seed(1)
    weight, scale = (
        torch.randn(256, 384, generator=made).to(torch.float8_e4m3fn),
        torch.tensor([[1.0, 2, 4], [0.5, 8, 1]]),
    )
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    stored = {"0.weight": weight, "0.weight_scale_inv": scale.to(torch.float8_e8m0fnu)}
    want = (weight.double() * scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)).to(BF16)
    for kind, by in ((None, ScaledLinear), ("fp8-weights", QuantizedLinear)):
        model = torch.nn.Sequential(torch.nn.Linear(384, 256, bias=False, dtype=BF16))
        load_checkpoint(model, sharded(tmp_path, stored, config=config), kind)
        assert isinstance(model[0], by) and torch.equal(model[0].dequantized(), want)
    layer = ScaledLinear(384, 256, bias=False)
    layer.load_state_dict({"weight": weight, "weight_scale_inv": scale.to(torch.float8_e8m0fnu)})
    assert torch.equal(layer.dequantized(), want)
    with pytest.raises(OperandError, match=r"weight_scale_inv is torch.uint8: floats; exponents .*float8_e8m0fnu"):
        layer.load_state_dict({"weight": weight, "weight_scale_inv": torch.full((2, 3), 127, dtype=torch.uint8)})


def test_shared_layers_stay_shared(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(128, 64, bias=False, dtype=BF16)
            self.two = self.one

    model = Twice()
    load_checkpoint(model, sharded(tmp_path, packed("two")), "gptq")
    assert model.one is model.two and isinstance(model.one, QuantizedLinear)
    load_checkpoint(Twice(), sharded(tmp_path, {**packed("one"), **packed("two")}), "gptq")
    with pytest.raises(OperandError, match=r"one.qweight and two.qweight are one parameter, and differ .* at \(0, 0\)"):
        load_checkpoint(Twice(), sharded(tmp_path, {**packed("one"), **packed("two", seed=1)}), "gptq")


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"down.bias": None}, "gptq", "^down.bias is missing"),
    ({"norm.bias": None, "embed.weight": None}, "gptq", "^embed.weight, norm.bias are missing"),
    ({"up.scales": None}, "gptq", "^up: scales is missing"),
    ({"up.g_idx2": torch.ones(3)}, "gptq", "^up: g_idx2 is surplus"),
    ({"lost.weight": torch.ones(3)}, "gptq", "^lost.weight: in the checkpoint, and the model has no such tensor"),
    ({"down.weight": torch.ones(64, 128)}, "gptq", r"^down.weight has shape \[64, 128\] .* \[128, 64\] in the model"),
    ({"down.weight": torch.ones(128, 64).int()}, "gptq", "^down.weight is torch.int32 in the checkpoint"),
    ({"down.weight": torch.ones(128, 64).to(torch.float8_e4m3fn)}, "gptq", "^down.weight is torch.float8_e4m3fn"),
    ({"head.weight": normal(8, 128) + 1}, "gptq", r"embed.weight and head.weight .* differ .* at \(0, 0\)"),
    (packed("up", 32), "gptq", "^up has 32x128 weights in the checkpoint, and 64x128"),
    ({"up.qzeros": torch.zeros(2, 16).int()}, "gptq", "^up: zero point"),
    ({}, None, "^up is packed, and no config.json says how"),
    ({}, "gguf", "kind 'gguf': its blocks hold scales"),
    ({}, "fp8", "^up: qweight is surplus"),
]


@pytest.mark.parametrize(("change", "kind", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_does_not_fit_is_refused_before_the_model_changes(
    change: dict[str, Any], kind: str | None, said: str, tmp_path: Path
) -> None:
    given = {**dense(), **packed("up"), **change}
    if "zero point" in said:  # of 8 bits
        given |= {"up.qweight": torch.zeros(32, 64).int(), "up.scales": torch.ones(2, 64).half()}
    model = Model()
    before, modules = {name: x.clone() for name, x in model.state_dict().items()}, dict(model.named_modules())
    path = sharded(tmp_path, {name: x for name, x in given.items() if x is not None})
    with pytest.raises((OperandError, TensorError), match=said):
        load_checkpoint(model, path, kind)
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_ignored_tensors_are_left_and_reported(tmp_path: Path) -> None:
    extra = {"up.input_scale": torch.ones(1), "rotary.freq": torch.ones(2)}
    path = sharded(tmp_path, {**dense(), **packed("up"), **extra})
    loaded = load_checkpoint(Model(), path, "gptq", ignore=["*.input_scale", "rotary.*"])
    assert set(loaded.ignored) == {*extra} and "ignored   rotary.freq, up.input_scale" in str(loaded)


CONFIGS = [
    ({"quant_method": "awq", "version": "gemv_fast"}, "kind 'awq_gemv_fast': its words of 16 bits hold four rows"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "kind 'bitsandbytes': its codes of 4 bits are places"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "up: SCB is missing: .* kind 'bitsandbytes-int8'"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "up: weight_scale is missing: .* kind 'modelopt_fp4'"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "up: weight_scale is missing: .* kind 'float-quantized'"),
    ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "kind 'marlin-24'"),
    (
        {"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized"},
        "kind 'mxfp6-pack-quantized': QuantizedLinear.from_linear takes the dequantised weights; known are",
    ),
    ({"quant_method": "compressed-tensors", "format": "mixed-precision"}, "up: weight_packed is missing: "),
    ({"quant_method": "modelopt"}, "kind 'modelopt': .* kind 'modelopt_fp4', .* as 'float-quantized'"),
    ({"quant_method": "auto-round"}, "kind 'auto-round': .* read as 'gptq'"),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "sym": True}, None),
    ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel", "sym": False}, "points: 'gptq_v2'"),
    ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel", "sym": True}, None),
    ({"quant_method": "intel/auto-round", "packing_format": "auto_round:auto_gptq"}, None),
    ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "kind 'gptq_marlin': its words are in its kernel's"),
    ({"quant_method": "gptq", "is_marlin_format": True}, "kind 'gptq_marlin': its words are in its kernel's"),
    ({"quant_method": "gptq", "checkpoint_format": "bitblas"}, "kind 'gptq_bitblas'"),
    ({"quant_method": "gptq", "format": "gptq_v2"}, None),
    ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, "kind 'fp_quant': its weights are rotated, by Hadamard"),
    ({"quant_method": "quanto", "weights": "int8"}, "kind 'quanto': its weights are weight._data with weight._scale"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"scales are of blocks of \[64, 64\]: 128 x 128"),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 64]}}
            },
        },
        r"scales are of blocks of \[128, 64\]: 128 x 128",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "transform_config": {
                "config_groups": {"R4": {"type": "hadamard", "apply": [{"targets": ["down"], "location": "input"}]}}
            },
        },
        "transform_config is .*hadamard.*: x of its layers is transformed",
    ),
    ({"quant_method": "fbgemm_fp8"}, "kind 'fbgemm_fp8': .* without input_scale_ub"),
    ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, None),
    ({"quant_method": "gptq"}, None),
]


@pytest.mark.parametrize(("config", "said"), CONFIGS)
def test_the_kind_is_that_of_the_configuration(config: object, said: str | None, tmp_path: Path) -> None:
    path, model = sharded(tmp_path, {**dense(), **packed("up")}, config=config), Model()
    if said is not None:
        with pytest.raises(OperandError, match=said):
            load_checkpoint(model, path)
        return
    load_checkpoint(model, path)
    assert model.up.format.zeros == (model.up.weight.plain().zeros is not None) == ("gptq_v2" in str(config))


@pytest.mark.parametrize("sym", [True, False])
def test_symmetric_gptq_is_read_by_its_stored_zero_points(sym: bool, tmp_path: Path) -> None:
    """Qwen3.5-27B-GPTQ-Int4 says "gptq", and stores 8 as the second format does (vLLM's pull request 38966)."""
    stored, want, model = packed("up"), Model(), Model()
    load_checkpoint(want, sharded(tmp_path, {**dense(), **stored}), "gptq")
    stored["up.qzeros"] = stored["up.qzeros"] + 0x11111111  # 8, as an int32 below 0
    config = {"bits": 4, "group_size": 64, "quant_method": "gptq", "checkpoint_format": "gptq", "sym": sym}
    path = sharded(tmp_path, {**dense(), **stored}, config=config)
    if sym:
        load_checkpoint(model, path)
        assert torch.equal(model.up.units, want.up.units) and not model.up.format.zeros
    else:
        with pytest.raises(OperandError, match=r"^up: qzeros are 8 everywhere: .* would be 9: .*'gptq_v2'"):
            load_checkpoint(model, path)


def test_layers_of_a_mixed_checkpoint_are_read_by_their_own_tensors(tmp_path: Path) -> None:
    weight, scale = normal(128, 64).to(torch.float8_e4m3fn), torch.rand(128, 1).to(BF16)
    words = torch.full((64, 16), 0x19191919, dtype=torch.int32)  # codes 9 and 1, less 8
    stored = {
        **dense(), "down.weight": weight, "down.weight_scale": scale, "up.weight_packed": words,
        "up.weight_scale": torch.full((64, 1), 0.5, dtype=BF16), "up.weight_shape": torch.tensor([64, 128]),
    }  # fmt: skip
    groups = {"group_0": {"format": "pack-quantized"}, "group_1": {"format": "float-quantized"}}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    load_checkpoint(model := Model(), sharded(tmp_path, stored, config=config))
    assert [model.up.format.code, model.down.format.code] == ["int4", "e4m3"]
    assert torch.equal(model.down.dequantized(), (weight.double() * scale.double()).to(BF16))
    assert model.up.dequantized()[0, :2].tolist() == [0.5, -3.5]


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 64, "desc_act": False, "sym": True}, ""),
        ("quant_config.json", {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMV"}, "GEMV's order"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, "'modelopt_fp4'"),
    ],
)
def test_a_tools_own_file_says_the_kind(name: str, own: Any, said: str, tmp_path: Path) -> None:
    path, model = sharded(tmp_path, {**dense(), **packed("up")}), Model()
    (path / name).write_text(json.dumps(own))
    if said:
        with pytest.raises(OperandError, match=said):
            load_checkpoint(model, path)
    else:
        load_checkpoint(model, path)
        assert isinstance(model.up, QuantizedLinear)


def test_weights_of_whole_bytes_are_read_by_the_format_of_compressed_tensors(tmp_path: Path) -> None:
    weight, scale = normal(64, 128).to(torch.float8_e4m3fn), torch.rand(64, 1).to(BF16)
    stored = {**dense(), "up.weight": weight, "up.weight_scale": scale}
    config, model = {"quant_method": "compressed-tensors", "format": "float-quantized"}, Model()
    loaded = load_checkpoint(model, sharded(tmp_path, stored, config=config))
    assert "replaced  up  by QuantizedLinear" in str(loaded) and isinstance(model.up, QuantizedLinear)
    assert torch.equal(model.up.dequantized(), (weight.double() * scale.double()).to(BF16))
    one = {**stored, "up.weight_scale": torch.tensor(0.5), "up.input_scale": torch.tensor(1.0)}  # as AutoFP8 stores it
    path = sharded(tmp_path, one, config={"quant_method": "fp8"})
    with pytest.raises(OperandError, match=r"^up: input_scale is surplus: .* x is not quantised"):
        load_checkpoint(Model(), path)
    for kind in (None, "float-quantized"):
        load_checkpoint(model := Model(), path, kind, ignore=["*.input_scale"])
        assert torch.equal(model.up.dequantized(), (weight.double() * 0.5).to(BF16))


@pytest.mark.parametrize("given", [None, "compressed-tensors", "fp8"])
def test_scales_of_blocks_are_read_by_the_name_of_compressed_tensors(given: str | None, tmp_path: Path) -> None:
    weight, scale = normal(64, 128).to(torch.float8_e4m3fn), torch.rand(1, 1).to(BF16)
    wide = {"up.weight": weight, "up.weight_scale": torch.rand(64, 1).to(BF16)}
    model, config = Model(), {"quant_method": "compressed-tensors", "format": "float-quantized"}
    stored = {**dense(), "up.weight": weight, "up.weight_scale": scale}
    load_checkpoint(model, sharded(tmp_path, stored, config=config), given)
    assert isinstance(model.up, ScaledLinear if given == "fp8" else QuantizedLinear)  # one scale is either's
    assert torch.equal(model.up.dequantized(), (weight.double() * scale.double()).to(BF16))
    with pytest.raises(OperandError, match=r"^up: weight_scale is surplus: .*; kind 'float-quantized' reads"):
        load_checkpoint(Model(), sharded(tmp_path, {**dense(), **wide}), "fp8")


def test_blocks_of_mxfp4_are_missed_by_the_kind_that_reads_them(tmp_path: Path) -> None:
    """gpt-oss stores parameters of experts as blocks and scales."""
    stored = {**dense(), "up.weight_blocks": torch.zeros(64, 4, 16, dtype=torch.uint8)}
    with pytest.raises(OperandError, match=r"^up.weight is missing .* up.weight_blocks: .* one expert, kind 'mxfp4'$"):
        load_checkpoint(Model(), sharded(tmp_path, stored))


class Experts(torch.nn.Module):
    """Experts as gpt-oss has them: (experts, in, out features), with biases."""

    def __init__(self, inner: int = 64, features: int = 64) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.empty(2, features, 2 * inner, dtype=BF16))
        self.gate_up_proj_bias = torch.nn.Parameter(torch.empty(2, 2 * inner, dtype=BF16))
        self.down_proj = torch.nn.Parameter(torch.empty(2, inner, features, dtype=BF16))


def as_blocks(n: int, k: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Blocks and scales of two experts (n, k), and their weights by MXFP4's formula."""
    made = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (2, n, k // 32, 16), generator=made).byte()
    scales = torch.randint(120, 130, (2, n, k // 32), generator=made).byte()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()
    values = table[torch.stack([blocks & 15, blocks >> 4], -1).reshape(2, n, k).long()]
    return blocks, scales, values * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def gpt_oss(n: int = 128, k: int = 64) -> tuple[dict[str, Any], list[Any]]:
    """The tensors of `Experts` in a checkpoint, and the weights of both parameters."""
    (up, up_scales, first), (down, down_scales, second) = as_blocks(n, k), as_blocks(k, n // 2, 1)
    stored = {
        "experts.gate_up_proj_blocks": up, "experts.gate_up_proj_scales": up_scales,
        "experts.down_proj_blocks": down, "experts.down_proj_scales": down_scales,
        "experts.gate_up_proj_bias": normal(2, n),
    }  # fmt: skip
    return stored, [first, second]


def test_blocks_of_experts_are_dequantised_in_the_parameters_order(tmp_path: Path) -> None:
    """The second parameter is square: the first one says that both are transposed."""
    stored, weights = gpt_oss()
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"experts": Experts()})
    loaded = load_checkpoint(model, sharded(tmp_path, stored, config={"quant_method": "mxfp4"}))
    said = "left      experts: down_proj, gate_up_proj: blocks of MXFP4 in the checkpoint, dequantised"
    assert said in str(loaded) and torch.equal(model.experts.gate_up_proj_bias, stored["experts.gate_up_proj_bias"])
    for x, weight in zip((model.experts.gate_up_proj, model.experts.down_proj), weights, strict=True):
        assert torch.equal(x.double(), weight.mT)


def test_square_blocks_need_the_order_of_the_module(tmp_path: Path) -> None:
    stored, weights = gpt_oss(128, 128)
    stored = {name: x for name, x in stored.items() if "down" not in name}
    model = torch.nn.ModuleDict({"experts": Experts(64, 128)})
    del model.experts.down_proj
    path = sharded(tmp_path, stored)
    with pytest.raises(OperandError, match=r"^experts: gate_up_proj .* are square: is_transposed of the module says"):
        load_checkpoint(model, path)
    for way in (False, True):
        model.experts.is_transposed = way
        load_checkpoint(model, path)
        assert torch.equal(model.experts.gate_up_proj.double(), weights[0].mT if way else weights[0])


class GptOss(Experts):
    """The same with the forward of transformers: limits, and gate and up in turns."""

    def __init__(self, dtype: Any = BF16) -> None:
        super().__init__()
        self.down_proj_bias = torch.nn.Parameter(torch.empty(2, 64, dtype=BF16))
        self.is_transposed = True
        self.to(dtype)

    def _apply_gate(self, both: Any) -> Any:
        gate, up = both[..., ::2].clamp(max=7), both[..., 1::2].clamp(-7, 7)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)

    def forward(self, x: Any, index: Any, factors: Any) -> Any:
        total = torch.zeros_like(x)
        for experts, factor in zip(index.T, factors.T, strict=True):
            both = torch.einsum("rk,rkn->rn", x, self.gate_up_proj[experts]) + self.gate_up_proj_bias[experts]
            down = torch.einsum("rn,rnk->rk", self._apply_gate(both), self.down_proj[experts])
            total = total + factor[:, None].to(x.dtype) * (down + self.down_proj_bias[experts])
        return total


def test_blocks_of_experts_are_packed_where_their_forward_agrees(tmp_path: Path) -> None:
    stored, weights = gpt_oss()
    stored["experts.down_proj_bias"] = normal(2, 64)
    path = sharded(tmp_path, stored, config={"quant_method": "mxfp4"})
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"experts": GptOss()})
    loaded = load_checkpoint(model, path)
    assert "replaced  experts  by ExpertsMLP" in str(loaded) and "1 of 1 modules of experts" in str(loaded)
    mlp, dense = model.experts, GptOss(torch.float64)
    values = [*(w.mT for w in weights), stored["experts.gate_up_proj_bias"], stored["experts.down_proj_bias"]]
    names = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
    dense.load_state_dict(dict(zip(names, values, strict=True)))
    assert all(torch.equal(x.dequantized().double(), w) for x, w in zip((mlp.first, mlp.down), weights, strict=True))
    x, factors = torch.randn(9, 64).bfloat16(), torch.rand(9, 2)
    index = torch.tensor([[0, 1], [1, 1], [1, 0]]).repeat(3, 1)
    got, want = mlp(x, index, factors), dense(x.double(), index, factors.double())
    assert ((got.double() - want).abs() <= 2.0**-5 * want.abs().max()).all()
    got.float().sum().backward()
    assert torch.allclose(mlp.down.bias.grad[1].float(), factors[index == 1].sum().expand(64), rtol=2.0**-6)
    again = torch.nn.ModuleDict({"experts": copy.deepcopy(mlp)})
    assert again.load_state_dict(model.state_dict()) and torch.equal(again.experts(x, index, factors), got)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_blocks_of_another_forward_or_type_are_dequantised(dtype: Any, tmp_path: Path) -> None:
    stored, weights = gpt_oss()
    stored["experts.down_proj_bias"] = normal(2, 64)
    model = torch.nn.ModuleDict({"experts": GptOss(dtype)})
    if dtype == BF16:
        model.experts.forward = lambda x, index, factors: GptOss.forward(model.experts, x, index, factors) * 2
    said = str(load_checkpoint(model, sharded(tmp_path, stored)))
    why = "its forward gives other values" if dtype == BF16 else "its weights are torch.float16, and scales of MXFP4 bf"
    assert f"blocks of MXFP4 in the checkpoint, dequantised: {why[:45]}" in said
    assert torch.equal(model.experts.down_proj.double(), weights[1].mT.to(dtype).double())


BLOCKS_THAT_DO_NOT_FIT = [
    ("gate_up_proj_scales", lambda x: x.fill_(255), r"experts.gate_up_proj_scales 255 at .0, 0, 0. is NaN"),
    ("gate_up_proj_scales", lambda x: x[:, :-1], "gate_up_proj_blocks has shape .2, 128, 2, 16., and .* .2, 127, 2."),
    ("gate_up_proj_blocks", lambda x: x.int(), "gate_up_proj_blocks is torch.int32 in the checkpoint: uint8"),
    ("down_proj_blocks", None, "experts.down_proj is missing in the checkpoint"),
]


@pytest.mark.parametrize(("name", "change", "said"), BLOCKS_THAT_DO_NOT_FIT)
def test_blocks_that_do_not_fit_are_refused_before_the_model_changes(
    name: str, change: Any, said: str, tmp_path: Path
) -> None:
    stored, _ = gpt_oss()
    key = f"experts.{name}"
    changed = {} if change is None else {key: change(stored[key].clone())}
    model = torch.nn.ModuleDict({"experts": Experts()})
    torch.nn.init.ones_(model.experts.gate_up_proj_bias)
    rest = {each: x for each, x in stored.items() if each != key}
    with pytest.raises((OperandError, TensorError), match=said):
        load_checkpoint(model, sharded(tmp_path, {**rest, **changed}))
    assert bool(model.experts.gate_up_proj_bias.eq(1).all())
    stored["experts.gate_up_proj_blocks"] = as_blocks(128, 96)[0]
    stored["experts.gate_up_proj_scales"] = as_blocks(128, 96)[1]
    with pytest.raises(
        TensorError, match=r"are \[2, 128, 96\] weights, and gate_up_proj is \[2, 64, 128\] in the model"
    ):
        load_checkpoint(model, sharded(tmp_path, stored))


class Tall(torch.nn.Module):
    """A layer of two blocks of features."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(256, 192, bias=False, dtype=BF16)


def test_blocks_of_compressed_tensors_become_scaled_layers(tmp_path: Path) -> None:
    weight, scale = normal(192, 256).to(torch.float8_e4m3fn), torch.rand(2, 2).to(BF16)
    wide = scale.double().repeat_interleave(128, 0)[:192].repeat_interleave(128, 1)
    model, config = Tall(), {"quant_method": "compressed-tensors", "format": "float-quantized"}
    path = sharded(tmp_path, {"up.weight": weight, "up.weight_scale": scale}, config=config)
    assert "replaced  up  by ScaledLinear" in str(load_checkpoint(model, path))
    assert torch.equal(model.up.dequantized(), (weight.double() * wide).to(BF16))
    model = Tall()
    assert "replaced  up  by QuantizedLinear" in str(load_checkpoint(model, path, "fp8-weights"))
    assert torch.equal(model.up.dequantized(), (weight.double() * wide).to(BF16))
    columns = {"weight": weight, "weight_scale": torch.rand(192, 1)}
    one, two = (QuantizedLinear.from_checkpoint(columns, kind) for kind in ("compressed-tensors", "float-quantized"))
    assert torch.equal(one.units, two.units) and torch.equal(one.scales, two.scales)


def test_layers_that_were_swapped_before_are_refused(tmp_path: Path) -> None:
    model = Model()
    swap_linears(model, "up", weights="fp8")
    write(tmp_path / "model.safetensors", {**dense(), "up.weight": normal(64, 128)})
    with pytest.raises(OperandError, match="up is a ScaledLinear: load a model before"):
        load_checkpoint(model, tmp_path)
    hooked = Model()
    hooked.up.register_forward_hook(lambda *x: None)
    with pytest.raises(
        OperandError, match="up is packed in the checkpoint, and cannot be replaced: it has forward_hooks"
    ):
        load_checkpoint(hooked, sharded(tmp_path / ".", {**dense(), **packed("up")}), "gptq")


# ---------------------------------------------------------------------------------------------------------------- files


def test_files_that_are_cut_off_or_do_not_meet_their_index_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OperandError, match="neither"):
        Checkpoint(tmp_path)
    path, file = sharded(tmp_path, dense()), "model-00001-of-00001.safetensors"
    raw = (path / file).read_bytes()
    for cut in (raw[:-1], raw[:20], raw[:4], raw + b"\0"):
        (path / file).write_bytes(cut)
        with pytest.raises(OperandError, match=r"is no safetensors file, or cut off: .*header"):
            Checkpoint(path)
    (path / file).write_bytes(raw)
    index = json.loads((path / INDEX).read_text())
    places = index["weight_map"]
    for changed, said in (
        ({**places, "lost": file}, "^lost: .* has them in"),
        ({name: x for name, x in places.items() if name != "norm.bias"}, "^norm.bias: model-00001"),
        ({**places, "norm.bias": "../x.safetensors"}, "not in the directory"),
        ({**places, "norm.bias": "none.safetensors"}, "none.safetensors is missing"),
        ([], "weight_map"),
    ):
        (path / INDEX).write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(OperandError, match=said):
            Checkpoint(path)
    (path / INDEX).unlink()
    write(path / "b.safetensors", dense())
    with pytest.raises(OperandError, match=r"2 files, b.safetensors, model-00001-of-00001.safetensors, and no"):
        Checkpoint(path)
    with pytest.raises(OperandError, match="head has no tensors"):
        Checkpoint(path / file).under("head")


def test_types_and_sizes_of_every_kind(tmp_path: Path) -> None:
    powers = torch.tensor([1, 130], dtype=torch.uint8)
    given = {
        **dense(),
        "none": torch.empty(0, 3),
        "one": torch.tensor(2.0),
        "scales": powers.view(torch.float8_e8m0fnu),
    }
    write(tmp_path / "x.safetensors", given)
    found = Checkpoint(tmp_path)
    assert {*found.tensors} == {*given} and torch.equal(found.tensor("scales"), powers)  # as their exponents
    assert all(torch.equal(found.tensor(name), x) for name, x in given.items() if name != "scales")
    header = json.dumps({"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(OperandError, match="a is 'F4': known are BOOL"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"), [("m.gguf", "a GGUF file, .* gguf_file="), ("m.bin", "a pickled state: .*save")]
)
def test_files_of_other_kinds_are_refused_with_the_way_out(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF" + bytes(40))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(OperandError, match=f"{name} is {said}"):
            Checkpoint(path)


def test_without_the_package_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.safetensors", dense())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'layoutgemm\[checkpoints\]'"):
        Checkpoint(tmp_path)
