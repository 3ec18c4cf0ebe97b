"""NVIDIA's own answers, as the tests of the compiled kernels ask for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORACLE = Path(__file__).resolve().parents[1] / "oracle"


def run_program(name: str, argument: str, given: Any) -> Any:
    """The answer of a program of tests/oracle, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(ORACLE / name), argument],
        input=json.dumps(given), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def once(path: Path, make: Callable[[], Any]) -> Any:
    """The result of `make` as JSON. The first worker that asks for this path makes it, the others wait and read."""
    import fcntl

    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def nvidia_map(words: list[int]) -> dict[str, Any]:
    """The fields of a 2-D tensor map as the DSL encodes it inline. Undocumented: found by varying one at a time."""
    flags = words[2]
    return {
        "address": words[0] | words[1] << 32,
        "rank": (flags >> 4 & 7) + 1,
        "swizzle": flags >> 13 & 3,
        "strides": [words[3] * 16],
        "dims": [words[8] + 1, words[9] + 1],
        "box": [(words[13] >> 24) + 1, (words[14] & 0xFF) + 1],
    }
