"""Readers of the pictures that know nothing of how they were drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

SVG = "{http://www.w3.org/2000/svg}"


def cell_texts(svg: str, pattern: str) -> list[list[str]]:
    """The matching texts inside the grid, as rows in reading order."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        # Cells are set in monospaced type and centred; titles and axes are not; the side list starts left.
        if "monospace" in group.get("font-family", "") and group.get("text-anchor") == "middle":
            for node in group:
                if node.text and re.fullmatch(pattern, node.text):
                    rows.setdefault(float(node.get("y", "nan")), []).append((float(node.get("x", "nan")), node.text))
    return [[text for _, text in sorted(row)] for _, row in sorted(rows.items())]


@pytest.fixture
def read() -> Callable[[str, str], list[list[str]]]:
    return cell_texts
