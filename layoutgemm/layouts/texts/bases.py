"""Triton's linear layouts from text. The bases of each input, as its compiler, Gluon and Python print them.

#ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]], warp = [], block = []}>
{"register": [[0, 1]], "lane": [[1, 0], [2, 0]]}
[("lane", [[1, 0]])]
DistributedLinearLayout(reg_bases=[[0, 1]], lane_bases=[[1, 0], [2, 0]], warp_bases=[], block_bases=[], shape=[4, 2])
LinearLayout.from_bases([("register", [[0, 1]]), ("lane", [[1, 0], [2, 0]])], ["dim0", "dim1"])
- register=1 -> (0, 1)
- lane=1 -> (1, 0)
  lane=2 -> (2, 0)
where out dims are: [dim0 (size 4), dim1 (size 2)]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...arguments import DEPTH
from ...errors import LayoutError, ParseError
from ...regex import regex
from ..linear import LinearLayout

ATTRIBUTE = regex(r"\s*(?:[#!]\w+\s*=\s*)?#(?:ttg|ttng|triton_gpu|gluon|amdg)\.(\w+)\s*<")
_OPEN = regex(r"#(?:ttg|ttng|triton_gpu|gluon|amdg)\.(\w+)\s*<")
# Fields without braces, as tensor memory has them
_BARE = regex(r"\s*(?:>|[A-Za-z_]\w*\s*=)")
# A C++ initializer, as in Triton's own tests: LinearLayout({{S("lane"), {{0, 1}}}}, {S("dim0"), S("dim1")})
_OF_CPP = regex(r"\s*(?:\w+\s+)?(?:\w+\s*=\s*)?(?:\w+::)*LinearLayout\(\s*\{\s*\{\s*\w+\(\s*\"")
_ALIAS = regex(r"#(\w+)(?![ \t]*[.<\w])")
CLASS = regex(r"\s*(?:\w+\s+)?(?:\w+\s*=\s*)?(?:\w+(?:\.|::))*(\w+Layout|LinearLayout\.from_bases)\(")
_DICTIONARY = regex(r"\s*(?:[A-Za-z_]\w*\s*=\s*)?(?=\{\s*(?:['\"]\w+['\"]\s*:|[A-Za-z_]\w*\s*[:=]\s*\[))")
_LIST_OF_PAIRS = regex(r"\s*(?:[A-Za-z_][\w.]*\s*=\s*)?(?=\[\s*\(\s*(?:'\w+'|\"\w+\")\s*,\s*\[)")
_ARROW = regex(r"-?\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*->\s*\(\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\)")
_ARROWS = regex(r"(?:[^\n]*:[ \t]*)?\s*(?P<first>(?:-\s*)?[A-Za-z_]\w*(?:\s*=\s*\d+\s*->| is a size 1 dimension))")
_ONE = regex(r"-?\s*([A-Za-z_]\w*) is a size 1 dimension")
_OUT = regex(r"where out dims are:\s*\[([^\]]*)\]")
_DIM = regex(r"\s*([A-Za-z_]\w*)\s*\(size (\d+)\)\s*")
_MORE = regex(r"\s*(?:,\s*alignment\s*=\s*\d+\s*)+(?=>)")
_INTEGER = regex(r"-?\d+(?![\w.])")
_NAME = regex(r"[A-Za-z_]\w*")
_QUOTED = regex(r"(['\"])(.*?)\1")

LINEAR = {
    "linear",
    "generic_linear",
    "shared_linear",
    "DistributedLinearLayout",
    "SharedLinearLayout",
    "LinearLayout.from_bases",
    "LinearLayout",
    "_TensorMemoryLinearLayout",
}
# Gluon's arguments, in their order, and the names that Triton's compiler has for them
ARGUMENTS = {
    "DistributedLinearLayout": ("register", "lane", "warp", "block", "shape"),
    "SharedLinearLayout": ("offset", "block", "alignment"),
    "LinearLayout.from_bases": ("bases", "names", "shape", "surjective"),
    "LinearLayout": ("bases", "names", "shape", "surjective"),
    "_TensorMemoryLinearLayout": ("rows", "cols", "shape"),
}
_HELD, _STORED = ("register", "lane", "warp", "block"), ("offset", "block")
_INPUTS = {
    "linear": (*_HELD, "offset"), "generic_linear": _HELD, "DistributedLinearLayout": _HELD, "shared_linear": _STORED,
    "SharedLinearLayout": _STORED,
}  # fmt: skip
_NO_INPUTS = frozenset({"alignment"})  # of the buffer
NAMES = {"reg_bases": "register", "rows": "row", "cols": "col", "out_dim_names": "names", "out_dim_sizes": "shape"}
# Gluon's layouts that are attributes of the compiler's: its name for each, and its arguments in their order
GLUON = {
    "BlockedLayout": ("blocked", "sizePerThread threadsPerWarp warpsPerCTA order CTAsPerCGA CTASplitNum CTAOrder"),
    "SliceLayout": ("slice", "dim parent"),
    "DotOperandLayout": ("dot_op", "opIdx parent kWidth"),
    "NVMMADistributedLayout": ("nvidia_mma", "version warpsPerCTA instrShape CTAsPerCGA CTASplitNum CTAOrder"),
    "SwizzledSharedLayout": ("swizzled_shared", "vec perPhase maxPhase order CTAsPerCGA CTASplitNum CTAOrder"),
    "TensorMemoryLayout": ("tensor_memory_encoding", "block colStride CTASplitNum twoCTAs"),
    "DistributedLinearLayout": ("linear", "register lane warp block shape"),
    "SharedLinearLayout": ("shared_linear", "offset block alignment"),
    "AMDMFMALayout": ("amd_mfma", "version instrShape isTransposed warpsPerCTA elementBitWidth tilesPerWarp CGALayout"),
    "AMDWMMALayout": ("amd_wmma", "version isTransposed warp register instrShape CGALayout rank"),
    "TensorMemoryScalesLayout": ("tensor_memory_scales_encoding", "CTASplitNum"),
    "NVMMASharedLayout": (
        "nvmma_shared", "swizzlingByteWidth elementBitWidth rank transposed fp4Padded CTAsPerCGA CTASplitNum CTAOrder",
    ),
}  # fmt: skip
GLUON_NAMES = {
    "ctas_per_cga": "CTAsPerCGA", "cta_split_num": "CTASplitNum", "cta_order": "CTAOrder", "cga_layout": "CGALayout",
    "warps_per_cta": "warpsPerCTA", "swizzle_byte_width": "swizzlingByteWidth", "element_bitwidth": "elementBitWidth",
    "operand_index": "opIdx", "reg_bases": "register", "two_ctas": "twoCTAs",
}  # fmt: skip
# Fields of layouts that are not linear ones, in small letters: a dictionary of them has no inputs with bases
_FIELDS = frozenset(f.lower() for _, fields in GLUON.values() for f in fields.split()) - {*_HELD, *_STORED, "dim"}
# Those that are not read
SHAPED = frozenset("AutoLayout CoalescedLayout PartitionedSharedLayout".split())


class ListValue(NamedTuple):
    """A list: its place in the text, and its items."""

    at: int
    items: tuple[Value, ...]


class FieldsValue(NamedTuple):
    """A dictionary: its place in the text, and its entries."""

    at: int
    items: tuple[tuple[str, Value], ...]


class AttributeValue(NamedTuple):
    """An attribute of Triton's IR: its name, and its fields."""

    at: int
    name: str
    fields: FieldsValue


