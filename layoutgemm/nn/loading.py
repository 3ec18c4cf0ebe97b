"""load_checkpoint: a model's tensors from safetensors.

Packed layers become QuantizedLinear, and a report tells of each.

tensors of a layer      in its place                                      kinds
----------------------  ------------------------------------------------  ------------------------------------
packed                  QuantizedLinear                                   of `QuantizedLinear.from_checkpoint`
float8, blocks' scales  ScaledLinear                                      "fp8", "float-quantized"
experts, one by one     ExpertsMLP of packed ones; else their parameters  both; the parameters are joined
blocks of MXFP4         ExpertsMLP; else the parameters, dequantised      by their names, X_blocks and X_scales
dense                   the layer stays; its parameters are the tensors
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch

from ..arguments import shown
from ..errors import OperandError, TensorError
from ..kernels.quantized.checkpoints import symmetric_version
from ..torch_op.scaled_grouped import DEPTH
from .checkpoint import Checkpoint, StoredTensor, listed_names
from .experts import ExpertsMLP
from .gated import GatedMLP
from .packed_layer import BLOCK_SCALE, FLOAT8_KIND, PACKED_BY, blocks_of, has_block_scales, packed_layer
from .quantized import (
    ANY_PACKED,
    BLOCKS,
    COMPRESSED_TENSORS,
    INT8_ROWS,
    MODELOPT_FP4,
    NEEDED,
    OF_BYTES,
    QuantizedLinear,
    unknown_kind,
)
from .scaled import ScaledLinear
from .stored_blocks import BlockExperts, StoredBlocks, find_block_experts, find_blocks
from .stored_experts import (
    Layers,
    StoredExperts,
    check_dense,
    find_experts,
    joined_weights,
    packed_experts,
    reason_against,
)
from .swap import Swapped, Swaps, grouped, reason_to_stay, replace_modules

# auto-round's packing_format -> kind of the tensors that it packs.
_AUTO_ROUND = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
_AUTO_ROUND_NAMES = ("auto-round", "auto_round", "intel/auto-round")
_FOREIGN_STATE = (ScaledLinear, GatedMLP, QuantizedLinear, ExpertsMLP)


@dataclass(frozen=True, slots=True)
class Loaded(Swaps):
    """The linear layers of a model that `load_checkpoint` loaded, and remarks.

    others   modules of experts that the checkpoint stores one by one, or as blocks of MXFP4
    untied   names that were one parameter, and are not where the checkpoint packs one of them
    ignored  tensors of the checkpoint that were left unread, as was asked
    unset    buffers that no state dict has, on the meta device still
    files    that were read
    """

    untied: tuple[tuple[str, ...], ...] = ()
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    files: int = 1

    def __str__(self) -> str:
        said = [f"untied    {' and '.join(names)}" for names in self.untied]
        said += [f"ignored   {listed_names(self.ignored)}"] * bool(self.ignored)
        said += [f"on meta   {name}: no state dict has it" for name in self.unset]
        lines = "\n".join([*map(str, [*grouped(self.layers), *grouped(self.others)]), *said])
        packed = f"{len(self.replaced)} of {len(self)} linear layers packed"
        if self.others:
            packed += f", {sum(bool(each.by) for each in self.others)} of {len(self.others)} modules of experts"
        return f"{lines}\n{packed}, of {self.files} file{'s' * (self.files != 1)}".lstrip("\n")


def load_checkpoint(
    model: torch.nn.Module, checkpoint: Checkpoint | str | os.PathLike[str], kind: str | None = None, *,
    ignore: Iterable[str] = (), device: torch.device | str = "cpu", experts: Layers | None = None,
) -> Loaded:  # fmt: skip
    """Load a model from safetensors, in place: packed layers become QuantizedLinear, others stay.

    model       its tensors may be on the meta device. Linear layers say the types of activations
    checkpoint  a directory, a file, or a `Checkpoint`, which may rename. Tensors are read layer by layer
    kind        of packed layers, as `QuantizedLinear.from_checkpoint`, or "fp8" for float8 with scales of 128 x 128
                blocks; default what config.json says
    ignore      patterns, as fnmatch has them, of tensors in the checkpoint to be left unread
    device      of the tensors that were on the meta device
    experts     the layers of an expert whose rows a parameter (experts, n, k) has, as {"w13": ("w1", "w3"), "w2":
                ("w2",)}; default those of transformers, if a trial of the module's forward agrees

    Dense tensors are cast to the model's types, as `load_state_dict` does. Tied parameters stay tied, by whichever of
    their names the checkpoint has.

    Raises OperandError for tensors that are missing, and for surplus ones, by name. Raises OperandError or TensorError
    for shapes that differ, unknown kinds, layers that cannot be replaced, and tied tensors that differ. The model then
    is as it was.

    >>> import tempfile
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, dtype=torch.bfloat16))
    >>> header = b'{"0.weight":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}'
    >>> with tempfile.TemporaryDirectory() as path:
    ...     with open(f"{path}/model.safetensors", "wb") as file:
    ...         _ = file.write(len(header).to_bytes(8, "little") + header + bytes(4))
    ...     load_checkpoint(model, path)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: 0.bias is missing in the checkpoint
    """
    found = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    if isinstance(model, torch.nn.Linear):
        raise OperandError("model is a linear layer itself, and layers are replaced inside of it")
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    ignored = [name for name in found.tensors if any(fnmatchcase(name, each) for each in patterns)]
    plan, on = _Plan(model, found, ignored), torch.device(device)
    plan.pack(kind, experts)
    plan.place()
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    for layer, name in plan.sources.items():
        made[layer] = _packed(name, layer, plan, on)
    values: dict[tuple[StoredExperts, str], torch.Tensor] = {}
    for one in plan.experts:
        if one.packed and one.reason:  # in advance: layers may be refused
            values |= {
                (one, key): joined_weights(one, key, plan.kind_of(one.all_layers[0]), plan.read) for key in one.layers
            }
        elif one.packed:
            made[one.module] = packed_experts(one, plan.kind_of(one.all_layers[0]), plan.read).to(
                _device_of(one.module, on)
            )
    for block, _ in plan.unpacked:
        block.check(found.tensor)
    for each in plan.in_blocks:
        if not each.reason:
            bias = {key: found.tensor(f"{each.parts[0].name}.{key}") for key in each.biases}
            made[each.module] = each.packed(found.tensor, bias).to(_device_of(each.module, on))
    replace_modules(model, made)
    for block, places in plan.unpacked:
        _fill(model, places, block.value(found.tensor), on)
    for names, source in plan.dense.items():
        _fill(model, names, found.tensor(source), on)
    for (one, key), same in plan.joined.items():
        if one.module not in made:
            value = values.pop((one, key), None)
            value = joined_weights(one, key, plan.kind_of(one.all_layers[0]), plan.read) if value is None else value
            _fill(model, same, value, on)
    buffers = tuple([name for name, x in model.named_buffers() if x.is_meta])
    beside = (*_expert_lines(plan, made), *_block_lines(plan, made))
    return Loaded(plan.report(made), beside, plan.untied, tuple(ignored), buffers, len(found.files))


class _Plan:
    """Each tensor's place in a model, checked by name and shape."""

    def __init__(self, model: torch.nn.Module, found: Checkpoint, ignored: Iterable[str]) -> None:
        left = {*ignored}
        self.found = found
        self.stored = {name: of for name, of in found.tensors.items() if name not in left}
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.kind = ""
        self.by_tensors: tuple[str, ...] = (ANY_PACKED,)
        for name, module in self.modules.items():
            if isinstance(module, _FOREIGN_STATE):
                raise OperandError(f"{name} is a {type(module).__name__}: load a model before its layers are swapped")
        self.packed: dict[str, torch.nn.Linear] = {}  # by each name of a layer
        self.sources: dict[torch.nn.Linear, str] = {}  # the name by which a packed layer is read
        self.dense: dict[tuple[str, ...], str] = {}
        self.experts: list[StoredExperts] = []
        self.joined: dict[tuple[StoredExperts, str], list[str]] = {}  # with all names of a parameter
        self.blocks: list[StoredBlocks] = []
        self.in_blocks: list[BlockExperts] = []
        self.unpacked: list[tuple[StoredBlocks, list[str]]] = []  # likewise
        self.untied: tuple[tuple[str, ...], ...] = ()
        self.used: set[str] = set()

    def pack(self, kind: str | None, experts: Layers | None) -> None:
        """Set the layers that are packed, and their kind. Set the experts that are stored one by one, too."""
        layers = [
            (name, module)
            for name, module in self.modules.items()
            if isinstance(module, torch.nn.Linear) and any(f"{name}.{key}" in self.stored for key in PACKED_BY)
        ]
        self.blocks = find_blocks(self.modules, self.stored)
        self.in_blocks = find_block_experts(self.modules, self.blocks, self.stored)
        found = find_experts(self.modules, self.stored, experts)
        packed = [name for name, _ in layers] + [one.all_layers[0] for one in found if one.packed]
        self.kind = _kind(kind, self.found.config, packed)
        if kind is None and self.kind == "gptq":
            self.kind = self._gptq_of(packed)
        # kinds whose layers say by their tensors what they are: that of a configuration's "fp8" is of any scales
        self.by_tensors = (ANY_PACKED, FLOAT8_KIND) if kind is None else (ANY_PACKED,)
        if self.kind not in self.by_tensors:
            self.kind = self._scales_of(self.kind, packed)
        self.experts = [replace(one, reason=reason_against(one, self.kind_of(one.all_layers[0]))) for one in found]
        chosen = {module: name for name, module in reversed(layers)}  # a shared layer's first name
        for name, module in layers:
            _check_shared(self, chosen[module], name)
            if reason := reason_to_stay(module, True):
                raise OperandError(f"{name} is packed in the checkpoint, and cannot be replaced: {reason}")
            if module.bias is not None and f"{name}.bias" not in self.stored:
                raise OperandError(f"{name}.bias is missing in the checkpoint")
            self.used |= {*self.names(name)}

        linear = {name: x for name, x in self.modules.items() if isinstance(x, torch.nn.Linear)}
        self.packed = {name: module for name, module in linear.items() if module in chosen}
        self.sources = chosen

    def _gptq_of(self, packed: Iterable[str]) -> str:
        """The kind of a GPTQ checkpoint. Of symmetric weights the stored zero points tell: some tools write those of
        the second format and call it the first."""
        said, zeros = self.found.config["quantization_config"], [f"{layer}.qzeros" for layer in packed]
        there = next((name for name in zeros if name in self.stored), None)
        if not isinstance(said, dict) or said.get("sym") is not True or there is None:
            return "gptq"
        return "gptq_v2" if symmetric_version(self.found.tensor(there).numpy()) == 2 else "gptq"

    def kind_of(self, *layers: str) -> str:
        """The kind of some layers. Where each has a format of its own, their tensors say it."""
        return self._scales_of(self.kind, layers) if self.kind in self.by_tensors else self.kind

    def _scales_of(self, kind: str, packed: Iterable[str]) -> str:
        """The kind. "fp8" where compressed-tensors' scales are of blocks, "fp8-weights" where its own are not."""
        shapes = {name: of.shape for name, of in self.stored.items()}
        scales = [(f"{layer}.weight", f"{layer}.{BLOCK_SCALE}") for layer in packed]
        if kind == FLOAT8_KIND and FLOAT8_KIND in self.by_tensors:
            scales += [(weight, f"{weight}_scale_inv") for weight, _ in scales]
            others = [
                scale for weight, scale in scales if shapes.get(scale, of := blocks_of(shapes.get(weight, ()))) != of
            ]
            return BLOCKS if others else kind
        blocks = any(has_block_scales(shapes.get(weight, ()), shapes.get(scale, ())) for weight, scale in scales)
        return FLOAT8_KIND if blocks and kind in COMPRESSED_TENSORS else kind

    def read(self, layer: str) -> dict[str, torch.Tensor]:
        """The tensors of a layer, by the last words of their names."""
        return {name.rpartition(".")[2]: self.found.tensor(name) for name in self.names(layer)}

    def names(self, layer: str) -> list[str]:
        """The tensors of a layer."""
        return [name for name in self.found.names(layer) if name in self.stored]

    def place(self) -> None:
        """Set the source of each dense tensor, and the names that are no longer tied."""
        missing, untied = [], []
        joined = {one.parameter(key): (one, key) for one in self.experts for key in one.layers}
        of_blocks = {one.parameter: one for one in self.blocks}
        packed = {each.module for each in self.in_blocks if not each.reason}
        away_with = {x for module in packed for x in module._parameters.values()}
        self.used |= {name for one in self.blocks for name in one.tensors}
        for one in self.experts:
            if not one.packed:
                check_dense(one, self.stored)
            self.used |= {
                name for layer in one.all_layers for name in (self.names(layer) if one.packed else [f"{layer}.weight"])
            }
        for x, names in _owners(self.modules).items():
            if x in joined:
                self.joined[joined[x]] = names
                continue
            if x in of_blocks:
                self.unpacked += [(of_blocks[x], names)] * (x not in away_with)
                continue
            away = [name for name in names if name.rpartition(".")[0] in self.packed]
            dense = [name for name in names if name not in away]
            there = [name for name in dense if name in self.stored]
            if dense and away:
                untied.append(tuple(names))
            if dense and not there:
                tied = f" (tied to {', '.join(away)}, which is packed)" * bool(away)
                missing.append(f"{dense[0]}{tied}")
            for name in there:
                _check(name, self.stored[name], x)
                _check_tied(self.found, there[0], name)
            if there:
                if x not in away_with:
                    self.dense[tuple(dense)] = there[0]
                self.used |= {*there}
        surplus = self.stored.keys() - self.used
        if missing:
            said = f"{listed_names(missing)} {'is' if len(missing) == 1 else 'are'} missing in the checkpoint"
            others = f", which has {listed_names(surplus)}: Checkpoint(path, rename) names them" if surplus else ""
            if any(name.endswith("_blocks") for name in surplus):
                others += "; QuantizedLinear.from_checkpoint reads MXFP4 of one expert, kind 'mxfp4'"
            raise OperandError(said + others)
        if surplus:
            raise OperandError(
                f"{listed_names(surplus)}: in the checkpoint, and the model has no such tensor; ignore= leaves tensors"
            )
        self.untied = tuple(untied)

    def report(self, made: Mapping[torch.nn.Module, torch.nn.Module]) -> tuple[Swapped, ...]:
        """A line for each linear layer: replaced, or left and why."""
        sources = {name: source for names, source in self.dense.items() for name in names}
        found: dict[torch.nn.Module, Swapped] = {}
        for name, module in self.modules.items():
            if not isinstance(module, torch.nn.Linear) or module in found:
                continue
            if module in made:
                found[module] = Swapped(name, type(made[module]).__name__)
                continue
            source = sources[f"{name}.weight"]
            tied = f", as {source}" * (source != f"{name}.weight")
            kind = str(self.stored[source].dtype).removeprefix("torch.")
            found[module] = Swapped(name, reason=f"its weight is {kind} in the checkpoint{tied}")
        return tuple(found.values())


