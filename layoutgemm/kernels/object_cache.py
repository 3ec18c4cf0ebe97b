"""Compiled kernels on disk: one file a kernel, named by a hash of everything that decides its code.

A file is a zip archive of the kernel's parts, the facts it was made from, and the parts' SHA-256. It appears under its
name by one atomic rename, so any number of processes may write at once; what cannot be read, was made from other facts
or is not what its digest says, is treated as absent and written again. A cache that cannot be read or written costs a
compilation, and no more.

What lies here is executed. So the folder is the user's alone (mode 0700), and a file, or a folder, that belongs to
somebody else or that others may write is not read; nothing in a file is evaluated, unpickled or loaded before its
digest has been compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import stat
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ..layouts import ComposedLayout, Layout, ScaledBasis, Swizzle

CACHE_DIR_VARIABLE = "LAYOUTGEMM_CACHE_DIR"
_FACTS, _DIGESTS = "facts.json", "digests.json"
_ABANDONED = 3600.0  # seconds after which a file that its writer never finished is removed
# What a compiled kernel is made from besides the plan's values: the code that derives, evaluates and traces them.
_SOURCES = ("layouts", "atoms", "kernels", "arch.py", "dtypes.py")
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, NotImplementedError)


def cache_dir() -> Path | None:
    """Where compiled kernels are kept, or None for nowhere.

    LAYOUTGEMM_CACHE_DIR names the folder; set to nothing it switches the cache off. Otherwise the platform's own place:
    $XDG_CACHE_HOME or ~/.cache on Linux, ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows.
    """
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    if chosen is not None:
        return Path(chosen).expanduser() if chosen.strip() else None
    try:
        home = Path.home()
    except RuntimeError:  # no home directory at all
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "layoutgemm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "layoutgemm" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "layoutgemm"


def facts_of(value: Any) -> Any:
    """A value made of dataclasses, tuples, strings and numbers, as JSON-able data: equal values give equal data.

    Raises TypeError for anything else: two kernels must never share a name because a part of them was not looked at.

    >>> from layoutgemm.dtypes import bf16
    >>> facts_of((1, bf16))
    [1, {'type': 'DType', 'name': 'bf16', 'bits': 16, 'kind': 'float', 'mantissa': 8}]
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Layout, Swizzle, ComposedLayout, ScaledBasis)):
        return repr(value)  # which evaluates back to the value, so it says everything
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: facts_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [facts_of(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: facts_of(value[key]) for key in sorted(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(facts_of(item), sort_keys=True) for item in value)
    if isinstance(value, Enum):
        return str(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be part of a kernel's name")


@functools.cache
def source_hash() -> str:
    """A hash of the package's files that take part in making a kernel: changed code never finds an old kernel."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def host() -> str:
    """The machine the host half of a kernel was compiled for: it may use every instruction of this processor."""
    features = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{sys.platform} {platform.machine()} {hashlib.sha256(features.encode()).hexdigest()[:16]}"


def key_of(facts: Mapping[str, Any]) -> str:
    """The file name for a set of facts: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def read(facts: Mapping[str, Any], names: tuple[str, ...], folder: str = "kernels") -> dict[str, bytes] | None:
    """The named parts of what was made from these facts, or None when there is no whole, sound file of it."""
    path = _path(facts, folder)
    if path is None or distrust(path.parent):
        return None
    try:
        with open(path, "rb") as stream:
            if _others(os.fstat(stream.fileno())):
                return None
            with zipfile.ZipFile(stream) as archive:
                if json.loads(archive.read(_FACTS)) != json.loads(json.dumps(facts)):
                    return None
                digests = json.loads(archive.read(_DIGESTS))
                parts = {name: archive.read(name) for name in names}
        return parts if all(digests[name] == _digest(part) for name, part in parts.items()) else None
    except _UNREADABLE:
        return None


def kept(facts: Mapping[str, Any]) -> bool:
    """Whether there is a file of these facts; whether it is sound, reading it tells."""
    path = _path(facts)
    return path is not None and path.exists()


def write(facts: Mapping[str, Any], parts: Mapping[str, bytes], folder: str = "kernels") -> Path | None:
    """Keep parts under their facts; gives the file, or None when the cache is off or cannot be written.

    folder  of the cache; what is no kernel has another one
    """
    path = _path(facts, folder)
    if path is None:
        return None

    def content(stream: Any) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_FACTS, json.dumps(facts, sort_keys=True))
            archive.writestr(_DIGESTS, json.dumps({name: _digest(part) for name, part in parts.items()}))
            for name, part in parts.items():
                archive.writestr(name, part)

    return place(path, content)


def place(path: Path, write: Callable[[Any], object]) -> Path | None:
    """Write a file of the cache whole, under its name by one rename; None where that cannot be done.

    The folder is made the user's alone. A writer that is killed leaves a file of another name, which a later one
    removes.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(path.parent)
        if distrust(path.parent):
            return None
        _sweep(path.parent)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        os.replace(temporary, path)
        return path
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return None


def make_private(folder: Path) -> None:
    """Take away what others may do with a folder of this user's: an umask, or an older version, may have left it so."""
    if hasattr(os, "getuid"):
        found = folder.stat()
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)


def distrust(path: Path) -> str:
    """Why nothing under this path may be executed, in a sentence; "" where nothing speaks against it."""
    try:
        found = path.lstat()
    except OSError:
        return ""  # nothing is there
    if stat.S_ISLNK(found.st_mode):
        with contextlib.suppress(OSError):
            found = path.stat()
    why = _others(found)
    return f"{path} {why}" if why else ""


def _others(found: os.stat_result) -> str:
    """What somebody else could do with a file or folder of this status."""
    if not hasattr(os, "getuid"):  # Windows: access lists, which the user's own folder inherits
        return ""
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}, not {os.getuid()}"
    if found.st_mode & 0o022:
        return f"may be written by others: its mode is {stat.S_IMODE(found.st_mode):04o}"
    return ""


def _digest(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    before = time.time() - _ABANDONED
    for file in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()


def _path(facts: Mapping[str, Any], folder: str = "kernels") -> Path | None:
    root = cache_dir()
    return None if root is None else root / folder / f"{key_of(facts)}.zip"
