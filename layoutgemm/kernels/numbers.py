"""Index arithmetic of plans: on ints, on arrays of them, and on integers that a kernel's trace computes."""

from __future__ import annotations

from typing import TypeVar

from ..layouts.int_tuple import Integer

W = TypeVar("W", bound=Integer)
