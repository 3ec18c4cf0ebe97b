"""A linear layer with packed weights of 4 or 8 bits, quantised once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ..arguments import refusal, shown
from ..errors import OperandError
from ..kernels.quantized.checkpoints import (
    from_awq,
    from_awq_gemv,
    from_bytes,
    from_compressed_tensors,
    from_float4,
    from_gptq,
    order_of_groups,
)
from ..kernels.quantized.formats import CODES, QuantizedFormat
from ..kernels.quantized.order import PackedOrder
from ..kernels.quantized.packing import QuantizedWeights
from ..kernels.run.operand_checks import addressed, check_operands
from ..torch_op.checks import autocast_type, check_activation, check_input
from ..torch_op.epilogue import gate_of
from ..torch_op.fp8.api import quantize
from ..torch_op.quantized import QuantizedWeight, quantized_matmul
from ..torch_op.quantized.api import quantized_again
from ..torch_op.quantized.dense import packed_for
from ..torch_op.quantized.launch import check_bias
from ..torch_op.quantized.weights import check_halves, in_place
from ..torch_op.scaled_grouped.recipes import ROW
from ..torch_op.types import C_NAMES
from .linear import ActivatedLayer, attributes, check_layer

INT4 = QuantizedFormat("int4", 128)
_IN_PLACE = ", bits in place"  # in `packed_as`: earlier versions had a word's codes side by side
# Formats of compressed-tensors: of whole bytes, and of packed codes. Its own name stands for all of them.
OF_BYTES = ("float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized")
ANY_PACKED, _GLOBAL = "compressed-tensors", "weight_global_scale"
MODELOPT_FP4, BLOCKS, INT8_ROWS = "modelopt_fp4", "fp8-weights", "bitsandbytes-int8"
_INT8_MOST = 127  # bitsandbytes' SCB is the largest weight of a row, whose code is 127
_PACKED_NEEDED = ("weight_packed", "weight_scale")
_WORDS_OPTIONAL = ("weight_zero_point", "weight_shape", "weight_g_idx", "bias")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "gptq": ("qweight", "qzeros", "scales"),
    "gptq_v2": ("qweight", "qzeros", "scales"),
    "awq": ("qweight", "qzeros", "scales"),
    "awq_gemv": ("qweight", "qzeros", "scales"),
    ANY_PACKED: _PACKED_NEEDED,
    "pack-quantized": _PACKED_NEEDED,
    "nvfp4-pack-quantized": (*_PACKED_NEEDED, _GLOBAL),
    "mxfp4-pack-quantized": _PACKED_NEEDED,
    **dict.fromkeys(OF_BYTES, ("weight_scale", "weight")),
    MODELOPT_FP4: ("weight_scale", "weight", "weight_scale_2"),
    BLOCKS: ("weight_scale_inv", "weight"),
    INT8_ROWS: ("SCB", "weight"),
    "mxfp4": ("blocks", "scales"),
}
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "gptq": ("g_idx", "bias"),
    "gptq_v2": ("g_idx", "bias"),
    "awq": ("bias",),
    "awq_gemv": ("bias",),
    ANY_PACKED: (_GLOBAL, *_WORDS_OPTIONAL),
    "pack-quantized": _WORDS_OPTIONAL,
    **dict.fromkeys(("nvfp4-pack-quantized", "mxfp4-pack-quantized"), ("bias",)),
    **dict.fromkeys(OF_BYTES, ("weight_zero_point", "bias")),
    **dict.fromkeys((MODELOPT_FP4, BLOCKS, "mxfp4"), ("bias",)),
    INT8_ROWS: ("weight_format", "bias"),
}
# Tensors that stand beside packed weights and are not of the weights.
_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("input_scale", "input_zero_point", "input_global_scale", "activation_scale"), "x is not quantised"
    ),
    **dict.fromkeys(("k_scale", "v_scale", "q_scale", "output_scale"), "it is not of the weights"),
}
COMPRESSED_TENSORS = (*OF_BYTES, ANY_PACKED)  # its kinds of weights that are whole bytes
_PACKED = tuple(kind for kind, needed in NEEDED.items() if needed[0] == "weight_packed")
_FROM_DENSE = "QuantizedLinear.from_linear takes the dequantised weights; "
_TABLES = (
    f"its codes of 4 bits are places in a table, with scales of scales. {_FROM_DENSE}"
    f"its int8 weights with SCB are read as kind {INT8_ROWS!r}; "
)
_GGUF = (
    "its blocks hold scales between their codes. transformers' from_pretrained(directory, gguf_file=...) gives the "
    "dense model, which swap_linears(model, weights=...) packs; "
)
# Other tools' checkpoints, and the way out.
_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("bitsandbytes", "bnb", "nf4"), _TABLES),
    **dict.fromkeys(("marlin", "gptq_marlin"), "its words are in its kernel's order, and GPTQ's are read as 'gptq'; "),
    "awq_marlin": "its words are in its kernel's order, and AWQ's are read as 'awq'; ",
    "nvfp4": f"'nvfp4-pack-quantized' is compressed-tensors' format of it, and {MODELOPT_FP4!r} ModelOpt's; ",
    "mxfp8": "'mxfp8-quantized' is compressed-tensors' format of it; ",
    "hqq": f"its zero points are no integers. {_FROM_DENSE}",
    "gguf": _GGUF,
    **dict.fromkeys(("torchao", "tinygemm"), f"its weights are tensor subclasses. {_FROM_DENSE}"),
    "quanto": f"its weights are weight._data with weight._scale. {_FROM_DENSE}",
    **dict.fromkeys(
        ("fp_quant", "higgs", "quip"),
        "its weights are rotated, by Hadamard matrices that x is multiplied by, too; ",
    ),
    "awq_gemv_fast": f"its words of 16 bits hold four rows, and its zero points are scaled. {_FROM_DENSE}",
    "fp8": f"float8 weights with weight_scale_inv of 128 x 128 blocks are ScaledLinear's state, which quantises x, and "
    f"{BLOCKS!r} reads them without; ",
    "mixed-precision": f"its layers have formats of their own, and kind {ANY_PACKED!r} reads each by its tensors; ",
    "auto-round": "tensors that it packs as GPTQ or AWQ are read as 'gptq' or 'awq' (whole zero points: 'gptq_v2'); ",
    "fbgemm_fp8": "its weights are read as kind 'float-quantized', without input_scale_ub; ",
    "modelopt": f"its NVFP4 weights are read as kind {MODELOPT_FP4!r}, and its float8 ones with weight_scale as "
    "'float-quantized', without input_scale; ",
}
_GGUF_BLOCKS = re.compile(r"(iq|tq|q)\d_\w+")  # of GGUF, such as q4_0


def unknown_kind(kind: object, known: Iterable[str]) -> str:
    """The message for a kind that none of the known ones is. What to do, then their names.

    >>> unknown_kind("aqlm", ("gptq", "awq"))
    "kind 'aqlm': QuantizedLinear.from_linear takes the dequantised weights; known are 'gptq', 'awq'"
    """
    name = str(kind).lower()
    advice = _GGUF if _GGUF_BLOCKS.fullmatch(name) else _OTHERS.get(name, _FROM_DENSE)
    return f"kind {shown(kind)}: {advice}known are {', '.join(map(repr, known))}"


def check_order(order: torch.Tensor, k: int, name: str = "order") -> None:
    """Raise OperandError, with a missing feature, unless lines are permutations of k.

    >>> check_order(torch.tensor([2, 0, 1]), 3)
    >>> check_order(torch.tensor([2, 0, 2]), 3)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: order has no 1: each of 3 input features once, in each line
    """
    if order.dtype != torch.int64 or order.ndim not in (1, 2) or order.shape[-1] != k:
        raise OperandError(f"{name} is {order.dtype} of shape {list(order.shape)}: int64 of [..., {k}]")
    if addressed(order):
        wrong = order.sort(-1).values != torch.arange(k, device=order.device)
        if bool(wrong.any()):
            line = order.reshape(-1, k)[int(wrong.reshape(-1, k).any(-1).nonzero()[0])].tolist()
            missing = min({*range(k)} - {*line})
            raise OperandError(f"{name} has no {missing}: each of {k} input features once, in each line")


class PackedBuffers(torch.nn.Module):
    """The buffers of packed weights. Casts of a module leave codes and scales as they are.

    units, scales, order  as `QuantizedLinear` has them; or those of several experts

    A state dict says the format, the sizes and the type of x, since units of others have as many bytes. Raises
    OperandError for a state of another layer.
    """

    units: torch.Tensor
    scales: torch.Tensor | None
    order: torch.Tensor | None
    format: QuantizedFormat
    activations: torch.dtype
    in_features: int
    weight_rows: int

    def __init__(self, units: torch.Tensor, scales: torch.Tensor | None, order: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("units", units)
        self.register_buffer("scales", scales)
        self.register_buffer("order", order)

    @property
    def packed_as(self) -> str:
        """The format, the sizes and the type of x. What the order of `units` depends on.

        >>> weight = QuantizedWeight.on_meta(64, 128, QuantizedFormat("int8"))
        >>> QuantizedLinear(weight).packed_as
        'int8 with a scale a column, 64x128, torch.bfloat16'
        """
        size = f"{self.format}, {self.weight_rows}x{self.in_features}, {self.activations}"
        order = PackedOrder(self.format, C_NAMES[self.activations])
        return size + _IN_PLACE if order.moved_since else size

    def get_extra_state(self) -> torch.Tensor:
        """`packed_as` in bytes, as files of tensors alone hold it."""
        return torch.tensor([*self.packed_as.encode()], dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Raise OperandError for a state of weights that are packed in another way."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.ndim != 1:
            raise OperandError(refusal(state, "_extra_state", "the bytes of packed_as"))
        if addressed(state) and (found := _text_of(state)) != self.packed_as:
            raise OperandError(
                f"the state is of weights packed as {found}, and the layer's are {self.packed_as}: "
                "load_state_dict takes those of a layer of the same format, sizes and type of x"
            )

    def _is_earlier(self, said: object, units: object) -> bool:
        """True for the state of the same layer whose codes lie side by side."""
        if not isinstance(said, torch.Tensor) or said.dtype != torch.uint8 or said.ndim != 1 or not addressed(said):
            return False
        if not isinstance(units, torch.Tensor) or type(units) is not torch.Tensor or units.shape != self.units.shape:
            return False
        return _text_of(said) + _IN_PLACE == self.packed_as

    def _load_from_state_dict(
        self, state: dict[str, torch.Tensor], prefix: str, metadata: dict[str, object], strict: bool,
        missing: list[str], unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        """Refuse another layer's state before anything is copied; move the bits of one of an earlier version."""
        if (said := state.get(f"{prefix}_extra_state")) is not None:
            if self._is_earlier(said, state.get(f"{prefix}units")):
                state[f"{prefix}units"] = in_place(state[f"{prefix}units"], self.format, self.activations)
                state[f"{prefix}_extra_state"] = said = self.get_extra_state()
            self.set_extra_state(said)
        self._check_stored(state, prefix)
        if said is None and strict and f"{prefix}units" not in state and f"{prefix}weight" in state:
            errors.append(f"{prefix}weight is dense: load it into the dense layer, and pack that by from_linear")
        if f"{prefix}units" in state:  # whose input features lie in the state's order, if it has one
            there = state.get(f"{prefix}order")
            if there is None or self.order is None:
                self.order = None if there is None else torch.empty_like(there, device=self.units.device)
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)

    def _check_stored(self, state: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Raise OperandError for parts of a state, types that a copy would cut, wrong orders."""
        own = {name: state.get(f"{prefix}{name}") for name in ("units", "scales", "order")}
        units, scales, order = (x if isinstance(x, torch.Tensor) else None for x in own.values())
        if self.scales is not None and (units is None) != (scales is None):
            have, lacks = ("units", "scales") if scales is None else ("scales", "units")
            raise OperandError(f"{prefix}{have} without {prefix}{lacks}: codes and scales are of one weight")
        if units is not None and units.dtype != torch.uint8:
            raise OperandError(f"{prefix}units is {units.dtype}: torch.uint8, which no cast has changed")
        if scales is not None and not scales.is_floating_point():
            raise OperandError(f"{prefix}scales is {scales.dtype}: floats")
        if order is not None:
            check_order(order, self.in_features, f"{prefix}order")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedBuffers:
        """Move the module; a cast does not convert codes and scales."""
        scales = self.scales
        super()._apply(fn, recurse)
        if scales is not None and self.scales is not None and self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self


class QuantizedLinear(ActivatedLayer, PackedBuffers):
    """activation(x @ weight.T + bias) with packed weights; `from_linear` and `from_checkpoint` make one.

    activation  as `quantized_matmul` takes it: "swiglu" and "geglu" gate the first half of the columns with the other

    With weights packed for float8, x is bfloat16, float16 or float32. Each call quantises it to float8_e4m3fn, with a
    scale for each row; the result has x's type, or autocast's. x then has no gradient.

    units, scales  buffers, as `QuantizedWeight` has them: not trained. x and bias have gradients
    bias           a parameter, or None
    order          a buffer: the input features in the order in which `weight` has them; None for their own order

    A state dict has all four. Raises OperandError for an activation that the product does not have.

    >>> layer = torch.nn.Linear(128, 2, bias=False, dtype=torch.bfloat16)
    >>> _ = layer.load_state_dict({"weight": torch.ones(2, 128)})
    >>> QuantizedLinear.from_linear(layer, QuantizedFormat("int8"))(torch.ones(1, 128).bfloat16()).tolist()
    [[128.0, 128.0]]
    """

    def __init__(
        self, weight: QuantizedWeight, bias: torch.nn.Parameter | None = None, *, activation: str | None = None,
        order: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(weight, QuantizedWeight):
            raise OperandError(refusal(weight, "weight of QuantizedLinear", "a QuantizedWeight"))
        check_activation(activation)
        check_halves(weight.n, gate_of(activation))
        if order is not None:
            check_order(order, weight.k)
            if order.ndim != 1:
                raise OperandError(f"order has shape {list(order.shape)}: [{weight.k}]")
        if bias is not None:
            check_operands({"units": weight.units, "bias": bias})
            check_bias(bias, weight.n)
        super().__init__(weight.units, weight.scales, order)
        self.format, self.activations, self.activation = weight.format, weight.activations, activation
        self.in_features, self.out_features = weight.k, weight.n
        self.bias = bias

    @classmethod
    def from_linear(
        cls, layer: torch.nn.Linear, fmt: QuantizedFormat = INT4, *, activation: str | None = None,
        activations: torch.dtype | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """The layer with another's weights, rounded to codes, and its bias.

        activations  the type of x: that of its weights, or torch.float8_e4m3fn

        A layer on the meta device gives one there, for `load_state_dict(state, assign=True)`.

        Raises OperandError unless its weights are bfloat16 or float16, or `activations` is given, and groups divide its
        in_features.
        """
        check_layer(layer, "layer of QuantizedLinear.from_linear")
        size, kind = (layer.out_features, layer.in_features), activations or layer.weight.dtype
        if activations is None and packed_for(kind) != kind:
            raise OperandError(
                f"weight is {kind}, and x of that type has no kernel: cast the layer to bfloat16 or float16, or give "
                "from_linear the type of x, activations=torch.bfloat16"
            )
        if layer.weight.is_meta:
            weight = QuantizedWeight.on_meta(*size, fmt, kind)
        else:
            weight = QuantizedWeight.quantize(layer.weight, fmt, kind)
        return cls(weight, layer.bias, activation=activation).train(layer.training)

    @classmethod
    def from_checkpoint(
        cls, tensors: Mapping[str, torch.Tensor], kind: str, *, dtype: torch.dtype = torch.float16,
        activation: str | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """The layer of a checkpoint's tensors, by their names there. And bias if there is one.

        kind    "gptq"                qweight, qzeros, scales, and g_idx if there is; 4 bits, or 8 without zero points
                "gptq_v2"             the same, with zero points as they are
                "awq", "awq_gemv"     qweight, qzeros, scales in GEMM's order, and in GEMV's
                "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"   weight_packed, weight_scale, and
                                      weight_zero_point, weight_shape, weight_g_idx, or weight_global_scale of NVFP4:
                                      formats of compressed-tensors
                "float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized"   weight of float8 or int8, and
                                      weight_scale, of compressed-tensors; x is not quantised
                "compressed-tensors"  any of its formats, by the tensors' names and types
                "modelopt_fp4"        weight, weight_scale and weight_scale_2 of ModelOpt's NVFP4
                "fp8-weights"         weight of float8, and weight_scale_inv of 128 x 128 blocks, as DeepSeek has
                                      them; x is not quantised
                "bitsandbytes-int8"   weight of int8, SCB, and weight_format if there is, of LLM.int8()
                "mxfp4"               blocks and scales of one expert, as gpt-oss has them
        tensors  also `Checkpoint.under(layer)`, of files
        dtype   of activations: scales are rounded to it, those for float8_e4m3fn to bfloat16

        With groups out of order in g_idx ("act-order"), the layer reorders x in every call.

        Raises OperandError naming a tensor that is missing, surplus or does not fit, and with the way out for other
        kinds.
        """
        if packed_for(dtype) != dtype:
            raise OperandError(f"dtype is {shown(dtype)}: bfloat16, float16, or float8_e4m3fn")
        plain, order = plain_weights(tensors, kind)
        first = tensors[NEEDED[_format_of(tensors, kind)][0]]
        places = None if order is None else torch.from_numpy(order).to(first.device)
        like = torch.bfloat16 if dtype.itemsize == 1 else dtype
        bias = tensors.get("bias")
        if bias is not None:
            check_bias(bias, plain.n)
            bias = torch.nn.Parameter(bias.to(first.device, like))
        weight = QuantizedWeight.pack(plain, dtype).to(first.device)
        return cls(weight, bias, activation=activation, order=places)

    @property
    def weight(self) -> QuantizedWeight:
        """The packed weights, of input features in `order`; checked once for the same tensors."""
        made = self.__dict__.get("_weight")
        units, scales = attributes(self, QuantizedLinear, "units", "scales")
        if made is None or made.units is not units or made.scales is not scales:
            size = self.weight_rows, self.in_features
            made = QuantizedWeight(self.format, units, scales, *size, self.activations)
            if not torch.compiler.is_compiling():
                self.__dict__["_weight"] = made
        return made

    def __getstate__(self) -> dict[str, object]:
        """The module's state, without the dense copy that `weight` keeps."""
        return {name: value for name, value in self.__dict__.items() if name != "_weight"}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias), of shape (..., out_features)."""
        order, bias = attributes(self, QuantizedLinear, "order", "bias")
        x, wide = input, self.activations.itemsize > 1
        if order is None and (again := quantized_again(x, self.weight, bias, self.activation)) is not None:
            return again
        if not (wide and order is None and type(x) is torch.Tensor and x.shape[-1:] == (self.in_features,)):
            check_input(x, self.in_features)  # the product checks any other input likewise
        if order is not None:
            x = x.index_select(-1, order)
        if wide:
            return quantized_matmul(x, self.weight, bias=bias, activation=self.activation)
        values, scale = quantize(x.reshape(-1, x.shape[-1]), ROW, dtype=self.activations)
        made = quantized_matmul(
            values, self.weight, scale_x=scale, bias=bias, activation=self.activation,
            out_dtype=autocast_type(x) or x.dtype,
        )  # fmt: skip
        return made.reshape(*x.shape[:-1], made.shape[-1])

    def dequantized(self) -> torch.Tensor:
        """The weights (out_features, in_features) in the activations' type; those for float8 in float32."""
        dense = self.weight.dense(torch.float32 if self.activations.itemsize == 1 else self.activations)
        return dense if self.order is None else dense[:, self.order.argsort()]

    @property
    def _told(self) -> tuple[str, ...]:
        return (str(self.format),)


