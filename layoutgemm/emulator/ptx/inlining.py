"""Calls of device functions, replaced by the functions' bodies.

Each call gets its own copy of the registers, labels and local variables of the function. Parameters of `.param` space
are the caller's own variables; those in registers are moved. A call through a register compares it with the address of
each function that it may hold.

A function that reaches itself becomes a routine behind the kernel. Its parameters and local variables lie in a frame of
the threads' local memory: their addresses are added to the register FRAME when the routine begins. `routine.call` and
`routine.return` (`ops/routines.py`) move that register, and keep the caller's.

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
FRAME, FRAMED = "$frame", "@at"  # the register of a routine's frame; the end of the names of addresses in it
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
    declare      enters the declarations among statements in the kernel, in the frame of a routine if there is one
    variable     enters a `.param` variable (name, type, number of elements, frame), and gives its name or address
    register     enters a register (name, type)
    is_variable  True for the name of a `.param` or `.local` variable of the kernel; is_register: of a register
    frame        the variables of the routine that is put in, or None
    waiting      routines that are called, and not put in yet
    """

    text: str
    files: dict[int, str]
    functions: dict[str, DeviceFunction]
    declare: Callable[[list[Statement], list[str] | None], None]
    variable: Callable[[str, str, int, list[str] | None], str]
    register: Callable[[str, str], None]
    is_variable: Callable[[str], bool]
    is_register: Callable[[str], bool]
    frame: list[str] | None = None
    waiting: dict[str, DeviceFunction] = field(default_factory=dict)
    calls: int = 0

    def whole(self, statements: list[Statement]) -> list[Statement]:
        """A kernel's statements, and its routines behind them."""
        out, done = self.expanded(statements), set[str]()
        if self.waiting:
            self.register(FRAME, "b64")
            out.insert(0, Statement("statement", f"mov.u64 {FRAME}, 0", (), out[0].line, out[0].source))
        while left := [one for name, one in self.waiting.items() if name not in done]:
            out += self._routine(left[0])
            done.add(left[0].name)
        return out

    def expanded(self, statements: list[Statement], chain: tuple[str, ...] = ()) -> list[Statement]:
        """The statements with the bodies of called functions in place of the calls. Declares them all."""
        self.declare(statements, self.frame)
        out: list[Statement] = []
        for statement in statements:
            found = _CALL.fullmatch(statement.text) if "call" in statement.text else None
            function = self.functions.get(found.group(4)) if found is not None else None
            if found is not None and self.is_register(resolved(found.group(4), statement.scopes)):
                out += self._dispatched(statement, found, chain)
            elif found is None or function is None or function.body is None:
                out.append(statement)
            else:
                out += self._called(statement, found, function, chain)
        return out

    def _called(
        self, call: Statement, found: re.Match[str], function: DeviceFunction, chain: tuple[str, ...]
    ) -> list[Statement]:
        """A call of a known function, where its guard holds."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise PtxError(f"PTX line {call.line}: more than {MAX_CALLS} calls of functions, one in the other")
        tag = f"{self.calls}."
        if function.name in self.recursive:
            out = self._to_routine(call, found, function, tag)
        else:
            out = self._inlined(call, found, function, chain, tag)
        negated, guard = found.groups()[:2]
        if guard is None:
            return out
        skip = f"$skip@{tag}"
        branch = f"@{'' if negated else '!'}{resolved(guard, call.scopes)} bra {skip}"
        return [self._made(call, branch), *out, self._made(call, skip, "label")]

    @cached_property
    def recursive(self) -> set[str]:
        """The functions of the module that reach themselves, also by calls through registers."""
        reaches: dict[str, set[str]] = {}
        for one in self.functions.values():
            calls = [] if one.body is None else statements_of(self.text, one.body, self.files)
            names = {found.group(4) for call in calls if (found := _CALL.fullmatch(call.text)) is not None}
            if any(name not in self.functions for name in names):
                names |= {other.name for other in self.pointed}
            reaches[one.name] = names & self.functions.keys()
        for through in reaches:  # Warshall's closure
            for names in reaches.values():
                if through in names:
                    names |= reaches[through]
        return {name for name, names in reaches.items() if name in names}

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
            if counts != [len(function.results), len(function.parameters)]:
                continue
            text = f"call ({results}), " if results else "call "
            direct = call._replace(text=f"{text}{function.name}, ({arguments or ''})")
            match, skip = _CALL.fullmatch(direct.text), f"$other@{tag}{function.name}"
            assert match is not None
            out.append(self._made(call, f"setp.eq.u64 {chosen}, {resolved(address, call.scopes)}, {function.name}"))
            out.append(self._made(call, f"@!{chosen} bra {skip}"))
            out += self._called(direct, match, function, chain)
            out += [self._made(call, f"bra {leaves}"), self._made(call, skip, "label")]
        return [*out, self._made(call, "trap"), self._made(call, leaves, "label")]

    @cached_property
    def pointed(self) -> list[DeviceFunction]:
        """The functions of the module that something beside a call names. Their addresses may be in registers."""
        rest = set(NAME.findall(_USES.sub("", self.text)))
        return [one for one in self.functions.values() if one.body is not None and one.name in rest]

    def _inlined(
        self, call: Statement, found: re.Match[str], function: DeviceFunction, chain: tuple[str, ...], tag: str
    ) -> list[Statement]:
        names: dict[str, str] = {"#": tag}
        before = self._bound(call, function, function.parameters, found.group(5), names, False)
        after = self._bound(call, function, function.results, found.group(3), names, True)
        leaves = f"$return@{tag}"
        inside = self._body(function, (*chain, function.name), names, tag, leaves)
        return [*before, *inside, self._made(call, leaves, "label"), *after]

    def _body(
        self, function: DeviceFunction, chain: tuple[str, ...], names: dict[str, str], tag: str, leaves: str
    ) -> list[Statement]:
        """A function's statements under names of their own, with branches to `leaves` for its returns."""
        assert function.body is not None
        body = statements_of(self.text, function.body, self.files, ({}, {"#": tag}, names), tag)
        return [
            one._replace(text=f"{back.group(1) or ''}bra {leaves}") if (back := _RETURN.fullmatch(one.text)) else one
            for one in self.expanded(body, chain)
        ]

    # ------------------------------------------------------------ routines

    def _to_routine(self, call: Statement, found: re.Match[str], function: DeviceFunction, tag: str) -> list[Statement]:
        """A call of a routine: `routine.call ENTRY, number of results, (formal, actual, bytes) of each`."""
        self.waiting[function.name] = function
        before, after, moved = [], [], []
        for formals, text, results in (
            (function.results, found.group(3), True),
            (function.parameters, found.group(5), False),
        ):
            actuals = self._actuals(call, function, formals, text, results)
            for number, (formal, actual) in enumerate(zip(formals, actuals, strict=True)):
                place = actual
                if not self.is_variable(actual):
                    place = self.variable(
                        f"${'result' if results else 'argument'}{number}@{tag}", formal.kind, 1, self.frame
                    )
                    if results:
                        after.append(self._made(call, f"ld.param.{formal.kind} {actual}, [{place}]"))
                    else:
                        before.append(self._made(call, f"st.param.{formal.kind} [{place}], {actual}"))
                moved.append(f"{_own(function, formal)}, {place}, {formal.size}")
        text = ", ".join([f"routine.call {_entry(function)}, {len(function.results)}", *moved])
        return [*before, self._made(call, text), *after]

    def _routine(self, function: DeviceFunction) -> list[Statement]:
        """A function that reaches itself, as statements behind the kernel."""
        frame = self.frame = []
        tag, leaves = f"{function.name}.", f"$return@{function.name}"
        at = Statement("statement", "", (), function.line, None)
        names: dict[str, str] = {"#": tag}
        first, last = [], []
        for formal in (*function.results, *function.parameters):
            place = names[formal.name] = self.variable(_own(function, formal), formal.kind, formal.count, frame)
            if formal.space == "reg":
                own = names[formal.name] = f"{formal.name}@{tag}"
                self.register(own, formal.kind)
                if formal in function.results:
                    last.append(self._made(at, f"st.param.{formal.kind} [{place}], {own}"))
                else:
                    first.append(self._made(at, f"ld.param.{formal.kind} {own}, [{place}]"))
        inside = self._body(function, (function.name,), names, tag, leaves)
        self.frame = None
        places = [f"add.u64 {name}{FRAMED}, {FRAME}, {name}" for name in frame]
        return [
            self._made(at, _entry(function), "label"), *[self._made(at, text) for text in places], *first, *inside,
            self._made(at, leaves, "label"), *last, self._made(at, "routine.return"),
        ]  # fmt: skip

    def _made(self, call: Statement, text: str, kind: str = "statement") -> Statement:
        """A statement of unique names at the place of a call."""
        return Statement(kind, text, (), call.line, call.source)

    def _bound(
        self, call: Statement, function: DeviceFunction, formals: tuple[FormalParameter, ...], text: str | None,
        names: dict[str, str], results: bool,
    ) -> list[Statement]:  # fmt: skip
        """Enter the formal parameters in `names`; the statements that move what is in registers."""
        out = []
        for formal, actual in zip(formals, self._actuals(call, function, formals, text, results), strict=True):
            if formal.space == "param" and self.is_variable(actual):
                names[formal.name] = actual
                continue
            own = f"{formal.name}@{names['#']}"
            if formal.space == "param":
                own = self.variable(own, formal.kind, 1, self.frame)
            else:
                self.register(own, formal.kind)
            names[formal.name] = own
            to, of = (actual, own) if results else (own, actual)
            if self.is_variable(of):
                move = f"ld.param.{formal.kind} {to}, [{of}]"
            else:
                move = (
                    f"st.param.{formal.kind} [{to}], {of}" if self.is_variable(to) else f"mov.{formal.kind} {to}, {of}"
                )
            out.append(self._made(call, move))
        return out

    @staticmethod
    def _actuals(
        call: Statement, function: DeviceFunction, formals: tuple[FormalParameter, ...], text: str | None, results: bool
    ) -> list[str]:
        """The names of a call's arguments, or of its results. Raises PtxError for another number of them."""
        actuals = [resolved(part.strip(), call.scopes) for part in (text or "").split(",") if part.strip()]
        if len(actuals) != len(formals):
            what = "results" if results else "arguments"
            raise PtxError(
                f"PTX line {call.line}: {call.text}: {len(actuals)} {what}, and {function.name} has {len(formals)}"
            )
        return actuals


def _own(function: DeviceFunction, formal: FormalParameter) -> str:
    """The name of a formal parameter in its routine's frame."""
    return f"{formal.name.replace('%', '$')}@{function.name}"


def _entry(function: DeviceFunction) -> str:
    return f"$routine@{function.name}"
