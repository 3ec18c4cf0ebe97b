"""tcgen05 instruction descriptors: where the bits are, every legal word there and back, what does not exist."""

import itertools
import pickle

import pytest

from layoutgemm.atoms import InstructionDescriptor, decode, describe, instruction_descriptor, tcgen05_mma, wgmma
from layoutgemm.atoms.smem.instruction_descriptor import CODES, TABLES
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError, DescriptorError

DENSE = {"f16": "f16 f16 f32", "tf32": "tf32 tf32 f32", "f8f6f4": "e4m3 e2m1 f32", "i8": "u8 i8 i32"}
SCALED = {"mxf8f6f4": "e5m2 e3m2 f32", "mxf4": "e2m1 e2m1 f32", "mxf4nvf4": "e2m1 e2m1 f32"}


def make(kind, m=128, n=128, **options):
    a, b, d = ({**DENSE, **SCALED}[kind]).split()
    if kind == "mxf4nvf4":
        options.setdefault("scale", dtype("ue4m3"))
    return InstructionDescriptor(kind, m, n, dtype(a), dtype(b), dtype(d), **options)


def test_bits_are_where_cutlass_has_them():
    """The bit positions of cute/arch/mma_sm100_desc.hpp, written out once more and differently."""
    codes = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "i8": 1}
    outputs = {"f16": 0, "f32": 1, "i32": 2}
    for kind, (a_major, b_major), (m, n) in itertools.product(
        DENSE, itertools.product("KM", repeat=2), ((64, 64), (128, 256), (256, 32))
    ):
        majors = {"a_major": a_major.replace("M", "MN"), "b_major": b_major.replace("M", "MN")}
        found = make(kind, m, n, **majors)
        want = outputs[found.d.name] << 4 | codes[found.a.name] << 7 | codes[found.b.name] << 10
        want |= (a_major == "M") << 15 | (b_major == "M") << 16 | n // 8 << 17 | m // 16 << 24
        assert hex(found.word) == hex(want), found
    narrow = [name for name, _ in CODES["f8f6f4"].inputs]
    for kind, a, b in itertools.product(("f8f6f4", "mxf8f6f4"), narrow, narrow):
        found = InstructionDescriptor(kind, 128, 64, dtype(a), dtype(b), dtype("f32"))
        rest = 1 << 4 if kind == "f8f6f4" else 1 << 23
        assert found.word == rest | codes[a] << 7 | codes[b] << 10 | 8 << 17 | 8 << 24
    for m in (128, 256):
        found = make("mxf8f6f4", m, 64, scale_a_id=3, scale_b_id=2, negate_b=True)
        assert found.word == 2 << 4 | 1 << 7 | 4 << 10 | 1 << 14 | 8 << 17 | 1 << 23 | m // 16 << 24 | 3 << 29
        found = make("mxf4nvf4", m, 64, scale_b_id=2, k_96=True)
        assert found.word == 2 << 4 | 1 << 7 | 1 << 10 | 8 << 17 | 0 << 23 | m // 16 << 24 | 1 << 31


def test_every_legal_word_goes_there_and_back():
    seen = 0
    for kind, has in CODES.items():
        types = itertools.product([dtype(x) for x, _ in has.inputs], repeat=2)
        for (a, b), (d, _), majors, m, n in itertools.product(
            types,
            has.outputs or (("f32", 1),),
            itertools.product(("K", "MN"), repeat=2),
            (32, 64, 128, 256),
            (8, 24, 64, 256),
        ):
            for options in ({}, {"sparse": True}, {"negate_a": True}, {"saturate": True}, {"scale_a_id": 2}):
                for scale in [dtype(x) for x, _ in has.scales] or [None]:
                    try:
                        found = InstructionDescriptor(kind, m, n, a, b, dtype(d), *majors, scale=scale, **options)
                    except DescriptorError:
                        continue
                    again = InstructionDescriptor.decode(found.word, kind)
                    assert again == found, (again, found)
                    assert TABLES[kind].decode(found.word)["n"] == n
                    seen += 1
    assert seen > 400, seen