Value: TypeAlias = "ListValue | FieldsValue | AttributeValue | int | str"


class Basis(NamedTuple):
    """The values of one input's bits, lowest first, and the place of their text."""

    name: str
    vectors: tuple[tuple[int, ...], ...]
    at: int


def linear(text: str) -> LinearLayout | None:
    """The linear layout of a text that is Triton's, None for another.

    (register, lane, ...) -> flat index of the tensor, whose first dimension runs fastest; modes have Triton's names.
    Raises ParseError for what Triton prints of other layouts, with the character and what was expected.

    >>> found = linear("#ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]], warp = [], block = []}>")
    >>> found.names, found.bits, found(register=1, lane=2), str(found.to_layout())
    (('register', 'lane', 'warp', 'block'), (1, 2, 0, 0), 6, '(2,4,1,1):(4,1,0,0)')
    """
    if _ARROWS.match(text) is not None:
        return _arrows(text)
    if _OF_CPP.match(text) is not None:
        text = _as_lists(text)
    for pattern in (ATTRIBUTE, CLASS):
        found = pattern.match(text)
        if found is not None and found[1] in LINEAR:
            return _of_class(ValueReader(text, found.end()), found[1])
        if found is not None and (pattern is ATTRIBUTE or found[1] in SHAPED):
            chosen = found[1] in ("AutoLayout", "CoalescedLayout")
            why = "is chosen by the compiler" if chosen else "of Triton is none of those that are read"
            raise ParseError(
                f"{found[1]} {why}: expected a linear layout, as toLinearLayout(shape) prints it", text, found.start(1)
            )
    paired = _LIST_OF_PAIRS.match(text)
    if paired is not None:
        reader = ValueReader(text, paired.end())
        pairs = reader.value(0)
        reader.end("")
        given = _of_pairs(text, pairs, paired.end())
        return made(text, [basis_of(text, name, value, paired.end()) for name, value in given.items()], None)
    found = _DICTIONARY.match(text)
    if found is None:
        return None
    reader = ValueReader(text, found.end())
    fields = reader.fields(0)
    reader.end("")
    other = next((name for name, _ in fields.items if name.replace("_", "").lower() in _FIELDS), None)
    if other is not None:
        raise ParseError(
            f"expected inputs with bases, as in register = [[0, 1]], not {other}, a field of another layout: write its "
            f"name before it, as in #ttg.blocked<{{...}}>",
            text,
            text.index(other),
        )
    return made(text, [basis_of(text, name, value, fields.at) for name, value in fields.items], None)


