"""The parser: scopes, operands, line information, several kernels, and errors with their line."""

from __future__ import annotations

import pytest

from layoutgemm.emulator.ptx.parser import Parameter, SharedSymbol, SourceLine, parse
from layoutgemm.errors import PtxError

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, parameters: str = "", head: str = ""):
    return parse(f"{HEAD}{head}.visible .entry k({parameters})\n{{\n{body}\n}}\n")[0]


def operands(statement: str, declared: str = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>; .reg .b16 %rs<9>;"):
    return kernel(f"{declared}\n{statement}").instructions[0].operands


def test_operands():
    reg, number, special, symbol = operands("op %r1, -0x10, %tid.x, smem;")
    assert [o.kind for o in (reg, number, special, symbol)] == ["reg", "number", "special", "symbol"]
    vector, address = operands("ld.v4.b32 {%r0, _, %r2, %r3}, [%rd1+-16];")
    assert [p.kind for p in vector.parts] == ["reg", "sink", "reg", "reg"]
    assert address.kind == "address" and address.parts[0].text == "%rd1" and address.offset == -16
    assert operands("ld.b32 %r0, [%rd1 + 0x20];")[1].offset == 32
    assert operands("ld.b32 %r0, [%rd1-4];")[1].offset == -4
    assert operands("ld.b32 %r0, [smem+8];")[1].parts[0] == operands("ld.b32 %r0, smem;")[1]
    assert operands("ld.b32 %r0, [4096];")[1].parts[0].kind == "number"
    (pair,) = operands("op %p1|%r2;")
    assert pair.kind == "pair" and [p.text for p in pair.parts] == ["%p1", "%r2"]
    (map_,) = operands("op [%rd1, {%r1, %r2, 3}];")
    assert [p.text for p in map_.parts] == ["%rd1", "%r1", "%r2", "3"]
    assert operands("op !%p1;")[0].negated
    assert [o.kind for o in operands("op 0f3F800000, 0d3FF0000000000000, 1U, 0b101;")] == ["number"] * 4


def test_blanks_before_a_modifier_of_an_opcode():
    text = """
.version 8.7
.target sm_90a
.visible .entry k(.param .u64 a) { .reg .b64 %d; ld .param  .u64 %d, [a]; ret; }
"""
    (kernel,) = parse(text)
    assert kernel.instructions[0].opcode == "ld.param.u64" and not kernel.problems
    assert [operand.kind for operand in kernel.instructions[0].operands] == ["reg", "address"]


def test_no_blank_before_the_first_operand():
    """CUTLASS writes tcgen05.ld and tcgen05.st so; ptxas takes it of every instruction."""
    for statement, kinds in (
        ("ld.global.v2.b32{%r0, %r1},[%rd0];", ["vector", "address"]),
        ("st.global.v2.b32[%rd0],{%r0, %r1};", ["address", "vector"]),
        ("@%p0 ld.global.b32%r0,[%rd0];", ["reg", "address"]),
    ):
        assert [operand.kind for operand in operands(statement)] == kinds


def test_components_of_vector_registers_are_registers():
    """`.reg .v4 .b32 a` declares a.x to a.w. `a` alone is all of them."""
    body = """.reg .v4 .b32 all; .reg .b32 %r<2>; .reg .b64 %rd<1>;
    { .reg .v2 .b32 a; mov.b32 a.y, %r0; mov.b32 %r1, a.g; mov.b32 all.a, a.x; st.global.v2.b32 [%rd0], a; }
    st.global.v4.b32 [%rd0], all; ret;"""
    found = kernel(body)
    texts = [[o.text for o in i.operands] for i in found.instructions[:3]]
    second = texts[0][0]
    assert second.endswith(".y") and second != "a.y" and texts[1] == ["%r1", second]
    assert texts[2] == ["all.w", second[:-1] + "x"]
    two, four = (i.operands[1] for i in found.instructions[3:5])
    assert [p.text for p in two.parts] == [second[:-1] + "x", second]
    assert [(p.kind, p.text) for p in four.parts] == [("reg", f"all.{c}") for c in "xyzw"]


def test_predicates():
    first, second, third = kernel(
        ".reg .pred %p<2>; .reg .b32 %r<2>; @%p0 mov.u32 %r0, 1; @!%p1 bra L; L: ret;"
    ).instructions
    assert (first.predicate, first.negated, second.predicate, second.negated, third.predicate) == (
        "%p0",
        False,
        "%p1",
        True,
        None,
    )


def test_scopes_of_inline_assembly_have_names_of_their_own():
    body = """.reg .b32 %r<2>;
    { .reg .b32 t; .reg .pred p; mov.u32 t, 1; L: setp.eq.u32 p, t, 0; @p bra L; mov.u32 %r0, t; }
    { .reg .b32 t; .reg .pred p; mov.u32 t, 2; L: setp.eq.u32 p, t, 0; @p bra L;
      { .reg .b32 t; mov.u32 t, 3; } mov.u32 %r1, t; }
    ret;"""
    found = kernel(body)
    names = [i.operands[0].text for i in found.instructions if i.opcode == "mov.u32"]
    assert len({names[0], names[2], names[3]}) == 3 and names[1] == "%r0"
    assert found.instructions[-2].operands[1].text == names[2]
    branches = [i for i in found.instructions if i.opcode == "bra"]
    assert [found.labels[b.operands[0].text] for b in branches] == [1, 5]
    assert all(b.predicate != "p" and b.predicate in found.registers for b in branches)


def test_lines_of_the_text_and_of_the_source():
    text = (
        HEAD
        + ".visible .entry k()\n{\n.reg .b32 %r<2>;\n.loc 1 20 3\nmov.u32 %r0, 1; // here\n"
        + "/* two\nlines */ .loc 2 7 0\n"
    )
    text += 'mov.u32 %r1,\n 2;\n.loc 1 0 0\nret;\n}\n.file 1 "a.py"\n.file 2 "b.py"\n'
    first, second, third = parse(text)[0].instructions
    assert (first.line, first.source) == (8, SourceLine("a.py", 20))
    assert (second.line, second.source) == (11, SourceLine("b.py", 7))
    assert (third.line, third.source) == (14, None)  # the second one has two lines
    # The CuTe DSL gives its host function's line, without a column, to instructions that have none.
    without = text.replace(".loc 2 7 0", ".loc 1 9 0").replace(".loc 1 0 0", ".loc 1 9 0")
    assert [one.source for one in parse(without)[0].instructions] == [SourceLine("a.py", 20)] * 3
    assert str(first) == "PTX line 8 (a.py:20): mov.u32 %r0, 1"


def test_parameters_are_aligned_and_shared_symbols_found():
    names = (
        ".param .u8 a, .param .u64 b, .param .align 64 .b8 c[128], .param .u32 d, .param .u64 .ptr .global .align 16 e"
    )
    found = kernel(
        ".shared .align 16 .b8 own[40]; ret;", names, ".extern .shared .align 1024 .b8 smem[];\n.shared .b32 one;\n"
    )
    assert found.parameters == (
        Parameter("a", 0, 1, "u8"), Parameter("b", 8, 8, "u64"), Parameter("c", 64, 128, "b8"),
        Parameter("d", 192, 4, "u32"), Parameter("e", 200, 8, "u64"),
    )  # fmt: skip
    assert found.parameter_bytes == 208
    assert found.shared == (SharedSymbol("smem", 1024, 0), SharedSymbol("one", 4, 4, 4), SharedSymbol("own", 16, 40))


def test_several_kernels_and_directives():
    text = (
        HEAD
        + ".visible .entry a()\n.reqntid 128, 1, 1\n.minnctapersm 2\n{\nret;\n}\n.entry b(.param .u32 x)\n{\nexit;\n}\n"
    )
    a, b = parse(text)
    assert (a.name, b.name, a.directives) == ("a", "b", {".reqntid": (128, 1, 1), ".minnctapersm": (2,)})
    assert b.instructions[0].opcode == "exit" and a.target == "sm_90a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "no .target"),
        (HEAD, "no .entry"),
        (HEAD + ".entry k()\n{\nret;\n", "does not end"),
        (HEAD + ".entry k()\n{\n.reg .b32 %r<2>;\nmov.u32 %r0, #;\n}", "PTX line 7.*cannot read the operand"),
        (HEAD + ".entry k()\n{\n.reg b32;\n}", "PTX line 6.*cannot read the declaration"),
    ],
)
def test_errors(text, says):
    with pytest.raises(PtxError, match=says):
        parse(text)