REFUSED = [
    ("f16", {"m": 96}, "1 block.s. have M of 64, 128 and N of 8, 16, ..., 256; 2 block.s. have M of 128, 256"),
    ("f16", {"m": 64, "cta_group": 2}, r"m64 n128: 2 block\(s\) have M of 128, 256"),
    ("f16", {"m": 256, "cta_group": 1}, "1 block.s. have M of 64, 128"),
    ("f16", {"n": 12}, "N of 8, 16"),
    ("f16", {"n": 8, "cta_group": 2}, "N of 16, 32"),
    ("f16", {"n": 264}, "N of 8"),
    ("f16", {"n": 128.0}, "n of InstructionDescriptor must be an integer"),
    ("f16", {"m": True}, "m of InstructionDescriptor must be an integer"),
    ("f16", {"a": "e4m3"}, "A is e4m3; the kind takes f16, bf16"),
    ("f16", {"b": "tf32"}, "B is tf32"),
    ("f16", {"d": "i32"}, "D is i32; f16 accumulates in f32 or f16"),
    ("f16", {"a": "bf16", "d": "f16"}, "D is f16; bf16 accumulates in f32"),
    ("f16", {"scale": "ue8m0"}, "scale factors of ue8m0; the kind takes none: the kind is not block-scaled"),
    ("f16", {"saturate": True}, "only integers saturate"),
    ("f16", {"sparsity_selector": 1}, "sparsity selector 1 without a sparse A"),
    ("f16", {"sparse": 1}, "sparse of InstructionDescriptor must be True or False, not 1"),
    ("f16", {"a_major": "M"}, "major of A is 'M'"),
    ("f16", {"scale_a_id": 1}, "scale_a_id = 1; the kind takes 0: the kind is not block-scaled"),
    ("f16", {"max_shift": 8}, "a maximum shift of 8 outside the weight-stationary form"),
    ("f16", {"max_shift": 4}, "a maximum shift of 4; the weight-stationary form takes 0, 8, 16 or 32"),
    ("f16", {"k_96": True}, "K = 96 is for dense mxf4 and mxf4nvf4"),
    ("f16", {"cta_group": 3}, "cta_group is 1 or 2, not 3"),
    ("f16", {"weight_stationary": True, "cta_group": 2}, "for kinds without block scales and one block"),
    ("f16", {"weight_stationary": True, "n": 32}, "M of 32, 64, 128 and N of 64, 128, 256"),
    ("f16", {"weight_stationary": True, "n": 256, "sparse": True}, "N of 64, 128"),
    ("i8", {"negate_a": True}, "the kind does not negate"),
    ("i8", {"n": 40}, "1 block.s. have M of 64, 128 and N of 8, 16, ..., 256"),
    ("i8", {"n": 16, "cta_group": 2, "m": 256}, "N of 32, 64, ..., 256"),
    ("i8", {"n": 24, "b_major": "MN"}, "N of 16, 32"),
    ("f8f6f4", {"b": "e4m3", "n": 8, "b_major": "MN"}, "N of 16, 32"),
    ("f8f6f4", {"b": "e4m3", "n": 48, "b_major": "MN", "m": 256}, "2 block.s. have M of 128, 256 and N of 32, 64"),
    ("f8f6f4", {"b": "e2m1", "n": 24, "b_major": "MN"}, "N of 16, 32"),
    ("mxf4", {"m": 128, "cta_group": 2, "k_96": True}, "2 block.s. have M of 256"),
    ("mxf4", {"a_major": "MN"}, "A is MN-major; the kind reads K-major operands only"),
    ("mxf4", {"scale": "ue4m3"}, "scale factors of ue4m3; the kind takes ue8m0"),
    ("mxf4", {"scale_b_id": 1}, "scale_b_id = 1; the kind takes 0, 2"),
    ("mxf4", {"m": 64}, "1 block.s. have M of 128"),
    ("mxf4", {"k_96": True, "sparse": True}, "K = 96 is for dense"),
    ("mxf4nvf4", {"scale": None}, "its block scales are ue4m3 or ue8m0: say which"),
    ("mxf8f6f4", {"m": 128, "cta_group": 2, "sparse": True}, "2 block.s. have M of 256"),
    ("mxf8f6f4", {"weight_stationary": True}, "for kinds without block scales"),
    ("mxf8f6f4", {"sparse": True, "sparsity_selector": 1}, "without a sparse A of a kind that has one"),
    ("f64", {}, "tcgen05.mma has no kind 'f64'; it has f16, tf32"),
]