def _as_lists(text: str) -> str:
    """C++'s braces and S("lane") as lists and strings, each in its place.

    >>> _as_lists('LinearLayout({{S("lane"), {{0, 1}, /*gap*/ {1, 0}}}}, {S("dim0")})')
    'LinearLayout([[  "lane" , [[0, 1],         [1, 0]]]], [  "dim0" ])'
    """
    for pattern in (r"/\*.*?\*/", r"//[^\n]*"):
        text = re.sub(pattern, lambda found: " " * len(found[0]), text, flags=re.DOTALL)
    text = re.sub(r"\b(S\(|\w+\()(\s*\"\w*\"\s*)\)", lambda x: " " * len(x[1]) + x[2] + " ", text)
    return text.replace("{", "[").replace("}", "]")


def _of_class(reader: ValueReader, name: str) -> LinearLayout:
    text = reader.text
    shape: list[int] | None = None
    if name in ARGUMENTS:
        given = reader.arguments(ARGUMENTS[name], NAMES)
        reader.end("")
    else:
        given = dict(reader.fields(0).items)
        reader.end("}>", inside=True)
    known = (*ARGUMENTS.get(name, ()), "requireSurjective")
    if name.startswith("LinearLayout") and (wrong := next((key for key in given if key not in known), "")):
        raise ParseError(f"expected one of {', '.join(known)}, not {wrong}, in {name}", text, reader.at)
    if given.get("shape") in ("true", "false"):  # C++'s third argument
        given.pop("shape")
    if "shape" in given:
        shape = integers_of(text, given.pop("shape"), reader.at)
    pairs, dims = given.get("bases"), given.get("names")
    names: list[object] = list(dims.items) if isinstance(dims, ListValue) else []
    if names and all(isinstance(dim, ListValue) and len(dim.items) == 2 for dim in names):  # [["dim0", 4], ...]
        sized = [dim.items for dim in names if isinstance(dim, ListValue)]
        names = [dim for dim, _ in sized]
        shape = integers_of(text, ListValue(reader.at, tuple([size for _, size in sized])), reader.at)
    if isinstance(dims, FieldsValue):  # {"dim0": 4, "dim1": 2}
        names = [key for key, _ in dims.items]
        sizes = ListValue(dims.at, tuple([size for _, size in dims.items]))
        shape = integers_of(text, sizes, dims.at)
    if isinstance(pairs, FieldsValue):
        given = dict(pairs.items)
    elif name.startswith("LinearLayout"):
        given = _of_pairs(text, pairs, reader.at)
    return made(text, *_by_number(names, inputs_of(text, name, given, reader.at), shape))


def _of_pairs(text: str, pairs: Value | None, at: int) -> dict[str, Value]:
    """The bases of each input in a list of (name, bases). Raises ParseError."""
    if not isinstance(pairs, ListValue):
        raise ParseError("expected a list of (name, bases)", text, at)
    found: dict[str, Value] = {}
    for pair in pairs.items:
        if not isinstance(pair, ListValue) or len(pair.items) != 2 or not isinstance(pair.items[0], str):
            raise ParseError("expected (name, bases)", text, pair.at if isinstance(pair, ListValue) else pairs.at)
        if pair.items[0] in found:
            raise ParseError(f"expected another name than {pair.items[0]}, which has bases already", text, pair.at)
        found[pair.items[0]] = pair.items[1]
    return found


