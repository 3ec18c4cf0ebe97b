"""Device functions, local memory, module variables, printf and assert: what nvcc emits for small CUDA C++ kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.ptx.parser import parse, read_module
from layoutgemm.errors import EmulatorError, PtxError

MODULE = (Path(__file__).parents[1] / "recorded" / "device_functions.ptx").read_text()
COEFFICIENTS, TABLE = np.array([1, 2, 3, 4], np.float32), np.array([[1, 2, 3], [-4, 5, 0]])


def expected(x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """`functions` of device_functions.cu, in float64."""
    out = []
    for i, value in enumerate(x.astype(np.float64)):
        u, v = (100 + i, i) if i % 3 else (i, 100 + i)
        total = np.polyval(coefficients, value)
        out.append(total + value + (i * 3 & 7) + 2 * v + v * 0.25 + u + TABLE[i & 1, i % 3])
    return np.array(out)


def test_functions_by_value_by_reference_and_with_a_struct():
    x = np.linspace(0, 3, 40, dtype=np.float32)
    want = expected(x, COEFFICIENTS)
    done = emulate_ptx(MODULE, kernel="functions", grid=2, block=32, args=[x, 40])
    assert done.ok and not done.findings
    np.testing.assert_allclose(x, want, rtol=1e-6)


def test_variables_can_be_given_and_read_back():
    x = np.linspace(0, 3, 40, dtype=np.float32)
    other, counter = np.array([0, -1, 2, 0.5], np.float32), np.array([7], np.int32)
    want = expected(x, other)
    given = {"coefficients": other, "counter": counter}
    emulate_ptx(MODULE, kernel="functions", grid=2, block=32, args=[x, 40], variables=given)
    np.testing.assert_allclose(x, want, rtol=1e-6)
    assert counter.tolist() == [47]
    with pytest.raises(EmulatorError, match=r"no variable nothing; it has .*coefficients, counter"):
        emulate_ptx(MODULE, kernel="functions", grid=2, block=32, args=[x, 40], variables={"nothing": other})
    with pytest.raises(EmulatorError, match="coefficients has 16 bytes, and 8 were given"):
        emulate_ptx(MODULE, kernel="functions", args=[x, 40], variables={"coefficients": other[:2]})


def test_printf_in_the_order_of_blocks_and_threads(capsys: pytest.CaptureFixture[str]):
    done = emulate_ptx(MODULE, kernel="prints", grid=2, block=32, args=[34])
    want = "".join(f"{i} is {('even', 'odd')[i & 1]}: {i * 0.5:5.2f} {i << 33}%\n" for i in range(34))
    assert capsys.readouterr().out == want == done.launches[0].printed


def test_assert_reports_its_text_as_cuda_does():
    emulate_ptx(MODULE, kernel="asserts", block=4, args=[np.array([0, 1, 2, 2], np.int32)])
    with pytest.raises(EmulatorError) as caught:
        emulate_ptx(MODULE, kernel="asserts", block=4, args=[np.array([0, 1, 5, 2], np.int32)])
    assert "device_functions.cu:43: void asserts(int *): block: [0, 0, 0], thread: [2, 0, 0] " in str(caught.value)
    assert "Assertion `x[threadIdx.x] < 3` failed." in str(caught.value)


def test_a_function_that_calls_itself_with_another_depth_in_each_thread():
    x = np.arange(32, dtype=np.int32) % 9
    done = emulate_ptx(MODULE, kernel="recurses", args=[x], block=32)
    assert x.tolist() == [(0, 1, 1, 2, 3, 5, 8, 13, 21)[i % 9] for i in range(32)] and not done.findings


def test_the_exponential_of_nvcc():
    x = np.linspace(-90, 88, 32, dtype=np.float32)
    want = np.exp(x.astype(np.float64))
    emulate_ptx(MODULE, kernel="exponential", args=[x])
    np.testing.assert_allclose(x, want, rtol=3e-7, atol=1e-44)


HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
START = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>; .reg .b16 %h<4>; mov.u32 %r0, %tid.x; ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;"  # noqa: E501


def run(body: str, before: str = "", variables: dict[str, np.ndarray] | None = None) -> list[int]:
    """The values of %r1 in 32 threads after these instructions."""
    text = f"{HEAD}{before}\n.visible .entry k(.param .u64 out) {{ {START}\n{body}\nst.global.u32 [%d0], %r1; ret; }}"
    out = np.zeros(32, np.uint32)
    done = emulate_ptx(text, args=[out], variables=variables)
    assert not done.findings
    return out.tolist()


def test_parameters_and_results_in_registers():
    twice = ".func (.reg .b32 %a) twice(.reg .b32 %b, .reg .b32 %c) { .reg .pred %p; setp.gt.u32 %p, %b, 9; mov.u32 %a, 0; @%p ret; mad.lo.u32 %a, %b, 2, %c; ret; }"  # noqa: E501
    assert run("call (%r1), twice, (%r0, 5);", twice) == [2 * i + 5 if i <= 9 else 0 for i in range(32)]
    guarded = "mov.u32 %r1, 77; setp.lt.u32 %p1, %r0, 4; @!%p1 call.uni (%r1), twice, (%r0, %r0);"
    assert run(guarded, twice) == [77] * 4 + [3 * i for i in range(4, 10)] + [0] * 22


def test_a_function_called_twice_and_within_another():
    functions = """
    .func (.param .b32 r) inc(.param .b32 a) { .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, 1; st.param.b32 [r], %x; ret; }
    .func (.param .b32 r) two(.param .b32 a) { .reg .b32 %x; ld.param.u32 %x, [a];
      { .param .b32 p; .param .b32 q; st.param.b32 [p], %x; call.uni (q), inc, (p); ld.param.b32 %x, [q]; }
      { .param .b32 p; .param .b32 q; st.param.b32 [p], %x; call.uni (q), inc, (p); ld.param.b32 %x, [q]; }
      st.param.b32 [r], %x; ret; }"""  # noqa: E501
    body = "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r0; call.uni (q), two, (p); ld.param.b32 %r1, [q]; }"
    assert run(body, functions) == [i + 2 for i in range(32)]


def test_functions_that_call_each_other_through_registers():
    functions = """
    .func (.reg .b32 %r) odd(.reg .b32 %a);
    .func (.reg .b32 %r) even(.reg .b32 %a) { .reg .pred %p; .reg .b32 %x; .reg .b64 %f; mov.u32 %r, 1; setp.eq.u32 %p, %a, 0; @%p ret;
      sub.u32 %x, %a, 1; mov.u64 %f, odd; call (%r), %f, (%x); ret; }
    .func (.reg .b32 %r) odd(.reg .b32 %a) { .reg .pred %p; .reg .b32 %x; mov.u32 %r, 0; setp.eq.u32 %p, %a, 0; @!%p bra on; ret;
      on: sub.u32 %x, %a, 1; call (%r), even, (%x); ret; }"""  # noqa: E501
    assert run("setp.lt.u32 %p1, %r0, 20; mov.u32 %r1, 7; @%p1 call (%r1), even, (%r0);", functions) == [
        1 - i % 2 if i < 20 else 7 for i in range(32)
    ]


# s(a, n) = n ? own[0] + s(&own, n - 1) : *a, where own[0] = *a + 1: each call has its own variable, and reads its
# caller's by address.
CHAIN = """
    .func (.param .b32 r) s(.param .b64 a, .param .b32 n) {
      .local .align 4 .b8 own[4]; .reg .b32 %x<6>; .reg .b64 %d<4>; .reg .pred %p;
      ld.param.u64 %d0, [a]; ld.param.u32 %x0, [n]; ld.u32 %x1, [%d0]; setp.eq.u32 %p, %x0, 0; @%p bra last;
      add.u32 %x2, %x1, 1; mov.u64 %d1, own; cvta.local.u64 %d2, %d1; st.u32 [%d2], %x2; sub.u32 %x3, %x0, 1;
      { .param .b64 p; .param .b32 q; .param .b32 o; st.param.b64 [p], %d2; st.param.b32 [q], %x3;
        call.uni (o), s, (p, q); ld.param.b32 %x4, [o]; }
      ld.local.u32 %x5, [own]; add.u32 %x1, %x4, %x5;
      last: st.param.b32 [r], %x1; ret; }"""
FIRST = ".local .align 4 .b8 first[4];"
START_OF_CHAIN = """st.local.u32 [first], %r0; mov.u64 %d2, first; cvta.local.u64 %d2, %d2;
    { .param .b64 p; .param .b32 q; .param .b32 o; st.param.b64 [p], %d2; st.param.b32 [q], DEPTH;
      call.uni (o), s, (p, q); ld.param.b32 %r1, [o]; }"""


def test_each_call_of_a_recursive_function_has_variables_of_its_own():
    want = [sum(i + k for k in range(1, i % 7 + 1)) + i + i % 7 for i in range(32)]
    assert run(FIRST + "rem.u32 %r2, %r0, 7;" + START_OF_CHAIN.replace("DEPTH", "%r2"), CHAIN) == want
    unwritten = CHAIN.replace("st.u32 [%d2], %x2;", "setp.ne.u32 %p, %x0, 2; @%p st.u32 [%d2], %x2;")
    # A frame holds nothing of the call that had it before.
    with pytest.raises(AssertionError, match="reads local offset 0x74, never written"):
        run(FIRST + START_OF_CHAIN.replace("DEPTH", "1") + START_OF_CHAIN.replace("DEPTH", "2"), unwritten)


def test_recursion_without_an_end_is_refused_by_its_depth():
    with pytest.raises(EmulatorError, match=r"s calls itself \d+ times deep: with frames of \d+ bytes"):
        run(FIRST + START_OF_CHAIN.replace("DEPTH", "-1"), CHAIN.replace("own[4]", "own[16384]"))


def test_printf_in_a_recursive_function(capsys: pytest.CaptureFixture[str]):
    """Its arguments are variables in the function's frame."""
    functions = """.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 b);
    .global .align 1 .b8 text[4] = {37, 100, 32, 0};
    .func down(.param .b32 n) { .local .align 8 .b8 buffer[8]; .reg .b32 %x<3>; .reg .b64 %d<3>; .reg .pred %p;
      ld.param.u32 %x0, [n]; mov.u64 %d0, buffer; cvta.local.u64 %d1, %d0; st.local.u32 [%d0], %x0;
      { .param .b64 f; .param .b64 b; .param .b32 o; mov.u64 %d2, text; cvta.global.u64 %d2, %d2; st.param.b64 [f], %d2;
        st.param.b64 [b], %d1; call.uni (o), vprintf, (f, b); ld.param.b32 %x1, [o]; }
      setp.eq.u32 %p, %x0, 0; @%p ret; sub.u32 %x2, %x0, 1;
      { .param .b32 p; st.param.b32 [p], %x2; call.uni down, (p); } ret; }"""
    body = "mov.u32 %r1, 0; setp.eq.u32 %p1, %r0, 3; { .param .b32 p; st.param.b32 [p], %r0; @%p1 call.uni down, (p); }"
    run(body, functions)
    assert capsys.readouterr().out == "3 2 1 0 "


