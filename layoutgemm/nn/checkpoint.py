"""The tensors of a checkpoint in safetensors: one file, or shards with an index. Read one at a time.

    model.safetensors.index.json    {"weight_map": {name of a tensor: file of a shard}}
    NAME.safetensors                tensors, read by the package `safetensors`: pip install 'layoutgemm[checkpoints]'

Headers alone are read when a checkpoint is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..arguments import as_path, shown
from ..errors import OperandError

INDEX = "model.safetensors.index.json"
_ENDING = ".safetensors"
# Files of other kinds, by their endings, and the way out.
_PICKLED = "a pickled state: safetensors.torch.save_file(torch.load(file, weights_only=True), path) writes its tensors"
_OTHER_FILES = {
    ".gguf": "a GGUF file, whose blocks hold scales between their codes: transformers' from_pretrained(directory, "
    "gguf_file=...) gives the dense model, which swap_linears(model, weights=...) packs",
    **dict.fromkeys((".bin", ".pt", ".pth"), _PICKLED),
}
# A tool's own file -> its quant_method, which older files leave out.
_OWN_CONFIGS = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.uint8,
}  # fmt: skip  # powers of two are read as their exponents


class StoredTensor(NamedTuple):
    """A tensor in a file, by its name there."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str


class Checkpoint:
    """The tensors of a checkpoint by name; `tensor` and `under` read them.

    path     a directory with model.safetensors.index.json, or with one .safetensors file; or one of these files
    rename   a function from a tensor's name in the files to its name here, as a model's has another prefix; or None
    tensors  each tensor's file, type and shape
    config   what config.json beside them says, {} without one. If it has no quantization_config, that of GPTQ's,
             AWQ's or ModelOpt's own file

    Raises OperandError for files that are missing, cut off or no safetensors. Raises it for tensors that the index has
    and its shards have not, or the other way round, and for two of one name. ModuleNotFoundError without the package.

    >>> import tempfile, safetensors.torch
    >>> with tempfile.TemporaryDirectory() as path:
    ...     safetensors.torch.save_file({"bias": torch.ones(2)}, f"{path}/model.safetensors")
    ...     Checkpoint(path).tensor("bias")
    tensor([1., 1.])
    """

    def __init__(self, path: str | os.PathLike[str], rename: Callable[[str], str] | None = None) -> None:
        self.path = as_path(path, "path of Checkpoint")
        index = self.path / INDEX if self.path.is_dir() else self.path
        if index.is_file() and index.name.endswith(".json"):
            self.tensors = _indexed(index)
        else:
            self.tensors = dict(_header(_only_file(self.path)))
        if rename is not None:
            self.tensors = _renamed(self.tensors, rename)
        self.config = _config(index.parent)
        self._layers: dict[str, list[str]] = {}
        for name in self.tensors:
            self._layers.setdefault(name.rpartition(".")[0], []).append(name)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that have tensors."""
        return tuple(dict.fromkeys(each.file for each in self.tensors.values()))

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU. Raises OperandError for an unknown name."""
        if name not in self.tensors:
            raise OperandError(f"{name} is missing: {self.path} has no tensor of that name")
        of = self.tensors[name]
        with _opened(of.file) as file:
            found: torch.Tensor = file.get_tensor(of.name)
        return found.view(of.dtype).clone()  # of its own: the file's memory is one

    def names(self, layer: str) -> tuple[str, ...]:
        """The names of a layer's own tensors: its name, a dot, and one word."""
        return tuple(self._layers.get(layer, ()))

    def under(self, layer: str) -> dict[str, torch.Tensor]:
        """The tensors of one layer, by the last word of their names; OperandError for none."""
        if not self.names(layer):
            raise OperandError(f"{layer} has no tensors in {self.path}")
        return {name.rpartition(".")[2]: self.tensor(name) for name in self.names(layer)}


