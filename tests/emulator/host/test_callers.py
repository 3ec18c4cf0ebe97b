"""The callers of helper functions, in the line information of the CuTe DSL."""

from __future__ import annotations

import sys
from types import FrameType

from layoutgemm.emulator.host.callers import by_file


def test_each_module_of_a_file_is_asked_for_once() -> None:
    asked: list[str] = []

    def plain(frame: FrameType) -> bool:
        asked.append(frame.f_globals["__name__"])
        return frame.f_globals["__name__"] == "theirs"

    test, names = by_file(plain), ("ours", "theirs", "typing_extensions")
    frames = []
    for name in names:
        scope: dict[str, FrameType] = {"__name__": name, "sys": sys}  # type: ignore[dict-item]
        exec(compile("frame = sys._getframe()", "one.py", "exec"), scope)
        frames.append(scope["frame"])
    assert [test(frame) for frame in frames * 2] == [False, True, True] * 2
    assert tuple(asked) == names[:2]  # a frame of @deprecated is the framework's