def test_local_memory_is_each_threads_own():
    body = """.local .align 8 .b8 own[64]; .reg .b64 %sp, %g;
    mov.u64 %sp, own; cvta.local.u64 %g, %sp; and.b32 %r2, %r0, 7; mul.wide.u32 %d2, %r2, 8; add.u64 %d3, %g, %d2;
    st.u32 [%d3], %r0; add.u64 %d4, %sp, %d2; ld.local.u32 %r1, [%d4]; isspacep.local %p1, %d3;
    isspacep.global %p2, %d3;
    @%p1 add.u32 %r1, %r1, 100; @%p2 add.u32 %r1, %r1, 1000; cvta.to.local.u64 %d5, %d3; sub.u64 %d5, %d5, %d4;
    cvt.u32.u64 %r3, %d5; add.u32 %r1, %r1, %r3;"""
    assert run(body) == [i + 100 for i in range(32)]
    with pytest.raises(EmulatorError, match="local offset 0x40 and 4 bytes, of 0x40 bytes of a thread"):
        run(".local .align 8 .b8 own[64]; .reg .b64 %sp; mov.u64 %sp, own; ld.local.u32 %r1, [%sp+64];")


def test_a_read_of_local_memory_that_nothing_wrote_matters_where_the_result_does():
    with pytest.raises(AssertionError, match="reads local offset 0x0, never written"):
        run(".local .align 4 .b8 own[8]; .reg .b64 %sp; mov.u64 %sp, own; ld.local.u32 %r1, [%sp];")
    body = ".local .align 4 .b8 own[8]; .reg .b64 %sp; mov.u64 %sp, own; ld.local.u32 %r1, [%sp]; and.b32 %r1, %r1, 0;"
    assert run(body) == [0] * 32