def _text_of(state: torch.Tensor) -> str:
    """The `packed_as` of an extra state."""
    return bytes(state.tolist()).decode(errors="replace")


def _format_of(tensors: Mapping[str, torch.Tensor], kind: str) -> str:
    """The kind; that of whole bytes for compressed-tensors' own name, and for its name of blocks' scales."""
    unpacked = kind == ANY_PACKED and "weight" in tensors and "weight_packed" not in tensors
    renamed = kind == BLOCKS and "weight_scale" in tensors and "weight_scale_inv" not in tensors
    return OF_BYTES[0] if unpacked or renamed else kind


def plain_weights(
    tensors: Mapping[str, torch.Tensor], kind: str
) -> tuple[QuantizedWeights, npt.NDArray[np.int64] | None]:
    """The weights of a checkpoint's layer, and any order of their input features.

    Raises OperandError as `QuantizedLinear.from_checkpoint`.
    """
    if kind not in NEEDED:
        raise OperandError(unknown_kind(kind, NEEDED))
    kind = _format_of(tensors, kind)
    missing = [name for name in NEEDED[kind] if name not in tensors]
    if missing:
        needed = ", ".join(NEEDED[kind])
        raise OperandError(f"{missing[0]} is missing: a checkpoint of kind {shown(kind)} has {needed}")
    if surplus := sorted(tensors.keys() - {*NEEDED[kind], *_OPTIONAL[kind]}):
        known = ", ".join((*NEEDED[kind], *_OPTIONAL[kind]))
        why = _OF_OTHERS.get(surplus[0])
        way_out = f"; {why}: load_checkpoint(ignore=['*.{surplus[0]}']) leaves it" if why else ""
        said = f"{surplus[0]} is surplus: a layer of kind {shown(kind)} is computed from {known} alone"
        raise OperandError(said + way_out)
    given = {name: x for name, x in tensors.items() if x is not None or name not in _OPTIONAL[kind]}
    for name, x in given.items():
        check_operands({name: x})
        if not addressed(x):
            raise OperandError(f"{name} has no values: it is traced, mapped, fake or on the meta device")
    if kind in OF_BYTES:
        return _of_bytes(given, given["weight_scale"]), None
    if kind == BLOCKS:
        return _of_bytes(given, given["weight_scale_inv"]), None
    if kind == INT8_ROWS:
        return _of_int8_rows(given), None
    if kind == MODELOPT_FP4:
        return _of_modelopt({name: _array(x) for name, x in given.items() if name != "bias"}), None
    if kind in _PACKED:
        return _compressed(given)
    return _plain_of(kind, {name: _array(x) for name, x in given.items() if name != "bias"})


