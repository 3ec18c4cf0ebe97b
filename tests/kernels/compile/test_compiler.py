"""Compiling and keeping kernels: nothing littered, found again, damaged files and other writers survived."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.kernels import TeachingConfig, TeachingPlan
from layoutgemm.kernels.compile import compiler as compiling

pytestmark = pytest.mark.dsl
ROOT = Path(__file__).resolve().parents[3]
PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def derive(m: int = 64, n: int = 64, k: int = 64, c: str = "f32", **config: Any) -> TeachingPlan:
    return TeachingPlan.derive(m, n, k, c=c, config=TeachingConfig(**config))


def test_compiling_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither in the working directory nor among the temporary files; `keep` writes where it is told."""
    work, temporary, kept = (tmp_path / name for name in ("work", "tmp", "kept"))
    work.mkdir()
    temporary.mkdir()
    program = (
        "from layoutgemm.kernels import TeachingPlan\n"
        "from layoutgemm.kernels.compile.compiler import compile_plan\n"
        f"compile_plan(TeachingPlan.derive(64, 64, 64), keep={str(kept)!r})\n"
    )
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "LAYOUTGEMM_CACHE_DIR": "",
        "PYTHONPATH": PATH,
    }
    subprocess.run([sys.executable, "-c", program], cwd=work, env=environment, check=True, timeout=300)
    assert list(work.iterdir()) == []
    # importing the DSL makes an empty folder of its own there
    assert [path for path in temporary.rglob("*") if not path.is_dir()] == []
    assert {path.name for path in kept.iterdir()} >= {"kernel.ptx", "kernel.cubin", "kernel.o"}
    assert (kept / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    """A fresh cache folder, and nothing in memory."""
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(folder))
    monkeypatch.setattr(compiling, "_LOADED", {})


def test_a_kept_kernel_is_found_again_whatever_the_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch, tmp_path)
    first = derive(stages=3).compile()
    files = list((tmp_path / "layoutgemm-cache" / "kernels").iterdir())
    assert not first.cached and len(files) == 1
    assert derive(m=1000, n=24, k=4096, stages=3).compile() is first
    forget(monkeypatch, tmp_path)
    second = derive(m=1000, n=24, k=4096, stages=3).compile()
    assert second.cached and second.cubin == first.cubin and second.ptx == first.ptx
    assert list((tmp_path / "layoutgemm-cache" / "kernels").iterdir()) == files


@dataclass
class Sound:
    """A kernel that was compiled and kept here: the name and bytes of its file, and what compiling it gave."""

    name: str
    whole: bytes
    parts: dict[str, bytes]
    compilations: int = 0

    def compile(self, plan: TeachingPlan, symbol: str) -> dict[str, bytes]:
        """A counted stand-in for the deterministic compiler (see the test of many processes)."""
        assert plan == derive(stages=3) and symbol == f"layoutgemm_{self.name.removesuffix('.zip')}"
        self.compilations += 1
        return self.parts


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes, dict[str, bytes]]:
    folder, parts = tmp_path_factory.mktemp("sound"), {}
    trace = compiling._trace

    def traced(plan: TeachingPlan, symbol: str) -> dict[str, bytes]:
        parts.update(trace(plan, symbol))
        return parts

    with pytest.MonkeyPatch.context() as patch:
        forget(patch, folder)
        patch.setattr(compiling, "_trace", traced)
        derive(stages=3).compile()
    (path,) = (folder / "layoutgemm-cache" / "kernels").iterdir()
    return path.name, path.read_bytes(), parts


@pytest.fixture
def sound(compiled: tuple[str, bytes, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch) -> Sound:
    found = Sound(*compiled)
    monkeypatch.setattr(compiling, "_trace", found.compile)
    return found


@pytest.mark.parametrize("damage", ["none", "empty", "truncated", "flipped", "encrypted", "text", "another kernel's"])
def test_a_damaged_file_is_recompiled(
    damage: str, sound: Sound, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = sound.whole
    path = tmp_path / "layoutgemm-cache" / "kernels" / sound.name
    path.parent.mkdir(mode=0o700, parents=True)
    path.touch(mode=0o600)
    if damage == "another kernel's":
        monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path / "other"))
        other = compiling.object_cache.write(compiling.kernel_facts(derive(c="bf16", stages=3)), sound.parts)
        assert other is not None and other.name != sound.name
        path.write_bytes(other.read_bytes())
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
        flag = whole.index(b"PK\x01\x02") + 8  # of the directory's first entry: its file is said to be encrypted
        encrypted = whole[:flag] + bytes([whole[flag] | 1]) + whole[flag + 1 :]
        damaged = {
            "empty": b"", "truncated": whole[:middle], "flipped": flipped, "encrypted": encrypted,
            "text": b"no zip" * 99,
        }  # fmt: skip
        path.write_bytes(damaged.get(damage, whole))
    forget(monkeypatch, tmp_path)
    again = derive(stages=3).compile()
    anew = int(damage != "none")
    assert again.cached != anew and sound.compilations == anew and again.cubin == sound.parts["kernel.cubin"]
    forget(monkeypatch, tmp_path)
    assert derive(stages=3).compile().cached and sound.compilations == anew


def test_an_unloadable_object_is_recompiled(sound: Sound, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch, tmp_path)
    plan = derive(stages=3)
    facts = compiling.kernel_facts(plan)
    compiling.object_cache.write(facts, dict.fromkeys(compiling._PARTS, b"not an object"))
    assert not plan.compile().cached and sound.compilations == 1


@pytest.mark.parametrize("place", ["", "a file in the way"])
def test_no_cache_is_no_obstacle(place: str, sound: Sound, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a file in the way").write_text("")
    forget(monkeypatch, tmp_path / place if place else "")
    assert not derive(stages=3).compile().cached and sound.compilations == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a file in the way"]


def test_many_processes_may_compile_at_once(tmp_path: Path) -> None:
    program = (
        "from layoutgemm.kernels import TeachingPlan\n"
        "import hashlib\n"
        "print(hashlib.sha256(TeachingPlan.derive(64, 64, 64).compile().cubin).hexdigest())\n"
    )
    environment = {**os.environ, "LAYOUTGEMM_CACHE_DIR": str(tmp_path), "PYTHONPATH": PATH}
    start = functools.partial(
        subprocess.Popen, [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    )
    running = [start() for _ in range(2)]
    digests = {process.communicate(timeout=300)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 2 and len(digests) == 1
    assert [path.suffix for path in (tmp_path / "layoutgemm-cache" / "kernels").iterdir()] == [".zip"]