def test_initialisers():
    variables = """
    .global .align 4 .u32 one = 7; .const .f32 half = 0.5; .global .f32 bits = 0f40490FDB;
    .global .align 2 .b16 rows[2][3] = {{1, 2}, {-3, 0x10, 017}};
    .global .align 8 .u64 links[2] = {generic(one), rows+4};
    .visible .global .align 1 .b8 parts[8] = {0xFF(one), 0xFF00(one), 0, 0, 5}; .global .v2 .u32 pair = {3, 4};"""
    body = "mov.u64 %d2, links; ld.global.u64 %d3, [%d2]; ld.u32 %r1, [%d3]; ld.global.u64 %d4, [links+8]; ld.u16 %h0, [%d4]; cvt.u32.u16 %r2, %h0; add.u32 %r1, %r1, %r2;"  # noqa: E501
    assert run(body, variables)[0] == 7 + 0
    assert run("ld.global.s16 %r1, [rows+6];", variables)[0] == 0xFFFFFFFD
    assert run("ld.global.u16 %r1, [rows+10];", variables)[0] == 15
    assert run("ld.const.b32 %r1, [half];", variables)[0] == 0x3F000000
    assert run("ld.global.b32 %r1, [bits];", variables)[0] == 0x40490FDB
    assert run("ld.global.u32 %r1, [pair+4];", variables)[0] == 4
    low = "mov.u64 %d2, one; cvt.u32.u64 %r2, %d2; and.b32 %r2, %r2, 65535; ld.global.u8 %r3, [parts]; ld.global.u8 %r4, [parts+1]; mad.lo.u32 %r3, %r4, 256, %r3; sub.u32 %r1, %r2, %r3;"  # noqa: E501
    assert run(low, variables)[0] == 0
    with pytest.raises(EmulatorError, match="external: pass its bytes as variables"):
        run("ld.global.u32 %r1, [far];", ".extern .global .align 4 .u32 far;")
    far = np.array([9], np.uint32)
    assert run("ld.global.u32 %r1, [far];", ".extern .global .align 4 .u32 far;", {"far": far}) == [9] * 32
    assert run("mov.u32 %r1, 3;", ".extern .global .u32 far; .global .u64 a = nowhere;") == [3] * 32
    with pytest.raises(PtxError, match=r"line 4: \.global a: its initialiser names nowhere"):
        run("ld.global.u64 %d2, [a];", ".global .u64 a = nowhere;")


