"""Calls of device functions, replaced by the functions' bodies.

Each call gets its own copy of the registers, labels and local variables of the function. Parameters of `.param` space
are the caller's own variables; those in registers are moved. A function that reaches itself stays a call, which the
emulator refuses by name. A call through a register compares it with the address of each function that it may hold.

Semantics: PTX ISA, "Function Declarations and Definitions", "call", "ret".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import PtxError
from .declarations import DeviceFunction, FormalParameter
from .statements import NAME, Statement, resolved, statements_of

MAX_CALLS = 1 << 12  # inlined calls of one kernel
_CALL = re.compile(
    r"(?:@(!?)(%?[\w$@.]+)\s+)?call(?:\.uni)?\s+(?:\(([^()]*)\)\s*,\s*)?([%\w$]+)\s*(?:,\s*\(([^()]*)\))?"
    r"\s*(?:,\s*[\w$]+)?"
)
_USES = re.compile(r"\bcall\b[^;]*;|\.func\b[^;{]*")  # calls, and the heads of functions
_RETURN = re.compile(r"(@!?%?[\w$@.]+\s+)?ret(?:\.uni)?")


@dataclass
class Inliner:
    """Replaces the calls in a kernel's statements.

    text, files  of the module
    functions    of the module, by name
    declare      enters the declarations among statements in the kernel
    variable     enters a `.param` variable (name, type) in the kernel
    register     enters a register (name, type)
    is_variable  True for the name of a `.param` or `.local` variable of the kernel; is_register: of a register
    recursive    functions that reach themselves -> the chain of calls
    """

    text: str
    files: dict[int, str]
    functions: dict[str, DeviceFunction]
    declare: Callable[[list[Statement]], None]
    variable: Callable[[str, str, int], None]
    register: Callable[[str, str], None]
    is_variable: Callable[[str], bool]
    is_register: Callable[[str], bool]
    recursive: dict[str, str] = field(default_factory=dict)
    calls: int = 0

    def expanded(self, statements: list[Statement], chain: tuple[str, ...] = ()) -> list[Statement]:
        """The statements with the bodies of called functions in place of the calls; declares them all."""
        self.declare(statements)
        out: list[Statement] = []
        for statement in statements:
            found = _CALL.fullmatch(statement.text) if "call" in statement.text else None
            function = self.functions.get(found.group(4)) if found is not None else None
            if found is not None and self.is_register(resolved(found.group(4), statement.scopes)):
                out += self._dispatched(statement, found, chain)
            elif found is None or function is None or function.body is None:
                out.append(statement)
            elif function.name in chain:
                self.recursive[function.name] = " -> ".join([*chain[chain.index(function.name) :], function.name])
                out.append(statement)
            else:
                out += self._inlined(statement, found, function, chain)
        return out

    def _dispatched(self, call: Statement, found: re.Match[str], chain: tuple[str, ...]) -> list[Statement]:
        """A call through a register: each function that it may hold in turn, else a trap."""
        negated, guard, results, address, arguments = found.groups()
        self.calls += 1
        tag = f"{self.calls}."
        chosen, leaves = f"$chosen@{tag}", f"$called@{tag}"
        self.register(chosen, "pred")
        out = [] if guard is None else [
            self._made(call, f"@{'' if negated else '!'}{resolved(guard, call.scopes)} bra {leaves}")
        ]  # fmt: skip
        for function in self.pointed:
            counts = [len((text or "").split(",")) if (text or "").strip() else 0 for text in (results, arguments)]
            if function.name in chain or counts != [len(function.results), len(function.parameters)]:
                continue
            text = f"call ({results}), " if results else "call "
            direct = call._replace(text=f"{text}{function.name}, ({arguments or ''})")
            match, skip = _CALL.fullmatch(direct.text), f"$other@{tag}{function.name}"
            assert match is not None
            out.append(self._made(call, f"setp.eq.u64 {chosen}, {resolved(address, call.scopes)}, {function.name}"))
            out.append(self._made(call, f"@!{chosen} bra {skip}"))
            out += self._inlined(direct, match, function, chain)
            out += [self._made(call, f"bra {leaves}"), self._made(call, skip, "label")]
        return [*out, self._made(call, "trap"), self._made(call, leaves, "label")]

    @cached_property
    def pointed(self) -> list[DeviceFunction]:
        """The functions of the module that something beside a call names: their addresses may be in registers."""
        rest = set(NAME.findall(_USES.sub("", self.text)))
        return [one for one in self.functions.values() if one.body is not None and one.name in rest]

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
        self, call: Statement, function: DeviceFunction, formals: tuple[FormalParameter, ...], text: str | None,
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
