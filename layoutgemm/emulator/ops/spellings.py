"""The spellings of instructions that touch memory or other threads: words, operands, and the least target.

One line of `TABLE` is a family of spellings. `.u32|.s32` is a choice, `[.v2|.v4]` is optional, and the words of
`{.release .cta|.cluster}` come together or not at all. Words may stand in any order. Operands follow the colon: `a` is
an address, `v` any other, `r` one without a second result, `_` the sink, a number itself; `?` may be left out. `@100`
is the least target. Instructions whose builders check all of this themselves are not in the table.

Source: PTX ISA, "Instruction Set"; a test compares it with what ptxas accepts (13.0 and 13.4). What ptxas takes beyond
PTX is refused: `atom.add.noftz.f32`, `match.any.sync.u32`, `ld.volatile` with a priority of eviction.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from ..ptx.forms import reached
from ..ptx.parser import PtxInstruction, PtxOperand

_WORDS = {
    "SCOPE": ".cta|.cluster|.gpu|.sys",
    "OWN": "[.shared|.shared::cta]",
    "SPACE": "[.global|.shared|.shared::cta|.shared::cluster|.local|.param|.param::entry|.param::func]",
    "SHARED": "[.global|.shared|.shared::cta|.shared::cluster]",
    "HINTS": (
        "[.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate]"
        " [.L2::evict_normal|.L2::evict_first|.L2::evict_last] [.L2::cache_hint]"
    ),
    "AHEAD": "[.L2::64B|.L2::128B|.L2::256B]",
    "VEC": "[.v2|.v4|.v8]",
    "TYPE": ".b8|.b16|.b32|.b64|.b128|.u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64|.f32|.f64",
    "TRYCANCEL": "clusterlaunchcontrol.try_cancel.async [.shared::cta] .mbarrier::complete_tx::bytes",
    "REDGLOBAL": "cp.reduce.async.bulk.global.shared::cta.bulk_group [.L2::cache_hint]",
    "REDSHARED": "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "REDASYNC": "red.async.relaxed.cluster.mbarrier::complete_tx::bytes [.shared::cluster]",
    "ATOM": "[.relaxed|.acquire|.release|.acq_rel] [.cta|.cluster|.gpu|.sys] SHARED [.L2::cache_hint]",
    "RED": "[.relaxed|.release] [.cta|.cluster|.gpu|.sys] SHARED [.L2::cache_hint]",
    "WIDE": "[.relaxed|.acquire|.release|.acq_rel] [.cta|.cluster|.gpu|.sys] [.global] [.L2::cache_hint]",
    "WIDERED": "[.relaxed|.release] [.cta|.cluster|.gpu|.sys] [.global] [.L2::cache_hint]",
}
TABLE = """
mbarrier.init OWN .b64                                             : a v
mbarrier.inval OWN .b64                                            : a
mbarrier.expect_tx {.relaxed .cta|.cluster} [.shared|.shared::cta|.shared::cluster] .b64  : a v
mbarrier.complete_tx {.relaxed .cta|.cluster} [.shared|.shared::cta|.shared::cluster] .b64 : a v
mbarrier .arrive|.arrive_drop {.release|.relaxed .cta|.cluster} OWN .b64 : v a v?
mbarrier .arrive|.arrive_drop {.release|.relaxed .cta|.cluster} .shared::cluster .b64 : _ a v?
mbarrier .arrive|.arrive_drop .expect_tx {.release|.relaxed .cta|.cluster} OWN .b64 : v a v
mbarrier .arrive|.arrive_drop .expect_tx {.release|.relaxed .cta|.cluster} .shared::cluster .b64 : _ a v
mbarrier .arrive|.arrive_drop .noComplete {.release .cta} OWN .b64 : v a v
mbarrier.test_wait [.parity] {.acquire|.relaxed .cta|.cluster} OWN .b64 : v a v
mbarrier.try_wait [.parity] {.acquire|.relaxed .cta|.cluster} OWN .b64 : v a v v?
mbarrier.pending_count .b64                                        : v v
bar [.cta] .sync                                                   : v v?
barrier [.cta] .sync [.aligned]                                    : v v?
bar [.cta] .arrive                                                 : v v
barrier [.cta] .arrive [.aligned]                                  : v v
bar [.cta] .red .popc .u32                                         : v v v v?
bar [.cta] .red .and|.or .pred                                     : v v v v?
barrier [.cta] .red .popc [.aligned] .u32                          : v v v v?
barrier [.cta] .red .and|.or [.aligned] .pred                      : v v v v?
bar.warp.sync                                                      : v
barrier.cluster.arrive [.release|.relaxed] [.aligned]              :
barrier.cluster.wait [.acquire] [.aligned]                         :
fence [.sc|.acq_rel|.acquire|.release] SCOPE                       :
fence.proxy .alias|.async                                          :
fence.proxy.async .global|.shared::cta|.shared::cluster            :
fence.mbarrier_init.release.cluster                                :
fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster :
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster :
fence.acquire.sync_restrict::shared::cluster.cluster               :
fence.release.sync_restrict::shared::cta.cluster                   :
membar .cta|.gl|.sys                                               :
membar.proxy.alias                                                 :
redux.sync .add|.min|.max .u32|.s32                                : v v v
redux.sync .and|.or|.xor .b32                                      : v v v
redux.sync .min|.max [.abs] [.NaN] .f32                            : v v v @10x
vote.sync .all|.any|.uni .pred                                     : v v v
vote.sync.ballot.b32                                               : v v v
match.any.sync .b32|.b64                                           : r v v
match.all.sync .b32|.b64                                           : v v v
nanosleep.u32                                                      : v
applypriority [.global] .L2::evict_normal                          : a 128
discard [.global] .L2                                              : a 128
prefetch [.global|.local] .L1|.L2                                  : a
prefetch.global .L2::evict_last|.L2::evict_normal                  : a
prefetch [.const|.param] .tensormap                                : a
prefetchu.L1                                                       : a
st.bulk [.weak] [.shared::cta]                                     : a v 0 @100
TRYCANCEL [.multicast::cluster::all] .b128                         : a a @100
clusterlaunchcontrol.query_cancel.is_canceled .pred .b128          : v v @100
clusterlaunchcontrol.query_cancel.get_first_ctaid .v4 .b32 .b128   : v v @100
clusterlaunchcontrol.query_cancel .get_first_ctaid::x|.get_first_ctaid::y|.get_first_ctaid::z .b32 .b128 : v v @100
REDGLOBAL .add .u32|.s32|.u64|.f32|.f64                            : a a v v?
REDGLOBAL .add .noftz .f16|.bf16                                   : a a v v?
REDGLOBAL .min|.max .u32|.s32|.u64|.s64|.f16|.bf16                 : a a v v?
REDGLOBAL .inc|.dec .u32                                           : a a v v?
REDGLOBAL .and|.or|.xor .b32|.b64                                  : a a v v?
REDSHARED .add .u32|.s32|.u64                                      : a a v a
REDSHARED .min|.max .u32|.s32                                      : a a v a
REDSHARED .inc|.dec .u32                                           : a a v a
REDSHARED .and|.or|.xor .b32                                       : a a v a
REDASYNC .add .u32|.s32|.u64|.s64                                  : a v a
REDASYNC .min|.max .u32|.s32                                       : a v a
REDASYNC .inc|.dec .u32                                            : a v a
REDASYNC .and|.or|.xor .b32                                        : a v a
st.async [.weak] .mbarrier::complete_tx::bytes [.shared::cluster] [.v2|.v4] .b32|.u32|.s32|.f32 : a v a
st.async [.weak] .mbarrier::complete_tx::bytes [.shared::cluster] [.v2] .b64|.u64|.s64|.f64 : a v a
ld [.weak] SPACE [.ca|.cg|.cs|.lu|.cv] HINTS AHEAD VEC TYPE [.unified] : v a v?
ld [.weak] .const [.ca|.cg|.cs|.lu|.cv] VEC TYPE                   : v a
ld [.global] .nc [.ca|.cg|.cs] HINTS AHEAD VEC TYPE                : v a v?
ld .volatile SPACE AHEAD VEC TYPE                                  : v a
ld .relaxed|.acquire SCOPE SHARED HINTS AHEAD VEC TYPE             : v a v?
ld .mmio .relaxed .sys [.global] TYPE                              : v a
ldu [.global] VEC TYPE                                             : v a
st [.weak] SPACE [.wb|.cg|.cs|.wt] HINTS VEC TYPE                  : a v v?
st .volatile SPACE VEC TYPE                                        : a v
st .relaxed|.release SCOPE SHARED HINTS VEC TYPE                   : a v v?
st .mmio .relaxed .sys [.global] TYPE                              : a v
atom ATOM .add .u32|.s32|.u64|.f32|.f64                            : v a v v?
atom ATOM .add .noftz .f16|.bf16|.f16x2|.bf16x2                    : v a v v?
atom ATOM .min|.max .u32|.s32|.u64|.s64                            : v a v v?
atom ATOM .and|.or|.xor .b32|.b64                                  : v a v v?
atom ATOM .exch .b32|.b64                                          : v a v v?
atom ATOM .cas .b16|.b32|.b64                                      : v a v v v?
atom ATOM .exch .b128                                              : v a v v?   @90
atom ATOM .cas .b128                                               : v a v v v? @90
atom ATOM .inc|.dec .u32                                           : v a v v?
atom WIDE .add .v2|.v4 .f32                                        : v a v v? @90
atom WIDE .add|.min|.max .noftz .v2|.v4|.v8 .f16|.bf16             : v a v v? @90
atom WIDE .add|.min|.max .noftz .v2|.v4 .f16x2|.bf16x2             : v a v v? @90
red RED .add .u32|.s32|.u64|.f32|.f64                              : a v v?
red RED .add .noftz .f16|.bf16|.f16x2|.bf16x2                      : a v v?
red RED .min|.max .u32|.s32|.u64|.s64                              : a v v?
red RED .and|.or|.xor .b32|.b64                                    : a v v?
red RED .inc|.dec .u32                                             : a v v?
red WIDERED .add .v2|.v4 .f32                                      : a v v? @90
red WIDERED .add|.min|.max .noftz .v2|.v4|.v8 .f16|.bf16           : a v v? @90
red WIDERED .add|.min|.max .noftz .v2|.v4 .f16x2|.bf16x2           : a v v? @90
"""


class WordFamily(NamedTuple):
    """One family: sets of words with whether one may be left out, operands, the least target."""

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


def _expanded(text: str) -> str:
    while (found := re.search(r"\b[A-Z]{3,}\b", text)) is not None:
        text = text[: found.start()] + _WORDS[found[0]] + text[found.end() :]
    return text


@cache
def _table() -> dict[str, list[WordFamily]]:
    """First word of an opcode -> its spellings."""
    out: dict[str, list[WordFamily]] = {}
    for line in TABLE.strip().splitlines():
        spelled, _, right = line.partition(" :")
        spelled = _expanded(spelled)
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