def _of_modelopt(found: Mapping[str, npt.NDArray[np.generic]]) -> QuantizedWeights:
    """NVFP4 weights whose scales of groups are multiplied by a second one."""
    second = found["weight_scale_2"].reshape(-1).astype(np.float64)
    if second.shape != (1,) or not 0 < second[0] < np.inf:
        raise OperandError(f"weight_scale_2 is {shown(second.tolist())}: one finite number above 0")
    scales = found["weight_scale"]
    if scales.dtype.kind != "f":
        raise OperandError(f"weight_scale is {scales.dtype} of shape {scales.shape}: floats")
    return from_float4(found["weight"], scales.astype(np.float64) * second[0])


def _of_int8_rows(given: Mapping[str, torch.Tensor]) -> QuantizedWeights:
    """int8 weights whose rows have the largest weight in SCB."""
    if (order := given.get("weight_format")) is not None and bool(order.ne(0).any()):
        raise OperandError(
            f"weight_format is {shown(order.tolist())}: 0, rows one after another; others are of kernels"
        )
    if given["weight"].dtype != torch.int8:
        raise OperandError(f"weight is {given['weight'].dtype} of shape {list(given['weight'].shape)}: int8")
    if not given["SCB"].is_floating_point() or given["SCB"].ndim != 1:
        raise OperandError(f"SCB is {given['SCB'].dtype} of shape {list(given['SCB'].shape)}: floats, one for each row")
    return _of_bytes(given, given["SCB"].double() / _INT8_MOST)


