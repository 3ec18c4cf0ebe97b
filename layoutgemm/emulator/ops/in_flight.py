"""Placeholders in registers that an asynchronous instruction owns."""

from __future__ import annotations

from ..ptx.values import NoValue


class InFlightRegister(NoValue):
    """A placeholder for the value of a register in flight. Its text names the owner."""
