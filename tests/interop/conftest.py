"""Contexts of the CuTe DSL, so that tests make its objects without a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from layoutgemm.interop import cute_context


@pytest.fixture
def sm90() -> Iterator[None]:
    with cute_context("sm_90a"):
        yield


@pytest.fixture
def sm100() -> Iterator[None]:
    with cute_context("sm_100a"):
        yield
