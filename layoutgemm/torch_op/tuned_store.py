"""Results of `layoutgemm.tune`, kept as JSON in the cache folder: product and GPU -> configuration.

One file a GPU and version of the package, `tuned/<gpu>-<version>.json`, written whole by one rename under a lock: any
number of processes and threads may store at once. A file that is not ours or is damaged, and an entry without a
configuration, are treated as absent. A configuration must hold to the same rules as any other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import LayoutError
from ..kernels.compile import cache as object_cache
from ..kernels.compile import worker
from ..kernels.epilogue.chain import Epilogue
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Config
from ..kernels.sm90.quantized.feature_parts import PartsChoice
from ..kernels.streamed.choose import StreamedChoice
from ..schedule import Schedule
from ..schedule.text import order_text

MEASURED = "measured by layoutgemm.tune"  # the reason for a choice
Choice = Sm90Choice | StreamedChoice | PartsChoice
Sizes = tuple[int, int, int, int]
Asked = dict[Sizes, str]  # the product of those sizes -> the name that a result is kept by
_ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)
_READ: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}


def key_of(sizes: Sizes, types: tuple[str, ...], orders: tuple[str, ...]) -> str:
    """The name of a product: sizes, types and orders of A, B, C.

    >>> key_of((64, 4096, 4096, 1), ("bf16", "bf16", "bf16"), ("row", "col", "row"))
    '64x4096x4096x1 bf16:row bf16:col bf16:row'
    """
    return " ".join(["x".join(map(str, sizes)), *[f"{t}:{o}" for t, o in zip(types, orders, strict=True)]])


def gated_types(types: tuple[str, ...], gate: str | None) -> tuple[str, ...]:
    """The types by which a product is kept. A gated product is another than one without a gate.

    gate  its function, or None

    >>> gated_types(("bf16", "bf16", "bf16"), "silu")
    ('bf16 gated by silu', 'bf16', 'bf16')
    """
    return types if gate is None else (f"{types[0]} gated by {gate}", *types[1:])


def finished_types(types: tuple[str, ...], epilogue: Epilogue) -> tuple[str, ...]:
    """The types by which a product with an epilogue is kept. A's says the steps, wherever their operands lie.

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> finished_types(("bf16", "bf16", "bf16"), Epilogue(Bias()))[0].rpartition(" ")[0]
    'bf16 with steps'
    """
    return f"{types[0]} with steps {_digest(_text(epilogue))}", *types[1:]


def _text(part: object) -> str:
    """A part of a product as text that is the same in every process; "" for steps of another package."""
    if isinstance(part, Epilogue):  # without what depends on where its operands lie
        return Epilogue(*part.steps, stores_c=part.stores_c, sums=part.sums).json
    if isinstance(part, Schedule):
        return order_text(part)
    json_of = getattr(part, "json", None)
    return json_of if isinstance(json_of, str) else repr(part)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_of(gpu: str) -> Path | None:
    """The file of a GPU's results, or None where the cache is off."""
    folder = object_cache.cache_dir()
    name = re.sub(r"[^A-Za-z0-9]+", "_", gpu).strip("_")
    return None if folder is None or not name else folder / "tuned" / f"{name}-{__version__}.json"


def lookup(gpu: str, sizes: Sizes, types: tuple[str, ...], orders: tuple[str, ...]) -> Sm90Choice | None:
    """The configuration of the Hopper kernel that was measured fastest, or None."""
    found = lookup_any(gpu, sizes, types, orders)
    return found if isinstance(found, Sm90Choice) else None


def lookup_any(gpu: str, sizes: Sizes, types: tuple[str, ...], orders: tuple[str, ...]) -> Choice | None:
    """The configuration that was measured fastest, of any kernel, or None. None within `unmeasured`."""
    key = key_of(sizes, types, orders)
    if (asked := _ASKED.get()) is not None:
        asked.setdefault(sizes, key)
        return None
    path = file_of(gpu)
    entry = _content(path).get(key) if path is not None else None
    return choice_of(entry) if entry is not None else None


def lookup_with_parts(gpu: str, sizes: Sizes, names: tuple[str, ...], *parts: object) -> Sm90Choice | None:
    """The configuration of a product with several parts that was measured fastest, or None.

    names  types of A, B and C, as a plan takes them: "bf16" or "bf16:col".
    parts  functions, steps, orders and indices, which other products of these sizes and types do not share
    """
    texts = [_text(part) for part in parts]
    if "" in texts:
        return None
    types, orders = zip(*[(name.partition(":")[0], name.partition(":")[2] or "row") for name in names], strict=True)
    found = lookup(gpu, sizes, (f"{types[0]} with parts {_digest(json.dumps(texts))}", *types[1:]), orders)
    return None if found is None or found.swapped else found