def test_declarations_without_blanks_and_predefined_constants():
    text = ".version 8.7\n.target sm_90a\n.visible.entry k(.param.u64 p) { .reg.b32 a,b; .reg.pred q; "
    text += ".shared.align 8.b8 s[32]; mov.u32 a, WARP_SZ; { .reg.b16 a; mov.b16 a, 1; } ret; }"
    kernel = parse(text)[0]
    assert list(kernel.registers.values()) == ["b32", "b32", "pred", "b16"]
    assert [(s.name, s.align, s.size) for s in kernel.shared] == [("s", 8, 32)]
    assert kernel.instructions[0].operands[1].text == "32"


def test_the_line_of_an_inlined_function_is_its_callers():
    text = ".target sm_80\n.entry k() {\n .reg .b32 %r;\n .loc 1 5 3\n mov.b32 %r, 1;\n"
    text += " .loc 1 9 1, function_name L, inlined_at 1 5 3\n"
    text += (
        " mov.b32 %r, 2;\n .loc 2 70 1, function_name L+8, inlined_at 1 9 1\n mov.b32 %r, 3;\n .loc 2 0 0\n ret; }\n"
    )
    kernel = parse(text + '.file 1 "k.cu"\n.file 2 "library.hpp"\n')[0]
    assert [str(ins.source) for ins in kernel.instructions] == [
        "k.cu:5", "k.cu:9, called in line 5", "k.cu:9, called in line 5, in library.hpp:70", "None",
    ]  # fmt: skip