def _of_bytes(given: Mapping[str, torch.Tensor], scale: torch.Tensor) -> QuantizedWeights:
    """The weights of tensors of whole bytes."""
    weight, zeros = given["weight"], given.get("weight_zero_point")
    code = C_NAMES.get(weight.dtype, "") if weight.is_floating_point() else "int8"
    if code not in CODES:
        raise OperandError(f"weight is {weight.dtype} of shape {list(weight.shape)}: int8 or float8")
    bits = weight.detach().cpu().view(torch.uint8) if weight.is_floating_point() else weight.detach().cpu()
    return from_bytes(bits.numpy(), _array(scale), code, None if zeros is None else _array(zeros))


def _array(x: torch.Tensor) -> npt.NDArray[np.generic]:
    """A checkpoint's tensor as an array: floats as float64, integers unchanged."""
    there = x.detach().cpu()
    found: npt.NDArray[np.generic] = (there.double() if there.is_floating_point() else there).numpy()
    return found


def _plain_of(
    kind: str, found: Mapping[str, npt.NDArray[np.generic]]
) -> tuple[QuantizedWeights, npt.NDArray[np.int64] | None]:
    """The weights of a checkpoint, and any order of its input features."""
    if kind == "mxfp4":
        if (scales := found["scales"]).dtype != np.uint8:
            raise OperandError(f"scales are {scales.dtype} of shape {scales.shape}: uint8 exponents")
        return from_float4(found["blocks"], found["scales"]), None
    words, g_idx = (found["qweight"], found["qzeros"], found["scales"]), found.get("g_idx")
    if kind in ("awq", "awq_gemv"):
        return (from_awq if kind == "awq" else from_awq_gemv)(*words), None
    order = _order(g_idx, np.shape(words[2])[0])
    return from_gptq(*words, g_idx, order, version=1 if kind == "gptq" else 2), order