def _owners(modules: Mapping[str, torch.nn.Module]) -> dict[torch.Tensor, list[str]]:
    """The tensors of a state dict, with all their names."""
    owners: dict[torch.Tensor, list[str]] = {}
    for name, module in modules.items():
        for key, x in [*module._parameters.items(), *module._buffers.items()]:
            if x is not None and key not in module._non_persistent_buffers_set:
                owners.setdefault(x, []).append(f"{name}.{key}" if name else key)
    return owners


def _kind(asked: str | None, config: Mapping[str, object], layers: list[str]) -> str:
    """The kind of packed layers. Raises OperandError for an unknown one, or where nothing says it."""
    kind = asked
    said = config.get("quantization_config")
    if isinstance(said, dict) and layers:
        _check_config(said)
    if kind is None and isinstance(said, dict):
        kind = str(said.get("quant_method"))
        kind = _AUTO_ROUND_NAMES[0] if kind in _AUTO_ROUND_NAMES else kind
        order = said.get("checkpoint_format", said.get("format"))
        if kind == "gptq" and (said.get("is_marlin_format") is True or order not in (None, "gptq")):
            kind = "gptq_marlin" if said.get("is_marlin_format") is True else f"gptq_{str(order).removeprefix('gptq_')}"
        elif kind == "awq" and str(said.get("version", "gemm")).lower() != "gemm":
            kind = f"awq_{str(said['version']).lower()}"
        elif kind == ANY_PACKED:
            kind = str(said.get("format"))
            kind = ANY_PACKED if kind == "mixed-precision" else kind
        elif kind == "auto-round":
            packing = str(said.get("packing_format"))
            symmetric = packing == "auto_round:gptqmodel" and said.get("sym") is True  # the stored zero points tell
            kind = "gptq" if symmetric else _AUTO_ROUND.get(packing, kind)
        elif kind == "modelopt":
            kind = {"NVFP4": MODELOPT_FP4, "FP8": OF_BYTES[0]}.get(str(said.get("quant_algo")), kind)
        elif kind == "bitsandbytes" and said.get("load_in_8bit") is True:
            kind = INT8_ROWS
    if kind is None and layers:
        raise OperandError(f"{layers[0]} is packed, and no config.json says how: give kind=")
    if kind is not None and kind not in NEEDED and kind != FLOAT8_KIND:
        raise OperandError(unknown_kind(kind, (*NEEDED, FLOAT8_KIND)))
    return kind or ""