def heap(body: str, block: int = 64) -> np.ndarray:
    """A thread's %r1 after `body`, with MALLOC and FREE of %d2."""
    malloc = (
        "{ .param .b64 n; .param .b64 r; st.param.b64 [n], %d3; call.uni (r), malloc, (n); ld.param.b64 %d2, [r]; }"
    )
    free = "{ .param .b64 n; st.param.b64 [n], %d2; call.uni free, (n); }"
    text = f"""{HEAD}
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 n);
.visible .entry kernel(.param .u64 out) {{
  .reg .b32 %r<6>; .reg .b64 %d<6>; .reg .pred %p<2>; .shared .b64 place[64];
  mov.u32 %r0, %tid.x; mov.u64 %d3, 8; mov.u32 %r1, 0;
  {body.replace("MALLOC", malloc).replace("FREE", free)}
  ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0], %r1; ret; }}
"""
    out = np.full(block, 99, np.uint32)
    done = emulate_ptx(text, block=block, args=[out])
    assert done.ok, done.report()
    return out


def test_threads_allocate_and_free_memory():
    """Each thread's own block, read by its neighbour in the warp, then freed; a heap that is full gives 0."""
    own = "MALLOC st.b32 [%d2], %r0; add.u64 %d4, %d2, 4; ld.b32 %r1, [%d2];"
    assert heap(own + "FREE").tolist() == list(range(64))
    swap = """mov.u64 %d4, place; cvt.u32.u64 %r2, %d4; xor.b32 %r3, %r0, 1; mad.lo.u32 %r3, %r3, 8, %r2;
    mad.lo.u32 %r2, %r0, 8, %r2; st.shared.b64 [%r2], %d2; bar.sync 0; ld.shared.b64 %d4, [%r3];
    ld.b32 %r1, [%d4]; bar.sync 0;"""
    assert heap(own + swap + "FREE").tolist() == [n ^ 1 for n in range(64)]
    full = "mov.u64 %d3, 4194304; MALLOC setp.ne.u64 %p0, %d2, 0; selp.b32 %r1, 1, 0, %p0;"
    assert heap(full).tolist() == [1, 1] + [0] * 62  # of 8 MiB
    assert heap("mov.u64 %d2, 0; FREE").tolist() == [0] * 64


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("MALLOC FREE ld.b32 %r1, [%d2];", "lies in memory that was freed"),
        ("MALLOC FREE FREE", "which was freed before"),
        ("MALLOC add.u64 %d2, %d2, 4; FREE", "which malloc did not return"),
        ("MALLOC ld.b32 %r1, [%d2+8];", "leave the block of 8 bytes that malloc gave"),
        ("mov.u64 %d2, 0x5a0000000000; ld.b32 %r1, [%d2];", "lies in no block that malloc gave"),
    ],
)
def test_misuse_of_allocated_memory(body: str, says: str):
    with pytest.raises(EmulatorError, match=says):
        heap(body, block=1)