def _compressed(
    given: Mapping[str, torch.Tensor],
) -> tuple[QuantizedWeights, npt.NDArray[np.int64] | None]:
    """The weights of compressed-tensors: bytes of float4, or words; and any order of their input features."""
    found = {name: _array(x) for name, x in given.items() if name != "bias"}
    packed, scale, g_idx = found["weight_packed"], found["weight_scale"], found.get("weight_g_idx")
    if packed.dtype == np.uint8:
        others = ("weight_zero_point", "weight_g_idx")
        if surplus := [name for name in others if name in found]:
            raise OperandError(f"{surplus[0]} is surplus: weight_packed is uint8, which are codes of float4")
        if _GLOBAL not in found and given["weight_scale"].dtype == torch.float8_e4m3fn:
            raise OperandError(f"{_GLOBAL} is missing: weight_scale is float8_e4m3fn, NVFP4's, which it divides")
        return from_float4(packed, scale, found.get(_GLOBAL)), None
    if _GLOBAL in found:
        raise OperandError(f"{_GLOBAL} is surplus: weight_packed is {packed.dtype}, and float4's is uint8")
    order = _order(g_idx, scale.shape[-1] if scale.ndim else 0)
    zeros, shape = found.get("weight_zero_point"), found.get("weight_shape")
    return from_compressed_tensors(packed, scale, zeros, shape, g_idx, order), order


def _order(g_idx: npt.NDArray[np.generic] | None, groups: int) -> npt.NDArray[np.int64] | None:
    """The order of input features whose groups are not in order; None where they are."""
    if g_idx is None or g_idx.dtype.kind not in "iu" or not (np.diff(g_idx.astype(np.int64)) < 0).any():
        return None
    return order_of_groups(g_idx, groups)