def test_the_line_of_inline_assembly_is_its_calls():
    """LLVM counts on from there, a source line for each line of assembly."""
    text = '.target sm_90\n.file 1 "a.py"\n.entry k() {\n.reg .pred q;\n.loc 1 92 16\n// begin inline asm\n{\n'
    text += ".loc 1 94 16\nWAIT:\n.loc 1 95 16\n@q bra DONE;\n.loc 1 97 16\nbra WAIT;\nDONE:\n}\n"
    kernel = parse(text + "\n// end inline asm\n.loc 1 93 16\nret;\n}\n")[0]
    assert [(ins.line, str(ins.source)) for ins in kernel.instructions] == [
        (11, "a.py:92"), (13, "a.py:92"), (19, "a.py:93"),
    ]  # fmt: skip


# Expression -> its 64 bits as ptxas 13.0 compiles them.
EXPRESSIONS = {
    "(1<<4)|3": 19, "~0": -1, "5>3?7:2": 7, "(.u64)-1>>63": 1, "-1>>63": -1, "0xffffffffffffffff>>4": (1 << 60) - 1,
    "(.s64)0xffffffffffffffff>>4": -1, "10/-3": -3, "-7 % 4": 1, "7 % -4": 7, "(3+4)*WARP_SZ": 224, "!5": 0,
    "!0+1": 2, "1&&2": 1, "0||3": 1, "2^7&3": 1, "1<2==1": 1, "-5/2": -2, "0x10U-0x20": -16, "(0-1)<1U": 0,
    "~0U>>60": 15, "7&~2": 5, "1?2:3?4:5": 2, "(-1<0U)?5:6": 6, "017+1": 16, "0b101<<1": 10, "100-3-2": 95,
    "-7/0x2U": (1 << 63) - 4, "1?-1>>1:0U": -1, "0x8000000000000000 > 1": 1, "1 << 63 >> 63": -1,
}  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_constant_expressions(text: str):
    """PTX ISA, "Integer Constant Expression Evaluation"."""
    found = parse(f".target sm_80\n.entry k() {{ .reg .b64 %d; mov.b64 %d, {text}; ret; }}")[0].instructions[0]
    assert found.operands[1].kind == "number"
    assert int(found.operands[1].text) % 2**64 == EXPRESSIONS[text] % 2**64


def test_offsets_of_addresses_are_constant_expressions():
    text = ".target sm_80\n.entry k() { .reg .b32 %r; .reg .b64 %d; .shared .b8 s[64];\n"
    text += "ld.global.b32 %r, [%d+4*8]; ld.shared.b32 %r, [s + (1<<3)*2]; ld.global.b32 %r, [%d + -4]; ret; }"
    kernel = parse(text)[0]
    assert [ins.operands[1].offset for ins in kernel.instructions[:3]] == [32, 16, -4]


@pytest.mark.parametrize("text", ["1/0", "1<<64", "1<<-1", "(1+2", "1+", "1?2", "1 2 + 3", "+" * 100 + "1", "1+*2"])
def test_expressions_without_a_value_are_refused(text: str):
    with pytest.raises(PtxError, match="PTX line 2"):
        parse(f".target sm_80\n.entry k() {{ .reg .b64 %d; mov.b64 %d, {text}; ret; }}")


def test_an_arrays_element_stands_for_its_address():
    """PTX ISA, "Arrays as Operands": mov takes it, and so do loads without brackets, as ptxas does."""
    (kernel,) = parse(
        ".target sm_80\n.global .align 8 .b32 tab[4] = {1, 2, 3, 4};\n.entry k() { .reg .b64 %d<2>; .reg .b32 %r<1>;"
        ".shared .b64 rows[4][8]; .local .v2 .f32 own[3]; mov.u64 %d0, rows[0x3]; mov.u64 %d1, own[2];"
        " ld.global.u32 %r0, tab[3]; ld.global.u32 %r0, [tab[1]]; ret; }"
    )
    rows, own, load, bracketed = [ins.operands[1] for ins in kernel.instructions[:4]]
    assert (rows.kind, rows.text, own.text) == ("symbol", "rows+24", "own+16")
    assert [(one.kind, one.parts[0].text) for one in (load, bracketed)] == [("address", "tab+12"), ("address", "tab+4")]
    with pytest.raises(PtxError, match="lost in 'lost\\[1\\]' is no array"):
        parse(".target sm_80\n.entry k() { .reg .b64 %d<2>; mov.u64 %d0, lost[1]; ret; }")