def _config(folder: Path) -> dict[str, object]:
    """A checkpoint's config.json, with the "quantization_config" of a tool's own file."""
    found = _object(folder / "config.json") if (folder / "config.json").is_file() else {}
    for name, method in _OWN_CONFIGS.items():
        if "quantization_config" not in found and (folder / name).is_file():
            own = _object(folder / name)
            inner = own.get("quantization")
            found["quantization_config"] = {"quant_method": method, **(inner if isinstance(inner, dict) else own)}
    return found


def listed_names(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many there are.

    >>> listed_names(["c", "a", "b"], 2)
    'a, b and 1 more'
    """
    given = sorted(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(given[:most]) + more


def _renamed(tensors: Mapping[str, StoredTensor], rename: Callable[[str], str]) -> dict[str, StoredTensor]:
    """The tensors by other names. Raises OperandError for two of one name, and a name that is no text."""
    found: dict[str, StoredTensor] = {}
    for name, of in tensors.items():
        other = rename(name)
        if not isinstance(other, str) or not other:
            raise OperandError(f"rename({shown(name)}) is {shown(other)}: a name")
        if other in found:
            raise OperandError(f"{found[other].name} and {name} are both renamed to {other}")
        found[other] = of
    return found


def _only_file(path: Path) -> Path:
    """The file of a checkpoint without an index."""
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.name.endswith(_ENDING))
        if len(files) == 1:
            return files[0]
        if files:
            names = listed_names([each.name for each in files])
            raise OperandError(f"{path} has {len(files)} files, {names}, and no {INDEX}, which says what is where")
        others = sorted(each for each in path.iterdir() if each.suffix in _OTHER_FILES)
        beside = f"; {others[0].name} is {_OTHER_FILES[others[0].suffix]}" if others else ""
        raise OperandError(f"{path} has neither {INDEX} nor a {_ENDING} file{beside}")
    if not path.is_file():
        named = len(path.parts) == 2 and not path.is_absolute()  # as owner/name
        way_out = f"; huggingface_hub.snapshot_download({str(path)!r}) gives that repository's" if named else ""
        raise OperandError(f"{path} is no file and no directory{way_out}")
    return path


def _indexed(index: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards of an index."""
    named = _object(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise OperandError(f"{index} has no weight_map of names and files")
    files = dict.fromkeys(named.values())
    if outside := [file for file in files if Path(file).name != file]:
        raise OperandError(f"{index}: the file {shown(outside[0])} is not in the directory of the index")
    headers, found = {file: _header(index.parent / file) for file in files}, {}
    for file, there in headers.items():
        asked = {name for name, other in named.items() if other == file}
        if missing := asked - there.keys():
            raise OperandError(f"{listed_names(missing)}: {INDEX} has them in {file}, which has not")
        if surplus := there.keys() - asked:
            raise OperandError(f"{listed_names(surplus)}: {file} has them, and {INDEX} does not have them there")
        found.update(there)
    return found


def _object(path: Path) -> dict[str, object]:
    """A file's JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OperandError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise OperandError(f"{path} is a {type(found).__name__}, not a JSON object")
    return found


def _header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file."""
    if not path.is_file():
        raise OperandError(f"{path} is missing")
    found = {}
    with _opened(path) as file:
        for name in file.keys():
            stored = file.get_slice(name)
            kind = stored.get_dtype()
            if kind not in _TYPES:
                raise OperandError(f"{path}: {name} is {shown(kind)}: known are {', '.join(_TYPES)}")
            found[name] = StoredTensor(path, _TYPES[kind], tuple(stored.get_shape()), name)
    return found


def _opened(path: Path) -> Any:
    """The package's reader of a file, for a with statement."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        said = "checkpoints need the package safetensors: pip install 'layoutgemm[checkpoints]'"
        raise ModuleNotFoundError(said, name=error.name) from error
    if path.suffix in _OTHER_FILES:
        raise OperandError(f"{path} is {_OTHER_FILES[path.suffix]}")
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise OperandError(f"{path} is no safetensors file, or cut off: {error}") from error
