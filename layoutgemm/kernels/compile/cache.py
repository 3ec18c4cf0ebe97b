"""Compiled kernels on disk. One file a kernel, named by a hash of everything that decides its code.

A file is a zip archive of the kernel's parts, the facts it was made from, and the parts' SHA-256. It appears under its
name by one atomic rename, so any number of processes may write at once. A file that cannot be read, was made from other
facts or differs from its digest is treated as absent and written again. A cache that cannot be read or written costs a
compilation, and no more.

The cache has a folder of its own, `layoutgemm-cache` under LAYOUTGEMM_CACHE_DIR, and changes nothing outside of it. The
folder is made with mode 0700. Files there are executed. So a file or folder is not read where it belongs to another
user, others may write it, or it is a symbolic link. Nothing in a file is evaluated, unpickled or loaded before its
digest has been compared.

Under umask 002 `mkdir` makes folders that the group may write. A folder of the user's own loses this right when it is
used; a file that another user has put there is not read. A process warns once of each folder that is refused or cannot
be written, and names the way out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...arguments import shown
from ...layouts import ComposedLayout, Layout, ScaledBasis, Swizzle

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CACHE_DIR_VARIABLE = "LAYOUTGEMM_CACHE_DIR"
_KEPT_IN: Path | None = None  # of a compiling process
OWN_NAME = "layoutgemm-cache"  # of the folder under the one that the variable names
_FACTS, _DIGESTS = "facts.json", "digests.json"
_ABANDONED = 3600.0  # seconds after which a file that its writer never finished is removed
# The code that derives, evaluates and traces plans: a compiled kernel depends on it and on the plan's values.
_SOURCES = ("layouts", "atoms", "schedule", "checks", "kernels", "arch.py", "arches.json", "dtypes.py")
_UNFINISHED = re.compile(r"\.layoutgemm-[a-z0-9_]{8}\.tmp")  # names of `tempfile.mkstemp`
_GROUP, _OTHERS = stat.S_IWGRP, stat.S_IWGRP | stat.S_IWOTH
_SAID: set[str] = set()  # reasons for which a warning was given
_LARGEST = 1 << 28  # bytes of a file that is read
_LOCK_SECONDS, _LOCK_PAUSE = 30.0, 0.01
_READ_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def cache_dir() -> Path | None:
    """The folder of compiled kernels, or None for no cache.

    LAYOUTGEMM_CACHE_DIR names a folder, in which `layoutgemm-cache` is the cache's own; set to nothing, or to a home
    folder that does not exist, it switches the cache off. Otherwise the platform's own place: $XDG_CACHE_HOME or
    ~/.cache on Linux, ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows.
    """
    if _KEPT_IN is not None:
        return _KEPT_IN
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    try:
        if chosen is not None:
            return Path(chosen).expanduser() / OWN_NAME if chosen.strip() else None
        home = Path.home()
    except RuntimeError:  # no home directory at all, or no such user
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "layoutgemm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "layoutgemm" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "layoutgemm"


def keep_in(folder: Path) -> None:
    """Make this folder the cache's own, whatever the environment says. A compiling process has its caller's."""
    global _KEPT_IN
    _KEPT_IN = folder


def facts_of(value: object, other: Callable[[object], str] | None = None) -> object:
    """A value made of dataclasses, tuples, strings and numbers, as JSON-able data. Equal values give equal data.

    Raises TypeError for anything else, or asks `other`: two kernels must never share a name because a part of them was
    not looked at.

    >>> from layoutgemm.dtypes import bf16
    >>> facts_of((1, bf16))
    [1, {'type': 'DType', 'name': 'bf16', 'bits': 16, 'kind': 'float', 'mantissa': 8}]
    """
    part = functools.partial(facts_of, other=other)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Layout, Swizzle, ComposedLayout, ScaledBasis)):
        return repr(value)  # which evaluates back to the value, so it says everything
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: part(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [part(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: part(value[key]) for key in sorted(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(part(item), sort_keys=True) for item in value)
    if isinstance(value, Enum):
        return str(value)
    if other is not None:
        return other(value)
    raise TypeError(f"{shown(value)} of type {type(value).__name__} cannot be part of a kernel's name")


def hash_of(root: Path, names: Sequence[str] = ("",)) -> str:
    """A hash of files and folders below `root`. It is of code, and of the data that it reads.

    names  of files and folders; by default all
    """
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        files = [x for x in path.rglob("*") if x.suffix in (".py", ".json", ".txt")] if path.is_dir() else [path]
        for file in sorted(files):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def source_hash() -> str:
    """A hash of the package's files that take part in making a kernel. Changed code never finds an old kernel."""
    return hash_of(Path(__file__).resolve().parents[2], _SOURCES)


