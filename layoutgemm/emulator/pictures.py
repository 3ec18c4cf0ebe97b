"""Gives a timeline its picture and its text."""

from __future__ import annotations

from typing import Any

from ..layouts.display import picture, table
from ..view.timeline import timeline_svg
from .machine.timeline import Timeline

table.register(Timeline)(Timeline.text)


@picture.register(Timeline)
def timeline_picture(timeline: Timeline, **options: Any) -> str:
    """Draws what warps and engines did, a line for each."""
    return timeline_svg(timeline.as_json(), **options)