@pytest.mark.parametrize("kind, options, text", REFUSED, ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)])
def test_what_does_not_exist_is_refused(kind, options, text):
    a, b, d = {**DENSE, **SCALED}.get(kind, "f16 f16 f32").split()
    fields = {"m": 128, "n": 128, "a": a, "b": b, "d": d, **options}
    if kind == "mxf4nvf4":
        fields.setdefault("scale", "ue4m3")
    with pytest.raises(DescriptorError, match=text):
        InstructionDescriptor(kind, **fields)


def test_decoding_refuses_reserved_bits_and_shapes_that_do_not_exist():
    good = make("f16").word
    for word, kind, text in (
        (good | 1 << 23, "f16", "sets bits 23"),
        (good | 1 << 29, "f16", "sets bits 29"),
        (good ^ 1 << 24, "f16", "m144 n128: 1 block.s. have"),
        (good | 1 << 3, "f16", "only integers saturate"),
        (good | 3 << 4, "f16", "d_format = 3 has no meaning"),
        (make("mxf4").word | 1 << 15, "mxf4", "A is MN-major; the kind reads K-major"),
        (make("mxf8f6f4").word & ~(1 << 23), "mxf8f6f4", "scale_format = 0 has no meaning; it is one of 1 ue8m0"),
    ):
        with pytest.raises(DescriptorError, match=text):
            decode(word, kind=kind)
    # one word, two kinds: 1 is bf16 to one and e5m2 to the other
    word = InstructionDescriptor("f16", 128, 128, *map(dtype, ("bf16", "bf16", "f32"))).word
    assert decode(word, kind="f8f6f4").a.name == "e5m2"
    assert describe(word, kind="f16").splitlines()[5].split()[-5:] == ["bf16", ":", "type", "of", "A"]


def test_the_depth_is_32_bytes_of_shared_memory():
    depths = {kind: make(kind).k for kind in CODES}
    assert depths == {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
    assert make("mxf4", k_96=True).k == 96 and make("f16", sparse=True).k == 32 and make("mxf4", sparse=True).k == 128


def test_every_atom_has_a_descriptor_and_every_descriptor_an_atom():
    seen = 0
    for kind, group, ws, sparse in itertools.product(CODES, (1, 2), (False, True), (False, True)):
        scaled = {"scale": "ue4m3"} if kind == "mxf4nvf4" else {}
        for m, n in itertools.product(
            (32, 64, 96, 128, 256), (4, 8, 16, 20, 24, 32, 40, 48, 64, 112, 128, 240, 256, 264)
        ):
            try:
                made = tcgen05_mma(kind, m, n, cta_group=group, ws=ws, sparse=sparse)
            except AtomError:
                with pytest.raises(DescriptorError):
                    make(kind, m, n, cta_group=group, weight_stationary=ws, sparse=sparse, **scaled)
                continue
            word = instruction_descriptor(made)
            types = (word.a, word.b, word.d, word.k, word.scale)
            scale = made.scale.dtype if made.scale else None
            assert types == (made.a_dtype, made.b_dtype, made.c_dtype, made.shape_mnk[2], scale)
            assert (word.m, word.n, word.cta_group, word.sparse, word.weight_stationary) == (m, n, group, sparse, ws)
            seen += 1
    assert seen > 200, seen


def test_descriptors_of_atoms():
    found = instruction_descriptor(tcgen05_mma("mxf4nvf4", 256, 64, scale="ue8m0", cta_group=2), negate_a=True)
    assert (found.kind, found.cta_group, found.scale, found.negate_a) == ("mxf4nvf4", 2, dtype("ue8m0"), True)
    sparse = instruction_descriptor(tcgen05_mma("f16", 128, 64, sparse=True), "MN")
    assert sparse.sparse and sparse.a_major == "MN" and sparse.k == 32
    assert instruction_descriptor(tcgen05_mma("mxf4", 128, 64, k=96)).k_96
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(DescriptorError, match="of a kind: it has no instruction descriptor"):
        instruction_descriptor(wgmma(64))
    with pytest.raises(DescriptorError, match="has K = 64; the word of kind::f8f6f4 means K = 32"):
        instruction_descriptor(tcgen05_mma("f8f6f4", 128, 64, "e4m3", k=64))  # an atom of sm_107a