def inputs_of(text: str, name: str, given: Mapping[str, Value], at: int) -> list[Basis]:
    """The bases of a linear layout's inputs. Raises ParseError for an input that the layout called `name` has not."""
    known = _INPUTS.get(name)
    bases = []
    for key, value in given.items():
        if key in _NO_INPUTS or value == "None":
            continue
        if known is not None and key not in known:
            place = value.at if isinstance(value, (ListValue, FieldsValue, AttributeValue)) else at
            raise ParseError(f"expected one of {', '.join(known)}, not {key}, in {name}", text, place)
        bases.append(basis_of(text, key, value, at))
    return bases


class TextReader:
    """Reads a text from left to right; `at` is the position."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def peek(self) -> str:
        """The next character that is no blank, "" at the end. The position moves to it."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def fail(self, expected: str) -> ParseError:
        """The error that says what was expected at the position."""
        self.peek()
        return ParseError(f"expected {expected}", self.text, self.at)


class ValueReader(TextReader):
    """Reads lists, dictionaries, calls, attributes, names and integers; `known` are the attributes with a name."""

    def __init__(self, text: str, at: int, known: Mapping[str, AttributeValue] | None = None) -> None:
        super().__init__(text, at)
        self.known = known or {}

    def take(self, sign: str) -> bool:
        """True if this sign stands here, which is passed."""
        if self.peek() != sign:
            return False
        self.at += 1
        return True

    def value(self, depth: int) -> Value:
        """A list, a dictionary, an attribute, an integer or a name."""
        sign = self.peek()
        if depth > DEPTH:
            raise ParseError(f"lists nest at most {DEPTH} deep", self.text, self.at)
        if sign and sign in "[(":
            at, items = self.at, []
            self.at += 1
            while self.peek() != "])"[sign == "("]:
                items.append(self.value(depth + 1))
                if not self.take(",") and self.peek() != "])"[sign == "("]:
                    raise self.fail(f"',' or '{'])'[sign == '(']}'")
            self.at += 1
            return ListValue(at, tuple(items))
        if sign == "{":
            return self.fields(depth)
        if sign == "#":
            return self.attribute(depth)
        called = CLASS.match(self.text, self.at)
        if called is not None and called[1] in GLUON:
            return self.called(called, depth)
        for pattern, group in ((_INTEGER, 0), (_QUOTED, 2), (_NAME, 0)):
            found = pattern.match(self.text, self.at)
            if found is not None:
                if pattern is _INTEGER and len(found[0]) > 1000:
                    raise ParseError(f"an integer of {len(found[0])} digits", self.text, self.at)
                self.at = found.end()
                return int(found[0]) if pattern is _INTEGER else found[group]
        raise self.fail("a list of bases, as in [[0, 1], [1, 0]]")

    def attribute(self, depth: int) -> AttributeValue:
        """`#ttg.blocked<{...}>`, or the name of one."""
        self.peek()
        at = self.at
        found = _OPEN.match(self.text, at)
        if found is None:
            named = _ALIAS.match(self.text, at)
            if named is None or named[1] not in self.known:
                raise self.fail("a layout, as in #ttg.blocked<{...}>, or the name of one that stands before it")
            self.at = named.end()
            return self.known[named[1]]
        self.at = found.end()
        if self.peek() != "{" and _BARE.match(self.text, self.at) is None:
            raise ParseError(f"expected the fields of {found[1]}, as in <{{order = [1, 0]}}>", self.text, self.at)
        fields = self.fields(depth + 1) if self.peek() == "{" else self.entries(">", depth + 1)
        more = _MORE.match(self.text, self.at)  # as in }, alignment = 16>
        self.at = self.at if more is None else more.end()
        if not self.take(">"):
            raise self.fail("'>'")
        return AttributeValue(at, found[1], fields)

    def called(self, found: re.Match[str], depth: int) -> AttributeValue:
        """The attribute that a class of Gluon stands for, with its arguments."""
        name, order = GLUON[found[1]]
        self.at = found.end()
        given = self.arguments(order.split(), GLUON_NAMES, depth + 1)
        given = {key: value for key, value in given.items() if value != "None"}
        blocks = given.get("CTAsPerCGA")
        if isinstance(blocks, ListValue) and all(isinstance(item, ListValue) for item in blocks.items):
            given["CGALayout"] = given.pop("CTAsPerCGA")  # the fifth argument of newer versions
        version = given.get("version")
        if isinstance(version, ListValue):
            given["versionMajor"] = integers_of(self.text, given.pop("version"), found.start())[0]
        if name.startswith("amd_"):
            given["isTransposed"] = given.pop("transposed", given.get("isTransposed", "false"))
        of_warps = given.get("warp")
        counts = of_warps.items if isinstance(of_warps, ListValue) else ()
        if name == "amd_wmma" and counts and all(isinstance(x, int) for x in counts):
            given["warpsPerCTA"] = given.pop("warp")  # the third argument of older versions
        elif name == "amd_wmma" and (of_warps is not None or "register" in given):
            parts = [(key, given.pop(key)) for key in ("register", "warp") if key in given]
            given["ctaLayout"] = FieldsValue(found.end() - 1, tuple(parts))
        if name in ("linear", "shared_linear"):
            given.pop("shape", None)
        elif (block := given.pop("block", None)) is not None:
            sizes = integers_of(self.text, block, found.start())
            given.update(dict(zip(("blockM", "blockN"), sizes, strict=False)))
        return AttributeValue(found.start(1), name, FieldsValue(found.end() - 1, tuple(given.items())))

    def fields(self, depth: int) -> FieldsValue:
        """`{name = value, "name": value}`."""
        at = self.at
        if not self.take("{"):
            raise self.fail("'{'")
        found = self.entries("}", depth)
        self.at += 1
        return FieldsValue(at, found.items)

    def entries(self, end: str, depth: int) -> FieldsValue:
        """`name = value, ...` before a sign, which is not passed."""
        at, items = self.at, list[tuple[str, Value]]()
        while self.peek() != end:
            place = self.at
            name = self.value(depth + 1)
            if not isinstance(name, str):
                raise ParseError("expected the name of an input, as in register or lane", self.text, place)
            if name in dict(items):
                raise ParseError(f"expected another name than {name}, which has bases already", self.text, place)
            if not self.take("=") and not self.take(":"):
                raise self.fail("'=' or ':'")
            items.append((name, self.value(depth + 1)))
            if not self.take(",") and self.peek() != end:
                raise self.fail(f"',' or '{end}'")
        return FieldsValue(at, tuple(items))

    def arguments(self, order: Sequence[str], names: Mapping[str, str], depth: int = 0) -> dict[str, Value]:
        """The arguments of a call behind its bracket, by name."""
        out: dict[str, Value] = {}
        while self.peek() != ")":
            found = regex(r"([A-Za-z_]\w*)\s*=\s*").match(self.text, self.at)
            if found is not None:
                name = names.get(found[1]) or re.sub(
                    r"_([a-z])", lambda x: x[1].upper(), found[1].removesuffix("_bases")
                )
                self.at = found.end()
            elif len(out) < len(order):
                name = order[len(out)]
            else:
                raise self.fail("')'")
            if name in out:
                raise ParseError(
                    f"expected another argument than {name}, which has a value already", self.text, self.at
                )
            out[name] = self.value(depth)
            if not self.take(",") and self.peek() != ")":
                raise self.fail("',' or ')'")
        self.at += 1
        return out

    def end(self, close: str, *, inside: bool = False) -> None:
        """The end of the text; `inside` an attribute other entries may follow, as in `}, alignment = 16>`."""
        if inside:
            found = regex(r"\s*(?:,\s*\w+\s*=\s*[\w]+\s*)*>").match(self.text, self.at)
            if found is None:
                raise self.fail("'>'")
            self.at = found.end()
        found = regex(r"\s*>?\s*(?:loc\([^\n]*\)\s*)?(?:(?:#|//|;).*)?\Z", re.DOTALL).match(self.text, self.at)
        if found is None:
            self.peek()
            raise ParseError("expected the end of the text", self.text, self.at)


