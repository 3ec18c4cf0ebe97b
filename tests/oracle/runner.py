"""Asks an oracle program many questions and survives its crashes.

The program reads JSON lines {"id", ...} on stdin and writes {"id", "answer"} or {"id", "error"} lines, each flushed.
When it dies, the first question without a reply is the one that killed it: it is recorded as a crash, and a new
process goes on with the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import needs


class OracleUnavailable(RuntimeError):
    """The program died before it answered anything at all."""


def ask(
    command: Sequence[str], questions: Sequence[dict[str, Any]], timeout: float = 120, max_crashes: int = 20
) -> dict[Any, dict[str, Any]]:
    """id -> {"answer": ...}, {"error": text} or {"crash": text} for every question."""
    replies: dict[Any, dict[str, Any]] = {}
    left = list(questions)
    crashes = 0
    while left:
        text = "".join(json.dumps(q) + "\n" for q in left)
        try:
            done = subprocess.run(
                list(command), input=text, capture_output=True, text=True, timeout=timeout, check=False
            )
            output, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            errors, code = f"no reply within {timeout} s", -1
        for line in output.splitlines():
            try:
                reply = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a process that died while writing
            replies[reply["id"]] = {k: v for k, v in reply.items() if k != "id"}
        rest = [q for q in left if q["id"] not in replies]
        if not rest:
            break
        if not replies:
            raise OracleUnavailable(f"{command} ended with code {code} before any answer:\n{errors[-2000:]}")
        crashes += 1
        replies[rest[0]["id"]] = {"crash": f"code {code}: {errors[-500:]}"}
        if crashes > max_crashes:
            raise OracleUnavailable(f"{command} crashed {crashes} times; last on {rest[0]}:\n{errors[-2000:]}")
        left = rest[1:]
    return replies


def ask_dsl(program: Path, questions: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The answers of a program that asks the CuTe DSL; skips the test where that is absent, or does not start."""
    if not needs.found("cutlass"):
        pytest.skip(needs.reason("cutlass"))
    try:
        return ask([sys.executable, str(program)], questions)
    except OracleUnavailable as why:
        pytest.skip(
            f"the CuTe DSL is installed but does not start, reinstall it (pip install 'layoutgemm[dsl]'): {why}"
        )
