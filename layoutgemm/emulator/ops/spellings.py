"""The spellings of instructions that touch memory or other threads. Words, operands, and the least target.

The table is data, in `spellings.txt`, which says how a line is read. Instructions whose builders check all of this
themselves are not in it. A test compares it with what ptxas accepts (13.0 and 13.4). What ptxas takes beyond PTX is
refused: `atom.add.noftz.f32`, `match.any.sync.u32`, `ld.volatile` with a priority of eviction.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from ..ptx.forms import reached, table_in
from ..ptx.parser import PtxInstruction, PtxOperand


class WordFamily(NamedTuple):
    """One family: sets of words, operands, the least target. With each set stands whether one may be left out."""

    tokens: tuple[tuple[frozenset[str], bool], ...]
    operands: tuple[str, ...]
    target: str

    def covers(self, words: tuple[str, ...]) -> bool:
        """True if the words are one of each token, and nothing else."""
        left = list(words)
        for choices, optional in self.tokens:
            found = next((word for word in left if word in choices), None)
            if found is not None:
                left.remove(found)
            elif not optional:
                return False
        return not left

    def takes(self, operands: tuple[PtxOperand, ...]) -> bool:
        """True if the operands are of these kinds."""
        least = sum(not kind.endswith("?") for kind in self.operands)
        if not least <= len(operands) <= len(self.operands):
            return False
        return all(_fits(kind.rstrip("?"), one) for kind, one in zip(self.operands, operands, strict=False))


def _fits(kind: str, operand: PtxOperand) -> bool:
    if kind == "a":
        return operand.kind == "address"
    if kind == "_":
        return operand.kind == "sink"
    if kind.isdigit():
        return operand.kind == "number" and int(operand.text, 0) == int(kind)
    return operand.kind != "address" and (kind != "r" or operand.kind != "pair")


def _expanded(text: str, abbreviated: dict[str, str]) -> str:
    while (found := re.search(r"\b[A-Z]{3,}\b", text)) is not None:
        text = text[: found.start()] + abbreviated[found[0]] + text[found.end() :]
    return text


@cache
def _table() -> dict[str, list[WordFamily]]:
    """First word of an opcode -> its spellings."""
    out: dict[str, list[WordFamily]] = {}
    abbreviated, lines = table_in(__package__, "spellings.txt")
    for line in lines:
        spelled, _, right = line.partition(" :")
        spelled = _expanded(spelled, abbreviated)
        target = next((part[1:] for part in right.split() if part[0] == "@"), "50")
        operands = tuple(part for part in right.split() if part[0] != "@")
        together = re.findall(r"\{(.*?)\}", spelled)
        plain = re.sub(r"\{.*?\}", "", spelled)
        for more in ("", *together):
            words = plain.split() + more.split()
            name, *fixed = words[0].split(".")
            tokens = [(frozenset([word]), False) for word in fixed]
            for token in words[1:]:
                choices = frozenset(one.removeprefix(".") for one in token.strip("[]").split("|"))
                tokens.append((choices, token[0] == "["))
            out.setdefault(name, []).append(WordFamily(tuple(tokens), operands, target))
    return out


@lru_cache(maxsize=1 << 12)
def _covering(opcode: str) -> tuple[WordFamily, ...]:
    name, *words = opcode.split(".")
    return tuple(one for one in _table()[name] if one.covers(tuple(words)))


# Beginnings of opcodes whose builders know their spellings.
_OWN = ("cp.async", "cp.reduce.async.bulk.tensor", "fence.proxy.tensormap")
# Words that a later target has, instructions among them: the least one, or several. ptxas 13.0 assembles scatter4,
# im2col::w::128, and the gather4 and im2col::w of clusters and prefetches, for sm_100, sm_103 and sm_110 with their
# suffix alone.
_SINCE = {
    **dict.fromkeys(("mbarrier", "redux", "createpolicy", "async", "L2::cache_hint"), ("80",)),
    **dict.fromkeys((
        "bulk", "cluster", "shared::cluster", "multicast::cluster", "mapa", "getctarank", "elect", "multimem",
        "stmatrix", "griddepcontrol", "tensormap", "tensormap::generic", "try_wait", "expect_tx", "complete_tx",
    ), ("90",)),
    **dict.fromkeys(("setmaxnreg", "replace"), ("90a",)),
    "wgmma": ("9X",), "tcgen05": ("10x", "11x"), "clusterlaunchcontrol": ("100",),
    "m16n16": ("100a",), "m8n16": ("100a",), "m16n8": ("100a",), "cp_mask": ("100",), "tile::gather4": ("10x", "11x"),
    "tile::scatter4": ("10x", "11x"), "im2col::w": ("10x", "11x"), "im2col::w::128": ("10x", "11x"),
    "swizzle_atomicity": ("100a",),
}  # fmt: skip
_INTO_CTA = dict.fromkeys(("tile::gather4", "im2col::w"), ("100",))  # of copies into .shared::cta


_WIDTH = re.compile(r"[busf](\d+)")
# Caching hints of ld and st, and the spaces in which they exist; "": generic addresses.
_HINTS, _HINTED = ("L1::", "L2::"), {"", "global"}
_OPERATORS = {"ca", "cg", "cs", "lu", "cv", "wb", "wt"}


def check_access(ins: PtxInstruction, target: str) -> None:
    """Raise ValueError for words of a load or a store that do not go together.

    PTX ISA, "ld" and "st": vectors have 128 bits at most, and of global memory 256 from sm_100 on. Priorities of
    eviction in L2 belong to the latter.
    """
    words = ins.words[1:]
    space = next((word for word in words if word.partition("::")[0] in _SPACES), "")
    hints = [word for word in words if word.startswith(_HINTS)]
    width = _WIDTH.fullmatch(words[-2] if words[-1] == "unified" else words[-1])
    assert width is not None, ins.opcode
    count = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
    bits, element = count * int(width[1]), int(width[1])
    wide = bits == 256 and element in (32, 64) and ins.words[0] != "ldu"
    if count == 8 and ins.words[0] == "ldu":
        raise ValueError("ldu has vectors of 2 and 4 elements")
    if bits > 128 and not wide:
        raise ValueError(f"a vector of {bits} bits: 128 are the most, 256 in eight of 32 bits or four of 64")
    if wide and space not in _HINTED:
        raise ValueError(f"a vector of 256 bits in .{space}: it is of global memory alone")
    if wide and not reached(target, "100"):
        raise ValueError("a vector of 256 bits needs .target sm_100 or above")
    if hints and space not in _HINTED:
        raise ValueError(f".{hints[0]} in .{space}: it is of global memory alone")
    if any(word.startswith("L2::evict") for word in hints) and not wide:
        raise ValueError("a priority of eviction in L2 goes with .v8.b32 and .v4.b64 alone")
    if _OPERATORS & {*words} and any(word.startswith("L1::") for word in hints):
        raise ValueError("a cache operator and a priority of eviction in L1 do not go together")
    if "nc" in words and space != "global":
        raise ValueError("ld.nc is of .global")
    if "volatile" in words and space.startswith("param"):
        raise ValueError(f".volatile in .{space}: it is not of parameters")


_SPACES = {"global", "shared", "local", "param", "const"}


def check_spelling(ins: PtxInstruction, target: str) -> None:
    """Raise ValueError for a spelling, operands or a target that PTX does not have."""
    if ins.words[0] not in _table() or ins.opcode.startswith(_OWN):
        return
    found = _covering(ins.opcode)
    if not found:
        raise ValueError(f"{ins.opcode} is no form of {ins.words[0]} that the emulator knows")
    if not any(one.takes(ins.operands) for one in found):
        kinds = " or ".join(" ".join(one.operands) or "none" for one in found)
        raise ValueError(f"{ins.opcode} with other operands than PTX has ({kinds}; a: an address)")
    if not any(reached(target, one.target) for one in found):
        raise ValueError(f"{ins.opcode} needs .target sm_{found[0].target} or above")
    if ins.words[0] in ("ld", "ldu", "st") and ins.words[1] not in ("async", "bulk"):
        check_access(ins, target)


def check_words(ins: PtxInstruction, target: str) -> None:
    """Raise ValueError for a word of a later target."""
    for word in _SINCE.keys() & {*ins.words}:
        since = _INTO_CTA.get(word, _SINCE[word]) if "shared::cta" in ins.words else _SINCE[word]
        if not any(reached(target, least) for least in since):
            least = " or ".join([f"sm_{one[:-1]}0a" if one[-1] == "X" else f"sm_{one}" for one in since])
            raise ValueError(
                f"{'.' * (word != ins.words[0])}{word} needs .target {least}{' or above' * (since[0][-1] != 'X')}"
            )
