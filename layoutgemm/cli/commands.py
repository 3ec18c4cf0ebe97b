"""The table of the commands: a command's module is loaded when the command is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import argparse

    from .arguments import Parser

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


@dataclass(frozen=True)
class Command:
    """One command.

    name     the word on the command line
    home     the file in this folder that defines `add_<name>`
    help     its line in the help of all
    aliases  other words for it
    """

    name: str
    home: str
    help: str
    aliases: tuple[str, ...] = ()

    def add(self, commands: Commands) -> None:
        """Load the command's file and add its parser."""
        adder: Callable[[Commands], None] = getattr(import_module(f"{__package__}.{self.home}"), f"add_{self.name}")
        adder(commands)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            "show", "show", "a layout, a tile, an atom, a copy or an order of tiles as text, or as a picture"
        ),
        Command("swizzle", "banks", "which swizzle makes accesses to a tile free of bank conflicts"),
        Command("banks", "banks", "the bank conflicts of accesses to a tile, with their lanes"),
        Command("desc", "descriptors", "the matrix descriptor of a shared-memory tile, or the fields of a word"),
        Command("box", "descriptors", "the TMA loads that fill a shared-memory tile"),
        Command("prove", "prove", "prove two layouts equal for every size, or show the first difference"),
        Command("plan", "plan", "the derivation of a GEMM and its checks", ("explain",)),
        Command("emulate", "emulate", "run a kernel of a PTX file on the CPU and look for races"),
        Command("compile", "compile", "compile the kernels that a script launches, before they are needed"),
        Command("tune", "tune", "measure configurations of a product on the GPU and keep the fastest"),
        Command("bench", "bench", "measure matmul on the GPU against torch.mm"),
        Command("doctor", "doctor", "check GPU, driver, packages and cache"),
        Command("completion", "completion", "the script by which a shell completes commands and options"),
        Command("demo", "demo", "derive, check, compile and run one GEMM, and draw its fragment map"),
    )
}  # fmt: skip