STACK = f"""{HEAD}
.visible .entry stack(.param .u64 out) {{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
  mov.u32 %r0, %tid.x; add.u32 %r1, %r0, 1; mul.wide.u32 %d1, %r1, 4;
  stacksave.u64 %d5; mov.u32 %r4, 0;
  LOOP: stackrestore.u64 %d5; alloca.u64 %d2, %d1, 16; cvta.local.u64 %d3, %d2; mov.u32 %r2, 0;
  FILL: mul.wide.u32 %d4, %r2, 4; add.u64 %d4, %d3, %d4; st.u32 [%d4], %r2; add.u32 %r2, %r2, 1;
  setp.lt.u32 %p, %r2, %r1; @%p bra FILL;
  add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, TURNS; @%p bra LOOP;
  alloca.u64 %d6, 4; st.local.u32 [%d6], 99; ld.u32 %r3, [%d4];
  ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1; st.global.u32 [%d0], %r3; ret; }}
"""


def test_memory_of_a_size_that_is_known_at_run_time():
    """Each thread fills an array of its own length, again and again; the last word is its number."""
    out = np.zeros(64, np.uint32)
    assert emulate_ptx(STACK.replace("TURNS", "3"), block=64, args=[out]).ok
    assert out.tolist() == list(range(64))
    large = STACK.replace("TURNS", "3").replace("%d1, %r1, 4;", "%d1, %r1, 0x10000;", 1)
    with pytest.raises(EmulatorError, match=r"alloca of 2097152 bytes: a thread has 524288 bytes"):
        emulate_ptx(large, block=64, args=[out])
    with pytest.raises(EmulatorError, match=r"stackrestore of 0x0, which stacksave did not give"):
        emulate_ptx(STACK.replace("TURNS", "3").replace("stacksave.u64 %d5;", "mov.u64 %d5, 0;"), block=64, args=[out])
    fresh = STACK.replace("TURNS", "1").replace("st.u32 [%d4], %r2;", "")
    assert emulate_ptx(fresh, block=64, args=[out]).findings[0].kind == "uninitialised"