def _check_config(said: Mapping[str, object]) -> None:
    """Raise OperandError for a configuration by which weights mean something else than their tensors say."""
    if said.get("transform_config"):
        raise OperandError(
            f"transform_config is {shown(said['transform_config'])}: x of its layers is transformed, as by Hadamard "
            "matrices, and layers of their weights alone compute something else"
        )
    groups = said.get("config_groups")
    found = [of.get("weights") for of in groups.values() if isinstance(of, dict)] if isinstance(groups, dict) else []
    sizes = [said.get("weight_block_size"), *[of.get("block_structure") for of in found if isinstance(of, dict)]]
    if other := [size for size in sizes if size not in (None, [DEPTH, DEPTH], f"{DEPTH}x{DEPTH}")]:
        raise OperandError(f"scales are of blocks of {shown(other[0])}: {DEPTH} x {DEPTH}, or of a row, or of a tensor")


def _check(name: str, stored: StoredTensor, x: torch.Tensor) -> None:
    """Raise unless a parameter or a buffer can take a stored tensor."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise OperandError(f"{name} is a {type(x).__qualname__}: load the model before it is distributed or wrapped")
    if tuple(x.shape) != stored.shape:
        raise TensorError(f"{name} has shape {list(stored.shape)} in the checkpoint, and {list(x.shape)} in the model")
    floats = stored.dtype.is_floating_point, x.dtype.is_floating_point
    if floats[0] != floats[1] or (stored.dtype.itemsize == 1 and stored.dtype != x.dtype):
        raise OperandError(f"{name} is {stored.dtype} in the checkpoint, and {x.dtype} in the model")


def _check_shared(plan: _Plan, one: str, two: str) -> None:
    """Raise OperandError unless two names of a shared layer have the same tensors."""
    of_one, of_two = ({each.rpartition(".")[2] for each in plan.names(name)} for name in (one, two))
    if of_one != of_two:
        raise OperandError(f"{one} and {two} are one layer, and only one has {listed_names(of_one ^ of_two)}")
    for key in sorted(of_one):
        _check_tied(plan.found, f"{one}.{key}", f"{two}.{key}")


def _check_tied(found: Checkpoint, one: str, two: str) -> None:
    """Raise OperandError unless the stored tensors of one parameter are equal."""
    if one == two:
        return
    x, y = found.tensor(one), found.tensor(two)
    differs = (x != y) & ~(x.isnan() & y.isnan()) if x.dtype == y.dtype else torch.ones(x.shape, dtype=torch.bool)
    if bool(differs.any()):
        at = tuple(differs.nonzero()[0].tolist())
        raise OperandError(
            f"{one} and {two} are one parameter, and differ in the checkpoint at {at}: {x[at]} and {y[at]}"
        )


def _packed(name: str, layer: torch.nn.Linear, plan: _Plan, device: torch.device) -> torch.nn.Module:
    """The module of a packed layer."""
    size = layer.out_features, layer.in_features
    made = packed_layer(name, plan.read(name), plan.kind_of(name), size, layer.weight.dtype)
    return made.to(_device_of(layer, device)).train(layer.training)


def _device_of(module: torch.nn.Module, device: torch.device) -> torch.device:
    """The device of a module's parameters, or `device` for the meta device."""
    own = next(module.parameters()).device
    return device if own.type == "meta" else own


