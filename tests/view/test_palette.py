"""Text is readable on every fill, and fills stay apart in colour blindness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from layoutgemm.view.palette import EMPTY, FAINT, HUES, INK, PAPER, ROLES, lighter, rgb
from layoutgemm.view.threads import ODD

# Viénot, Brettel and Mollon, "Digital video colourmaps for checking the legibility of displays by dichromats" (1999).
LMS = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]),
    "deuteranopia": np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]]),
}


def lab(color: str, sight: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b* of a colour as that eye sees it."""
    channel = np.array(rgb(color)) / 255
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.linalg.inv(LMS) @ sight @ LMS @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def luminance(color: str) -> float:
    """Relative luminance, 0 (black) to 1 (white), as WCAG 2.2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb(color))]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2; text wants 4.5, small text better 7)."""
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def closest(colors: tuple[str, ...], sight: np.ndarray) -> float:
    return min(float(np.linalg.norm(lab(a, sight) - lab(b, sight))) for a, b in combinations(colors, 2))


def test_text_is_readable() -> None:
    fills = [*HUES, *(lighter(fill, ODD) for fill in HUES), EMPTY, PAPER]
    assert min(contrast(INK, fill) for fill in fills) >= 7  # WCAG 2.2 AAA for small text
    assert contrast(FAINT, PAPER) >= 7


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_a_page_is_legible(page: int) -> None:
    """WCAG 2.2: 7 for small text (AAA), 3 for what a picture is read by (1.4.11)."""
    role = {name: colors[page] for name, colors in ROLES.items()}
    assert min(contrast(role[text], role["paper"]) for text in ("ink", "faint")) >= 7
    assert contrast(INK, role["empty"]) >= 7  # its text is dark in both
    assert contrast(role["line"], role["paper"]) >= 3
    fills = [*HUES, *(lighter(fill, ODD) for fill in HUES)]
    if page:
        assert min(contrast(fill, role["paper"]) for fill in fills) >= 7
    # On white pastels are told apart by hue; the border of a grid and dark frames show where they end.
    assert min(contrast(INK, fill) for fill in fills) >= 7
    assert contrast(role["idle"], role["paper"]) >= 1.5


@pytest.mark.parametrize("sight", SIGHT)
def test_fills_stay_apart(sight: str) -> None:
    assert closest(HUES, SIGHT[sight]) > 10
    # The check is awake: a common plot palette's red and green come together.
    if sight == "deuteranopia":
        red_green = ("#D62728", "#2CA02C")
        assert closest(red_green, SIGHT[sight]) < 10 < closest(red_green, SIGHT["full"])