@functools.cache
def host() -> str:
    """The machine the host half of a kernel was compiled for. It may use every instruction of this processor."""
    features = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{sys.platform} {platform.machine()} {hashlib.sha256(features.encode()).hexdigest()[:16]}"


def key_of(facts: Mapping[str, object]) -> str:
    """The file name for a set of facts: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def read(facts: Mapping[str, object], names: tuple[str, ...], folder: str = "kernels") -> dict[str, bytes] | None:
    """The named parts of the kernel of these facts; None without a sound file."""
    path = _path(facts, folder)
    found = content(path) if path is not None else None
    if found is None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(found.data)) as archive:
            if json.loads(archive.read(_FACTS)) != json.loads(json.dumps(facts)):
                return None
            digests = json.loads(archive.read(_DIGESTS))
            parts = {name: archive.read(name) for name in names}
        return parts if all(digests[name] == _digest(part) for name, part in parts.items()) else None
    except Exception:  # zipfile and json raise some ten types for damaged files, and more between versions
        return None


class VersionedFile(NamedTuple):
    """A file's bytes, and its version: another one after every change."""

    data: bytes
    version: tuple[int, ...]


def content(path: Path) -> VersionedFile | None:
    """A file of the cache. None where it is absent, cannot be read, or may not be trusted."""
    if not _usable(path.parent) or distrust(path):
        return None
    try:
        handle = os.open(path, _READ_FLAGS)
        with open(handle, "rb") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST or _others(found):
                return None
            return VersionedFile(stream.read(), _version(found))
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def version(path: Path) -> tuple[int, ...] | None:
    """A file's version, as `content` gives it; None without a file."""
    try:
        return _version(path.lstat())
    except (OSError, ValueError):
        return None


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def kept(facts: Mapping[str, object]) -> bool:
    """True if there is a file of these facts; `read` checks it."""
    path = _path(facts)
    return path is not None and version(path) is not None


def write(facts: Mapping[str, object], parts: Mapping[str, bytes], folder: str = "kernels") -> Path | None:
    """Keep parts under their facts. Gives the file, or None when the cache is off or cannot be written.

    folder  of the cache; what is no kernel has another one
    """
    path = _path(facts, folder)
    if path is None:
        return None

    def fill(stream: BinaryIO) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_FACTS, json.dumps(facts, sort_keys=True))
            archive.writestr(_DIGESTS, json.dumps({name: _digest(part) for name, part in parts.items()}))
            for name, part in parts.items():
                archive.writestr(name, part)

    return place(path, fill)


