"""`layoutgemm completion`: the script by which a shell completes commands, options and their choices."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from .arguments import add, answer
from .commands import COMMANDS, Command, Commands
from .main import make_parser

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    "layoutgemm completion bash  # source <(layoutgemm completion bash), in ~/.bashrc",
    "layoutgemm completion zsh",
    "layoutgemm completion fish --json",
)


def add_completion(commands: Commands) -> None:
    """The subcommand completion."""
    parser = add(
        commands, "completion", EXAMPLES, run,
        says="Prints a script for the shell: source it, or save it where the shell looks for completions. It holds "
        "the options of this version, and starts no Python while you type.",
    )  # fmt: skip
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script; returns the exit status."""
    text = fish() if args.shell == "fish" else bash(args.shell)
    answer(args, lambda: text, lambda: {"shell": args.shell, "script": text})
    return 0


def parsers() -> Iterator[tuple[Command, argparse.ArgumentParser]]:
    """Each command with its parser."""
    found = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in COMMANDS.items():
        yield command, found.choices[name]


def options_of(parser: argparse.ArgumentParser) -> list[tuple[list[str], list[str]]]:
    """(spellings, choices) of each option; an argument without a dash has no spelling."""
    return [
        (list(action.option_strings), [str(choice) for choice in action.choices or ()]) for action in parser._actions
    ]


def bash(shell: str = "bash") -> str:
    """The script for bash, which zsh reads too."""
    names = [name for command in COMMANDS.values() for name in (command.name, *command.aliases)]
    cases, choices = [], []
    for command, parser in parsers():
        options = options_of(parser)
        words = [spelling for spellings, _ in options for spelling in spellings]
        words += [choice for spellings, listed in options if not spellings for choice in listed]
        cases.append(f"    {'|'.join((command.name, *command.aliases))}) words={shlex.quote(' '.join(words))} ;;")
        for spellings, listed in options:
            if spellings and listed:
                either = "|".join(f"{command.name}:{spelling}" for spelling in spellings)
                choices.append(f"    {either}) words={shlex.quote(' '.join(listed))} ;;")
    head = ["autoload -Uz bashcompinit && bashcompinit"] if shell == "zsh" else []
    return "\n".join([
        *head,
        "_layoutgemm() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}" words',
        f'  if [ "$COMP_CWORD" -eq 1 ]; then words={shlex.quote(" ".join([*names, "--help", "--version"]))}',
        '  else case "$command" in', *cases, "  esac", '  case "$command:$prev" in', *choices, "  esac; fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _layoutgemm layoutgemm",
    ])  # fmt: skip


def fish() -> str:
    """The script for fish."""
    lines = []
    for command, parser in parsers():
        for name in (command.name, *command.aliases):
            lines.append(f"complete -c layoutgemm -n __fish_use_subcommand -f -a {name} -d {shlex.quote(command.help)}")
        seen = shlex.quote(f"__fish_seen_subcommand_from {' '.join((command.name, *command.aliases))}")
        for spellings, listed in options_of(parser):
            flags = [f"-l {s[2:]}" if s.startswith("--") else f"-s {s[1:]}" for s in spellings]
            given = f" -x -a {shlex.quote(' '.join(listed))}" if listed else ""
            if flags or given:
                lines.append(f"complete -c layoutgemm -n {seen} {' '.join(flags)}{given}")
    return "\n".join(lines)