def test_everything_that_is_unsupported_is_listed_at_once():
    text = f"""{HEAD}
.visible .entry bad(.param .u64 out) {{
  .reg .b32 %r<4>; .reg .b64 %d<4>; .param .b64 p; .param .b64 q;
  frobnicate.u32 %r0, %r1;
  add.sat.u32 %r0, %r1, %r2;
  alloca.u64 %d0, %d1, 3;
  call.uni (q), __cudaCDP2LaunchDeviceV2, (p, q);
  add.sat.u32 %r0, %r1, %r2;
  mov.u32 %r0, ?;
  ret; }}
.visible .entry good(.param .u64 out) {{ ret; }}
"""
    with pytest.raises(PtxError) as caught:
        emulate_ptx(text, kernel="bad", args=[np.zeros(4)])
    said = str(caught.value)
    assert "kernel bad, 5 refusals" in said and "PTX line 8, 11: add.sat.u32" in said
    assert all(word in said for word in ("frobnicate", "not a power of two", "cannot read", "dynamic parallelism"))
    assert emulate_ptx(text, kernel="good", args=[np.zeros(4)]).ok
    with pytest.raises(PtxError, match="cannot read"):
        parse(text)
    assert [bool(kernel.problems) for kernel in read_module(text)] == [True, False]
    good, every = read_module(text)[1].name, [kernel.name for kernel in read_module(text, "absent")]
    assert [kernel.name for kernel in read_module(text, good)] == [good] != every


POINTERS = """
.version 8.7
.target sm_90a
.func (.param .b32 r) plus(.param .b32 a, .param .b32 b)
{ .reg .b32 %r<3>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; add.u32 %r2, %r0, %r1; st.param.b32 [r], %r2; ret; }
.func (.param .b32 r) times(.param .b32 a, .param .b32 b)
{ .reg .b32 %r<3>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; mul.lo.u32 %r2, %r0, %r1; st.param.b32 [r], %r2; ret; }
.func (.param .b32 r) unnamed(.param .b32 a, .param .b32 b) { .reg .b32 %r; ld.param.b32 %r, [a]; trap; ret; }
.global .align 8 .u64 table[2] = {plus, generic(times)};
.visible .entry k(.param .u64 out)
{ .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .pred %p;
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; mul.wide.u32 %d1, %r1, 8; mov.u64 %d2, table;
  add.u64 %d1, %d1, %d2; ld.global.u64 %d3, [%d1]; setp.lt.u32 %p, %r0, 30; mov.b32 %r3, 99;
  { .param .b32 x; .param .b32 y; .param .b32 z; st.param.b32 [x], %r0; st.param.b32 [y], 3; st.param.b32 [z], 99;
    kind: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
    @%p call (z), %d3, (x, y), kind; ld.param.b32 %r3, [z]; }
  mul.wide.u32 %d4, %r0, 4; add.u64 %d0, %d0, %d4; st.global.b32 [%d0], %r3; ret; }
"""


def test_calls_through_registers():
    out = np.zeros(32, np.uint32)
    assert emulate_ptx(POINTERS, block=32, args=[out]).ok
    assert out.tolist() == [3 * i if i % 2 else i + 3 for i in range(30)] + [99, 99]
    with pytest.raises(EmulatorError, match="trap was executed"):
        emulate_ptx(POINTERS.replace("ld.global.u64 %d3, [%d1]", "mov.u64 %d3, 5"), block=32, args=[out])


def test_textures_of_a_module_do_not_matter_to_other_kernels():
    """A `.texref` without a use is passed over; an instruction that takes one is refused by name."""
    text = ".version 8.0\n.target sm_80\n.global .texref image;\n.global .samplerref how;\n.global .surfref target;\n"
    text += ".visible .entry plain() { ret; }\n.visible .entry samples() { .reg .f32 %f<6>;\n"
    text += "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [image, {%f4, %f5}]; ret; }"
    assert emulate_ptx(text, kernel="plain", block=32).ok
    with pytest.raises(PtxError, match=r"a \.texref or \.surfref is not emulated"):
        emulate_ptx(text, kernel="samples", block=32)