def place(path: Path, write: Callable[[BinaryIO], object]) -> Path | None:
    """Write a file of the cache whole, under its name by one rename. None where that cannot be done.

    path  the cache's folder, one of its folders, a name

    Folders that are missing are made the user's alone. A writer that is killed leaves a file of another name, which a
    later one removes.
    """
    temporary = None
    try:
        if not _make(path.parent):
            return None
        _sweep(path.parent)
        handle, temporary = tempfile.mkstemp(prefix=".layoutgemm-", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        os.replace(temporary, path)
        return path
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        _warn(f"{path.parent} cannot be written: {getattr(error, 'strerror', None) or error}")
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file of the cache against threads and processes. Gives whether the file may be changed.

    The system releases the lock of a process that ends, killed or not, and a process that is forked meanwhile does not
    hold it on. A holder that does not end is waited for, up to 30 seconds. Where the system or the file system has no
    locks, the file may be changed without.
    """
    handle = None
    try:
        if _make(path.parent):
            flags = os.O_RDWR | os.O_CREAT | (_READ_FLAGS & ~os.O_RDONLY)
            handle = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    except (OSError, ValueError):  # a folder that cannot be made or written
        pass
    try:
        yield handle is not None and _acquire(handle)
    finally:
        if handle is not None:
            if fcntl is not None:  # closing alone would leave it to a child that has the open file too
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _acquire(handle: int) -> bool:
    """Wait for the lock of an open file; whether it was had, or there are no locks."""
    end = time.monotonic() + _LOCK_SECONDS
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_LOCK_PAUSE)
        except OSError:
            return True
    return True


def _make(folder: Path) -> bool:
    """Make a folder of the cache where it is missing; whether it may be written to. Raises OSError."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for part in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            part.mkdir(mode=0o700)
    return _usable(folder)


def _usable(folder: Path) -> bool:
    """True if a folder of the cache may be used. Its mode is mended where that suffices; one warning says why not."""
    mend(folder)
    why = distrust(folder)
    if why:
        _warn(why)
    return not why


def _warn(why: str) -> None:
    """Warn once that the cache is not used, with a way out."""
    if why not in _SAID:
        _SAID.add(why)
        warn(f"kernels and tuned results are not kept: {why}; {way_out(why)}")


def warn(text: str) -> None:
    """Give a RuntimeWarning at the line outside of the package that led here."""
    package, frame, level = __name__.partition(".")[0], sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (package, "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def way_out(why: str) -> str:
    """The advice for a reason that `distrust` gives."""
    folder, mode, _ = why.partition(" may be written by others")
    return f"{f'chmod 700 {folder}, or ' if mode else ''}set {CACHE_DIR_VARIABLE} to another folder"


def mend(folder: Path) -> None:
    """Remove the group's right to write from the user's own cache folders."""
    own = cache_dir()
    within = [part for part in (folder, *folder.parents) if own is not None and part.is_relative_to(own)]
    flags = _READ_FLAGS | getattr(os, "O_DIRECTORY", 0)
    for part in reversed(within):
        try:
            if stat.S_ISLNK(part.lstat().st_mode):
                return  # what is below lies elsewhere
            if not hasattr(os, "getuid") or not _of_the_group(part.lstat()):
                continue
            handle = os.open(part, flags)
            try:
                found = os.fstat(handle)
                if _of_the_group(found):
                    os.fchmod(handle, stat.S_IMODE(found.st_mode) & ~_GROUP)
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return


def _of_the_group(found: os.stat_result) -> bool:
    """True for a folder of the user's own that others than the group cannot write."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & _OTHERS == _GROUP


def distrust(path: Path) -> str:
    """Why a file or folder of the cache may not be used, in a sentence. "" where there is no reason.

    Looks at the path and at the folders above it up to the cache's own.
    """
    own = cache_dir()
    for part in (path, *path.parents):
        try:
            found = part.lstat()
        except (OSError, ValueError):
            found = None  # nothing is there
        if found is not None:
            why = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else _others(found)
            if why:
                return f"{part} {why}"
        if part == own:
            break
    return ""


def _others(found: os.stat_result) -> str:
    """The rights of other users on a file or folder of this status."""
    if not hasattr(os, "getuid"):  # Windows: access lists, which the user's own folder inherits
        return ""
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}, not {os.getuid()}"
    if found.st_mode & _OTHERS:
        return f"may be written by others: its mode is {stat.S_IMODE(found.st_mode):04o}"
    return ""


def _digest(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove temporary files of `place` that killed writers left, an hour old."""
    before = time.time() - _ABANDONED
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if _UNFINISHED.fullmatch(file.name) and stat.S_ISREG(file.lstat().st_mode):
                if file.lstat().st_mtime < before:
                    file.unlink()


def _path(facts: Mapping[str, object], folder: str = "kernels") -> Path | None:
    root = cache_dir()
    return None if root is None else root / folder / f"{key_of(facts)}.zip"