def fitting(found: Sm90Choice | None, derive: Callable[[Sm90Config], object]) -> Sm90Config | None:
    """The measured configuration, if this call has a plan with it. Otherwise the result is passed over.

    found   what `lookup` gave; one of a transposed product is passed over too
    derive  makes the plan of a configuration, and raises LayoutError where there is none

    >>> fitting(Sm90Choice(Sm90Config((128, 64))), lambda config: config.tile).tile
    (128, 64)
    """
    if found is not None and not found.swapped:
        with suppress(LayoutError):
            derive(found.config)
            return found.config
    return None


@contextmanager
def unmeasured() -> Iterator[Asked]:
    """Look for no results, and give the names by which they were looked for.

    Of several names for one product the first is kept, which is the one of all its parts.

    >>> with unmeasured() as asked:
    ...     found = lookup("NVIDIA H200", (64, 64, 64, 1), ("bf16",) * 3, ("row", "col", "row"))
    >>> found, asked
    (None, {(64, 64, 64, 1): '64x64x64x1 bf16:row bf16:col bf16:row'})
    """
    asked: Asked = {}
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def packed_types(x: str, weights: str) -> tuple[str, str, str]:
    """The types by which a product with packed weights is kept, for any result.

    x, weights  the type of x, and the format of the weights

    >>> packed_types("bf16", "int4 in groups of 128")
    ('bf16', 'int4 in groups of 128', 'any')
    """
    return x, weights, "any"


def store(gpu: str, key: str, choice: Choice | None, facts: Mapping[str, object]) -> Path | None:
    """Keep a result beside the others; `facts` are numbers and texts that describe it.

    choice  None for the usual configuration: an earlier result goes

    Gives the file, or None where the cache is off. None with a warning where the file cannot be written, or another
    process holds its lock for too long: the result is lost.
    """
    path = file_of(gpu)
    if path is None:
        return None
    kept = _kept(path, key, choice, facts)
    if kept is None:
        why = f"{path} is locked by another process, or cannot be written"
        object_cache.warn(f"the result for {key} is not kept: {why}")
    return kept


def _kept(path: Path, key: str, choice: Choice | None, facts: Mapping[str, object]) -> Path | None:
    with object_cache.locked(path) as alone:
        if not alone:
            return None
        content = dict(_content(path))
        content.pop(key, None)
        if choice is not None:
            content[key] = _entry(choice, facts)
        text = json.dumps(content, indent=1, sort_keys=True)
        return object_cache.place(path, lambda stream: stream.write(text.encode()))


def choice_of(entry: object) -> Choice | None:
    """The configuration of an entry, or None where it does not hold one.

    >>> choice_of({"swapped": False, "config": {"tile": [128, 64]}}).config.tile
    (128, 64)
    >>> choice_of({"swapped": False, "config": {"tile": "large"}}) is None
    True
    """
    choice = any_choice_of(entry)
    return choice if isinstance(choice, Choice) else None


def any_choice_of(entry: object) -> worker.AnyChoice | None:
    """The configuration of an entry, of any kernel, or None."""
    try:
        return worker.choice_of(entry)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # a LayoutError is a ValueError
        return None


def _entry(choice: Choice, facts: Mapping[str, object]) -> dict[str, Any]:
    plain = {name: value for name, value in facts.items() if isinstance(value, (str, int, float))}
    return {**plain, **worker.entry_of_choice(choice)}


def _content(path: Path) -> dict[str, Any]:
    """The file's entries that hold a configuration, read again when it has changed."""
    held = _READ.get(path)
    if held is not None and held[0] == object_cache.version(path):
        return held[1]
    found = object_cache.content(path)
    if found is None:
        return {}
    try:
        known = json.loads(found.data)
    except (ValueError, RecursionError):
        known = {}
    known = known if isinstance(known, dict) else {}
    choices = ((key, entry, choice_of(entry)) for key, entry in known.items())
    entries = {key: _entry(choice, entry) for key, entry, choice in choices if choice is not None}
    _READ[path] = found.version, entries
    return entries
