"""Calls of device functions, replaced by the functions' bodies.

Each call gets its own copy of the registers, labels and local variables of the function. Parameters of `.param` space
are the caller's own variables; those in registers are moved. A function that reaches itself stays a call, which the
emulator refuses by name.

Semantics: PTX ISA, "Function Declarations and Definitions", "call", "ret".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import PtxError
from .declarations import DeviceFunction, Formal
from .statements import Statement, resolved, statements_of

MAX_CALLS = 1 << 12  # inlined calls of one kernel
_CALL = re.compile(
    r"(?:@(!?)(%?[\w$@.]+)\s+)?call(?:\.uni)?\s+(?:\(([^()]*)\)\s*,\s*)?([%\w$]+)\s*(?:,\s*\(([^()]*)\))?"
    r"\s*(?:,\s*[\w$]+)?"
)
_RETURN = re.compile(r"(@!?%?[\w$@.]+\s+)?ret(?:\.uni)?")


@dataclass
class Inliner:
    """Replaces the calls in a kernel's statements.

    text, files  of the module
    functions    of the module, by name
    declare      enters the declarations among statements in the kernel
    variable     enters a `.param` variable (name, type) in the kernel
    register     enters a register (name, type)
    is_variable  True for the name of a `.param` or `.local` variable of the kernel
    recursive    functions that reach themselves -> the chain of calls
    """

    text: str
    files: dict[int, str]
    functions: dict[str, DeviceFunction]
    declare: Callable[[list[Statement]], None]
    variable: Callable[[str, str, int], None]
    register: Callable[[str, str], None]
    is_variable: Callable[[str], bool]
    recursive: dict[str, str] = field(default_factory=dict)
    calls: int = 0

    def expanded(self, statements: list[Statement], chain: tuple[str, ...] = ()) -> list[Statement]:
        """The statements with the bodies of called functions in place of the calls; declares them all."""
        self.declare(statements)
        out: list[Statement] = []
        for statement in statements:
            found = _CALL.fullmatch(statement.text) if "call" in statement.text else None
            function = self.functions.get(found.group(4)) if found is not None else None
            if found is None or function is None or function.body is None:
                out.append(statement)
            elif function.name in chain:
                self.recursive[function.name] = " -> ".join([*chain[chain.index(function.name) :], function.name])
                out.append(statement)
            else:
                out += self._inlined(statement, found, function, chain)
        return out

    def _inlined(
        self, call: Statement, found: re.Match[str], function: DeviceFunction, chain: tuple[str, ...]
    ) -> list[Statement]:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise PtxError(f"PTX line {call.line}: more than {MAX_CALLS} calls of functions, one in the other")
        tag = f"{self.calls}."
        negated, guard, results, _, arguments = found.groups()
        names: dict[str, str] = {"#": tag}
        before = self._bound(call, function, function.parameters, arguments, names, False)
        after = self._bound(call, function, function.results, results, names, True)
        assert function.body is not None
        body = statements_of(self.text, function.body, self.files, ({}, {"#": tag}, names), tag)
        leaves = f"$return@{tag}"
        inside = [
            one._replace(text=f"{back.group(1) or ''}bra {leaves}") if (back := _RETURN.fullmatch(one.text)) else one
            for one in self.expanded(body, (*chain, function.name))
        ]
        out = [*before, *inside, self._made(call, leaves, "label"), *after]
        if guard is not None:
            skip = f"$skip@{tag}"
            branch = f"@{'' if negated else '!'}{resolved(guard, call.scopes)} bra {skip}"
            out = [self._made(call, branch), *out, self._made(call, skip, "label")]
        return out

    def _made(self, call: Statement, text: str, kind: str = "statement") -> Statement:
        """A statement of unique names at the place of a call."""
        return Statement(kind, text, (), call.line, call.source)

    def _bound(
        self, call: Statement, function: DeviceFunction, formals: tuple[Formal, ...], text: str | None,
        names: dict[str, str], results: bool,
    ) -> list[Statement]:  # fmt: skip
        """Enter the formal parameters in `names`; the statements that move what is in registers."""
        actuals = [resolved(part.strip(), call.scopes) for part in (text or "").split(",") if part.strip()]
        if len(actuals) != len(formals):
            what = "results" if results else "arguments"
            raise PtxError(
                f"PTX line {call.line}: {call.text}: {len(actuals)} {what}, and {function.name} has {len(formals)}"
            )
        out = []
        for formal, actual in zip(formals, actuals, strict=True):
            if formal.space == "param" and self.is_variable(actual):
                names[formal.name] = actual
                continue
            own = names[formal.name] = f"{formal.name}@{names['#']}"
            if formal.space == "param":
                self.variable(own, formal.kind, 0)
            else:
                self.register(own, formal.kind)
            to, of = (actual, own) if results else (own, actual)
            if self.is_variable(of):
                move = f"ld.param.{formal.kind} {to}, [{of}]"
            else:
                move = (
                    f"st.param.{formal.kind} [{to}], {of}" if self.is_variable(to) else f"mov.{formal.kind} {to}, {of}"
                )
            out.append(self._made(call, move))
        return out
