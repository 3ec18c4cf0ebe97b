"""Registers without a value, for as long as an asynchronous instruction owns them."""

from __future__ import annotations

from ..ptx.values import NoValue


class InFlightRegister(NoValue):
    """What such a register holds. Its text says who owns it."""
