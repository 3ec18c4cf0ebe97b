"""Damaged texts: each is read, or refused by an error of the library."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from layoutgemm import parse
from layoutgemm.errors import LayoutError


def outcomes(texts: Iterable[str], refusal: type[LayoutError] = LayoutError) -> tuple[int, int]:
    """(texts that are read, texts that are refused). Another error than the refusal is raised."""
    read = refused = 0
    for text in texts:
        try:
            parse(text)
        except refusal:
            refused += 1
        else:
            read += 1
    return read, refused


def damaged(
    texts: Sequence[str], seed: int, signs: Sequence[str], places: int = 1, most: int = 2, count: int = 3000
) -> Iterator[str]:
    """Random ones of the texts, each with some letters replaced.

    places, most  up to so many replacements in a text, each of up to so many letters by one of `signs`
    """
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, places) if places > 1 else 1):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(signs) + text[at + rng.randint(0, most) :]
        yield text