def integers_of(text: str, value: Value, at: int) -> list[int]:
    """The integers of a list. Raises ParseError for another value."""
    items = value.items if isinstance(value, ListValue) else ()
    numbers = [x for x in items if isinstance(x, int)]
    if not items or len(numbers) != len(items):
        raise ParseError("expected a list of integers", text, value.at if isinstance(value, ListValue) else at)
    return numbers


def basis_of(text: str, name: str, value: Value, at: int) -> Basis:
    """The bases of one input. A list of vectors, or of integers where the tensor has one dimension."""
    if not isinstance(value, ListValue):
        raise ParseError(f"expected the bases of {name}, as in [[0, 1], [1, 0]]", text, at)
    vectors: list[tuple[int, ...]] = []
    for each in value.items:
        vector = (each,) if isinstance(each, int) else tuple(integers_of(text, each, value.at))
        vectors.append(vector)
    return Basis(name, tuple(vectors), value.at)


def _dimensions(text: str, out: re.Match[str]) -> tuple[list[object], list[int] | None]:
    """Names and sizes of a printed layout's dimensions; older versions print no sizes."""
    parts = out[1].split(",")
    if all(_NAME.fullmatch(part.strip()) for part in parts):
        return [part.strip() for part in parts], None
    names: list[object] = []
    shape: list[int] = []
    for part in parts:
        dim = _DIM.fullmatch(part)
        if dim is None:
            raise ParseError("expected the dimensions, as in [dim0 (size 4), dim1 (size 2)]", text, out.start(1))
        names.append(dim[1])
        shape.append(int(dim[2][:1000]))
    return names, shape