def _expert_lines(plan: _Plan, made: Mapping[torch.nn.Module, torch.nn.Module]) -> Iterator[Swapped]:
    """A line for each module of experts that were stored one by one."""
    for one in plan.experts:
        if one.module in made:
            yield Swapped(one.name, type(made[one.module]).__name__)
            continue
        count = f"{one.parameter(next(iter(one.layers))).shape[0]} experts of the checkpoint are joined"
        yield Swapped(one.name, reason=f"{count}, dequantised: {one.reason}" if one.packed else count)


def _block_lines(plan: _Plan, made: Mapping[torch.nn.Module, torch.nn.Module]) -> Iterator[Swapped]:
    """A line for each module whose parameters were blocks of MXFP4."""
    for each in plan.in_blocks:
        name, keys = each.parts[0].name, listed_names([one.key for one in each.parts])
        if each.module in made:
            yield Swapped(name, type(made[each.module]).__name__)
        else:
            said = f"{keys}: blocks of MXFP4 in the checkpoint, dequantised: {each.reason}"
            yield Swapped(name, reason=said)


def _fill(model: torch.nn.Module, names: Iterable[str], value: torch.Tensor, device: torch.device) -> None:
    """Set a tensor by all its names: in place, or a new one for one on the meta device."""
    for name in names:
        parent, _, key = name.rpartition(".")
        module = model.get_submodule(parent)
        old = getattr(module, key)
        if not old.is_meta:
            with torch.no_grad():
                old.copy_(value)
            return
        if not isinstance(value, torch.nn.Parameter):
            value = value.to(device, old.dtype)
            if isinstance(old, torch.nn.Parameter):
                value = torch.nn.Parameter(value, old.requires_grad)
        setattr(module, key, value)