def _by_number(
    names: list[object], bases: list[Basis], shape: list[int] | None
) -> tuple[list[Basis], list[int] | None]:
    """Vectors and sizes in the order dim0, dim1, ...: Triton lists dimensions in the order of a layout's own."""
    order = [names.index(f"dim{i}") for i in range(len(names)) if f"dim{i}" in names]
    if len(order) != len(names) or any(len(v) != len(order) for basis in bases for v in basis.vectors):
        return bases, shape
    moved = [Basis(b.name, tuple(tuple(v[i] for i in order) for v in b.vectors), b.at) for b in bases]
    return moved, None if shape is None or len(shape) != len(order) else [shape[i] for i in order]


def _arrows(text: str) -> LinearLayout:
    """The text of print(LinearLayout): a line for each bit."""
    begins = _ARROWS.match(text)
    at, end = begins.start("first") if begins is not None else 0, len(text)
    out = _OUT.search(text)
    shape: list[int] | None = None
    names: list[object] = []
    if out is not None:
        end = out.start()
        names, shape = _dimensions(text, out)
    bases: dict[str, Basis] = {}
    blanks = regex(r"(?:\s|//|#)*")
    while True:
        skipped = blanks.match(text, at)
        at = skipped.end() if skipped is not None else at
        if at >= end:
            break
        found, one = _ARROW.match(text, at), _ONE.match(text, at)
        if one is not None:
            bases[one[1]] = Basis(one[1], (), at)
            at = one.end()
            continue
        if found is None:
            raise ParseError("expected a line as in 'register=1 -> (0, 1)'", text, at)
        before = bases.get(found[1], Basis(found[1], (), at))
        if found[2] != str(1 << len(before.vectors)):
            raise ParseError(f"expected {found[1]}={1 << len(before.vectors)}, the next bit", text, at)
        vector = tuple([int(x[:1000]) for x in found[3].split(",")])
        bases[found[1]] = Basis(found[1], (*before.vectors, vector), before.at)
        at = found.end()
    return made(text, *_by_number(names, list(bases.values()), shape))


def made(text: str, bases: Sequence[Basis], shape: list[int] | None) -> LinearLayout:
    """(input, ...) -> flat index of the tensor, its first dimension fastest."""
    ranks = {len(vector): basis.at for basis in bases for vector in basis.vectors}
    rank = len(shape) if shape is not None else next(iter(ranks), 1)
    for basis in bases:
        for vector in basis.vectors:
            if len(vector) != rank or min(vector) < 0:
                raise ParseError(
                    f"expected vectors of {rank} integers from 0 for {basis.name}, not {list(vector)}", text, basis.at
                )
    if shape is None:
        shape = [1 << max([v[d].bit_length() for b in bases for v in b.vectors], default=0) for d in range(rank)]
    shifts, width = [], 0
    for size in shape:
        if size < 1 or size & (size - 1):
            raise ParseError(f"expected extents that are powers of two, not {size}", text, 0)
        shifts.append(width)
        width += size.bit_length() - 1
    for basis in bases:
        for vector in basis.vectors:
            if any(x >= size for x, size in zip(vector, shape, strict=True)):
                raise ParseError(f"expected a vector inside {tuple(shape)}, not {list(vector)}", text, basis.at)
    columns = [sum(x << by for x, by in zip(v, shifts, strict=True)) for b in bases for v in b.vectors]
    names = tuple([basis.name for basis in bases])
    try:
        return LinearLayout(tuple(columns), tuple([len(b.vectors) for b in bases]), names, width)
    except LayoutError as error:
        raise ParseError(str(error), text, 0) from None
