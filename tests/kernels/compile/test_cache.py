"""The cache of compiled kernels, and what is said where tools are absent. Needs neither the DSL nor a GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import TeachingConfig, TeachingPlan
from layoutgemm.kernels.compile import cache as object_cache
from layoutgemm.kernels.compile import compiler as compiling
from layoutgemm.kernels.compile import sass
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.config import Sm90Config
from layoutgemm.torch_op import tuned_store as tuned

FACTS = {"plan": {"tile": [64, 64, 64]}, "dsl": "1.2.3"}
PARTS = {"kernel.ptx": b"ptx" * 1000, "kernel.o": bytes(range(256)) * 50}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(object_cache, "_SAID", set())
    return tmp_path / "cache" / "layoutgemm-cache"


def test_written_files_are_read() -> None:
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    path = object_cache.write(FACTS, PARTS)
    assert path is not None and path.name == f"{object_cache.key_of(FACTS)}.zip"
    assert object_cache.read(FACTS, tuple(PARTS)) == PARTS
    assert object_cache.read({**FACTS, "dsl": "1.2.4"}, tuple(PARTS)) is None
    assert object_cache.read(FACTS, ("kernel.cubin",)) is None


def test_every_damaged_byte_is_noticed_or_harmless() -> None:
    """Flip one byte at a time: the parts come back whole, or not at all."""
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    whole = path.read_bytes()
    lost = 0
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x55]) + whole[index + 1 :])
        found = object_cache.read(FACTS, tuple(PARTS))
        assert found in (None, PARTS), index
        lost += found is None
    assert lost > len(whole) // 2
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        assert object_cache.read(FACTS, tuple(PARTS)) is None


def test_a_writer_leaves_one_file_and_failures_leave_none(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    for _ in range(3):
        object_cache.write(FACTS, PARTS)
    assert len(list((own_cache / "kernels").iterdir())) == 1

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    assert object_cache.write({"other": 1}, PARTS) is None
    assert len(list((own_cache / "kernels").iterdir())) == 1


@pytest.mark.parametrize(
    "platform, environment, want",
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/layoutgemm"),
        ("linux", {}, "{home}/.cache/layoutgemm"),
        ("darwin", {}, "{home}/Library/Caches/layoutgemm"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/layoutgemm/Cache"),
        ("linux", {"LAYOUTGEMM_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine/layoutgemm-cache"),
        ("linux", {"LAYOUTGEMM_CACHE_DIR": "~/x"}, "{home}/x/layoutgemm-cache"),
        ("linux", {"LAYOUTGEMM_CACHE_DIR": "  ", "XDG_CACHE_HOME": "/x"}, None),
        ("linux", {"LAYOUTGEMM_CACHE_DIR": "~nosuchuser/x", "XDG_CACHE_HOME": "/x"}, None),
    ],
)
def test_where_the_cache_lies(
    platform: str, environment: dict[str, str], want: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAYOUTGEMM_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert object_cache.cache_dir() == (None if want is None else Path(want.format(home=Path.home())))


def test_a_kernel_is_named_by_all_that_decides_its_code() -> None:
    plan = TeachingPlan.derive(64, 64, 64)
    facts = compiling.kernel_facts(plan)
    assert compiling.kernel_facts(TeachingPlan.derive(1000, 24, 4096)) == facts
    descriptor = dataclasses.replace(plan.a.descriptor, k_steps=(0, 32, 64, 112))
    different = [
        TeachingPlan.derive(64, 64, 64, a="bf16:col"),
        TeachingPlan.derive(64, 64, 64, b="bf16:col"),
        TeachingPlan.derive(64, 64, 64, a="f16"),
        TeachingPlan.derive(64, 64, 64, c="bf16"),
        TeachingPlan.derive(64, 64, 64, config=TeachingConfig(stages=2)),
        TeachingPlan.derive(64, 64, 64, config=TeachingConfig(tile_n=128)),
        TeachingPlan.derive(64, 64, 64, config=TeachingConfig(tile_k=32)),
        TeachingPlan.derive(64, 64, 64, config=TeachingConfig(swizzle_b="64B")),
        dataclasses.replace(plan, a=dataclasses.replace(plan.a, descriptor=descriptor)),
        dataclasses.replace(plan, barrier=dataclasses.replace(plan.barrier, arrivals=2)),
    ]
    keys = {object_cache.key_of(compiling.kernel_facts(other)) for other in (plan, *different)}
    assert len(keys) == len(different) + 1


def test_source_lines_in_the_code_make_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compiled for a profiler, or in an emulated session, are not found by others."""
    plan = TeachingPlan.derive(64, 64, 64)
    keys = []
    for value in ("", "0", "1", "True"):
        monkeypatch.setenv("CUTE_DSL_LINEINFO", value)
        keys.append(object_cache.key_of(compiling.kernel_facts(plan)))
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_invalid_names_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot be part of a kernel's name"):
        object_cache.facts_of({"epilogue": lambda x: x})


def test_without_the_dsl_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install 'layoutgemm\[dsl\]'"):
        TeachingPlan.derive(64, 64, 64).compile()


def test_without_the_tools_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    sass.find_tool.cache_clear()
    monkeypatch.setattr(sass.importlib.util, "find_spec", lambda name: None)
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, "")
    with pytest.raises(PlanError, match="nvidia-cuda-nvdisasm"):
        sass.find_tool("nvdisasm")
    with pytest.raises(PlanError, match="CUDA_HOME"):
        sass.resources(b"")
    sass.find_tool.cache_clear()


def test_tool_output_is_cached_by_cubin_options_and_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    tool, asked = tmp_path / "cuobjdump", []
    tool.write_text("a tool")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(Path(command[-1]).read_bytes())
        return subprocess.CompletedProcess(command, 0, f"REG:{len(asked)} STACK:0 SHARED:0 LOCAL:0", "")

    monkeypatch.setattr(sass, "find_tool", lambda name: tool)
    monkeypatch.setattr(sass.subprocess, "run", run)
    assert [sass.resources(cubin).registers for cubin in (b"one", b"one", b"two", b"one")] == [1, 1, 2, 1]
    assert sass._run("cuobjdump", ["-sass"], b"one").startswith("REG:3")
    tool.write_text("a newer tool")
    assert sass.resources(b"one").registers == 4 and asked == [b"one", b"two", b"one", b"one"]
    assert len(list((own_cache / "code").iterdir())) == 4 and not (own_cache / "kernels").exists()
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, "")
    assert [sass.resources(b"one").registers for _ in range(2)] == [5, 6]


LISTING = """
.text.kernel:
        /*0420*/                   SYNCS.EXCH.64 URZ, [UR8+0xc000], UR4 ;
.L_x_7:
        /*0940*/              @!P0 NANOSLEEP.SYNCS 0x989680 ;
        /*0980*/                   WARPGROUP.ARRIVE ;
        /*0a60*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR12].tnspB, R24, UP0 ;
        /*0af0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR12].tnspB, R24, gsb0 ;
        /*0b50*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0c10*/                   HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;
        /*0c20*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0d10*/               @P0 BRA.U.ANY `(.L_x_7) ;
        /*0d20*/                   STL.64 [R1], R4 ;
        /*0d30*/                   EXIT ;
"""


def test_a_listing_is_read_whole() -> None:
    code = sass.Sass(LISTING)
    assert len(code.instructions) == 11
    assert code.instructions[1].predicate == "@!P0" and code.instructions[3].opcode == "HGMMA.64x64x16.F32.BF16"
    assert code.counts == {
        "HGMMA": 3, "WARPGROUP": 3, "SYNCS": 1, "NANOSLEEP": 1, "BRA": 1, "STL": 1, "EXIT": 1,
    }  # fmt: skip
    assert [str(i) for i in code.local_memory] == ["0x0d20: STL.64 [R1], R4"]
    # the third HGMMA writes nowhere: an empty commit group, no wgmma
    assert code.wgmma_runs == (2,)
    assert code.serialised_wgmma(2) is None
    assert code.serialised_wgmma(4) == "runs of 2 wgmmas without a wait or fence inside; a k tile has 4"


# ------------------------------------------------------------------------------------------------- who else may be
# there


def modes(own_cache: Path) -> tuple[int, int]:
    folder = own_cache / "kernels"
    (file,) = folder.glob("*.zip")
    return folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777


posix = pytest.mark.skipif(
    not hasattr(os, "getuid"), reason="owners and modes of files are POSIX's: run it on Linux or macOS"
)


@posix
def test_the_folder_is_made_for_the_user_alone_and_keeps_its_mode(own_cache: Path) -> None:
    before = os.umask(0)
    try:
        object_cache.write(FACTS, PARTS)
        assert modes(own_cache) == (0o700, 0o600)
        (own_cache / "kernels").chmod(0o777)
        assert "0777" in object_cache.distrust(own_cache / "kernels")
        assert object_cache.read(FACTS, tuple(PARTS)) is None and object_cache.write(FACTS, PARTS) is None
        (own_cache / "kernels").chmod(0o755)
        assert object_cache.read(FACTS, tuple(PARTS)) == PARTS and object_cache.write(FACTS, PARTS) is not None
        assert modes(own_cache) == (0o755, 0o600)
    finally:
        os.umask(before)


@posix
@pytest.mark.parametrize("names", [("",), ("kernels",), ("", "kernels", "tuned", "code")])
def test_the_group_loses_its_right_to_write_where_the_user_owns_the_folder(
    names: tuple[str, ...], own_cache: Path
) -> None:
    """`mkdir` under umask 002 makes folders of mode 0775: they are used, and no warning is due."""
    for name in names:
        (own_cache / name).mkdir(parents=True, exist_ok=True)
        (own_cache / name).chmod(0o2775)
    own_cache.parent.chmod(0o775)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert object_cache.read(FACTS, tuple(PARTS)) is None
        assert None not in use_everything()
        assert object_cache.read(FACTS, tuple(PARTS)) == PARTS
    assert {(own_cache / name).stat().st_mode & 0o7777 for name in names} == {0o2755}
    assert own_cache.parent.stat().st_mode & 0o7777 == 0o775  # is not the cache's own


@posix
def test_files_of_the_group_in_a_repaired_folder_are_not_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    path.parent.chmod(0o775)
    real = os.fstat

    def of_another(handle: int) -> os.stat_result:
        found = real(handle)
        owner = found.st_uid + (1 if found.st_ino == path.stat().st_ino else 0)
        return os.stat_result((*found[:4], owner, *found[5:]))

    monkeypatch.setattr(os, "fstat", of_another)
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    monkeypatch.undo()
    assert path.parent.stat().st_mode & 0o777 == 0o755


@posix
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o773, 0o1777])
def test_a_refused_folder_is_named_once_with_its_mode_and_the_way_out(mode: int, own_cache: Path) -> None:
    (own_cache / "kernels").mkdir(parents=True)
    (own_cache / "kernels").chmod(mode)
    with pytest.warns(RuntimeWarning) as said:
        for _ in range(2):
            assert object_cache.read(FACTS, tuple(PARTS)) is None and object_cache.write(FACTS, PARTS) is None
    (text,) = {str(each.message) for each in said}
    assert len(said) == 1 and said[0].filename == __file__ and f"its mode is {mode:04o}" in text
    assert f"chmod 700 {own_cache / 'kernels'}, or set LAYOUTGEMM_CACHE_DIR to another folder" in text
    assert (own_cache / "kernels").stat().st_mode & 0o7777 == mode


@posix
@pytest.mark.parametrize("why", ["belongs to user", "is a symbolic link", "cannot be written"])
def test_any_folder_that_is_refused_is_named_once(
    why: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert object_cache.write(FACTS, PARTS) is not None
    if why == "belongs to user":
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    elif why == "is a symbolic link":
        (own_cache / "kernels").rename(tmp_path / "elsewhere")
        (own_cache / "kernels").symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(object_cache, "_make", lambda folder: os.mkdir("/proc/nowhere") or True)
    with pytest.warns(RuntimeWarning, match=why) as said:
        for _ in range(2):
            assert object_cache.write(FACTS, PARTS) is None
    assert len(said) == 1 and str(own_cache) in str(said[0].message)


def test_a_cache_that_is_switched_off_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert use_everything() == [None] * 3


def state_of(folder: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Mode and content of all that lies under a folder; links are not followed."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = path.lstat().st_mode, content
    return found


def use_everything() -> list[Path | None]:
    """The results of all writers of the cache."""
    choice = Sm90Choice(Sm90Config((64, 64), consumers=1))
    return [
        object_cache.write(FACTS, PARTS), object_cache.write(FACTS, PARTS, "code"), tuned.store("GPU", "a", choice, {}),
    ]  # fmt: skip


@posix
def test_folders_of_others_are_left_as_they_are(own_cache: Path) -> None:
    """The variable's folder has folders with the cache's names and old files."""
    root = own_cache.parent
    for name in ("", "kernels", "tuned", "code", "layoutgemm"):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(0o755)
        for file in ("mine.tmp", ".mine.tmp", ".layoutgemm-abcdefgh.tmp", "a.lock"):
            (root / name / file).write_text("mine")
            os.utime(root / name / file, (1, 1))
    before = state_of(root)
    assert None not in use_everything()
    assert {path: found for path, found in state_of(root).items() if "layoutgemm-cache" not in path} == before


@posix
def test_only_names_of_its_own_are_removed(own_cache: Path) -> None:
    assert None not in use_everything()
    others = ["x.tmp", ".x.tmp", ".layoutgemm-x.tmp", ".layoutgemm-abcdefgh.tmpx", ".layoutgemm-ABCDEFGH.tmp"]
    for name in ("kernels", "tuned", "code"):
        for file in (*others, ".layoutgemm-abcdefgh.tmp"):
            (own_cache / name / file).write_text("mine")
            os.utime(own_cache / name / file, (1, 1))
        (own_cache / name / ".layoutgemm-bcdefghi.tmp").mkdir()
        (own_cache / name / ".layoutgemm-cdefghij.tmp").symlink_to(own_cache)
        os.utime(own_cache / name / ".layoutgemm-cdefghij.tmp", (1, 1), follow_symlinks=False)
    assert None not in use_everything()
    for name in ("kernels", "tuned", "code"):
        left = {path.name for path in (own_cache / name).iterdir()}
        assert left >= {*others, ".layoutgemm-bcdefghi.tmp", ".layoutgemm-cdefghij.tmp"}
        assert ".layoutgemm-abcdefgh.tmp" not in left


@posix
@pytest.mark.parametrize("link", ["", "kernels", "tuned", "code", "file", "lock"])
def test_no_link_is_followed(link: str, own_cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    written = [path for path in use_everything() if path is not None]
    if link in ("file", "lock"):
        elsewhere.mkdir()
        for path in written:
            target = path if link == "file" else path.with_name(f"{path.name}.lock")
            if target.exists():
                target.rename(elsewhere / f"{path.parent.name}-{target.name}")
                target.symlink_to(elsewhere / f"{path.parent.name}-{target.name}")
    else:
        (own_cache / link).rename(elsewhere)
        (own_cache / link).symlink_to(elsewhere)
    elsewhere.chmod(0o755)
    before = state_of(elsewhere)
    if link != "lock":
        refused = [path for path in written if link in ("", "file") or path.parent.name == link]
        assert refused and all(object_cache.content(path) is None for path in refused)
        assert all("is a symbolic link" in object_cache.distrust(path) for path in refused)
    use_everything()
    assert state_of(elsewhere) == before


@posix
def test_the_folder_that_the_user_names_may_be_a_link(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, str(tmp_path / "link"))
    assert object_cache.write(FACTS, PARTS) is not None and object_cache.read(FACTS, tuple(PARTS)) == PARTS


@posix
def test_files_writable_by_others_are_not_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    path.chmod(0o666)
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    path.chmod(0o600)
    assert object_cache.read(FACTS, tuple(PARTS)) == PARTS
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert object_cache.read(FACTS, tuple(PARTS)) is None and "belongs to user" in object_cache.distrust(path.parent)
    assert object_cache.write({"other": 1}, PARTS) is None and len(list(path.parent.iterdir())) == 1


def test_a_file_with_our_facts_and_anothers_parts(own_cache: Path) -> None:
    """Made by hand, archive checksums and all: the digests differ."""
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["kernel.o"] = bytes(reversed(content["kernel.o"]))
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    assert object_cache.read(FACTS, ("kernel.ptx",)) == {"kernel.ptx": PARTS["kernel.ptx"]}
    for name in ("digests.json", "facts.json"):
        with zipfile.ZipFile(path, "w") as archive:
            for other in content.keys() - {name}:
                archive.writestr(other, content[other])
        assert object_cache.read(FACTS, tuple(PARTS)) is None


DEEP = b"[" * 100_000 + b"]" * 100_000
STRANGE = [b"", b"null", b"[]", b"3", b'"x"', b"{}", b"[1, 2]", b'{"kernel.o": 3}', b"\xff\xfe", b"1" * 5000, DEEP]


@pytest.mark.parametrize("name", ["facts.json", "digests.json"])
@pytest.mark.parametrize("content", STRANGE, ids=lambda content: repr(content[:8]))
def test_a_sound_archive_with_strange_json(name: str, content: bytes) -> None:
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for each, part in {**parts, name: content}.items():
            archive.writestr(each, part)
    assert object_cache.read(FACTS, tuple(PARTS)) is None


def test_every_bit_of_the_archives_records_is_damage_or_harmless() -> None:
    """Local headers and the directory hold flags, methods, sizes and offsets that zipfile checks."""
    small = {"a": b"x"}
    path = object_cache.write({}, small)
    assert path is not None
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert object_cache.read({}, ("a",)) in (None, small), bit


@posix
def test_other_objects_than_files_count_as_absent(own_cache: Path) -> None:
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert object_cache.read(FACTS, tuple(PARTS)) is None  # and does not wait for a writer
    path.unlink()
    path.mkdir(mode=0o700)
    assert object_cache.read(FACTS, tuple(PARTS)) is None and object_cache.write(FACTS, PARTS) is None
    path.rmdir()
    with open(path, "wb") as stream:
        stream.truncate(1 << 40)  # a hole of 1 TiB
    path.chmod(0o600)
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    assert object_cache.write(FACTS, PARTS) is not None and object_cache.read(FACTS, tuple(PARTS)) == PARTS


@pytest.mark.parametrize("folder", ["x" * 300, "a/" + "y" * 256 + "/b", "/".join(["z" * 200] * 30), "~nosuchuser"])
def test_a_folder_that_cannot_be(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, folder if folder[0] == "~" else str(tmp_path / folder))
    assert not object_cache.kept(FACTS) and object_cache.read(FACTS, tuple(PARTS)) is None
    assert use_everything() == [None] * 3
    assert tuned.lookup("GPU", (1, 1, 1, 1), ("bf16",) * 3, ("row",) * 3) is None


@pytest.mark.parametrize("under", ["file", "file/kernels", "dangling"])
def test_a_folder_that_is_something_else(under: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv(object_cache.CACHE_DIR_VARIABLE, str(tmp_path / under))
    before = state_of(tmp_path)
    assert use_everything() == [None] * 3 and not object_cache.kept(FACTS)
    assert state_of(tmp_path) == before


def test_nothing_is_unpickled(own_cache: Path) -> None:
    path = object_cache.write(FACTS, PARTS)
    assert path is not None
    marker = own_cache / "executed"
    bomb = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    path.write_bytes(bomb)
    assert object_cache.read(FACTS, tuple(PARTS)) is None
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("facts.json", "digests.json", *PARTS):
            archive.writestr(name, bomb)
    assert object_cache.read(FACTS, tuple(PARTS)) is None and not marker.exists()


_WRITER = """
import os, sys
from layoutgemm.kernels.compile import cache as object_cache
facts = {facts!r}
parts = {{"kernel.ptx": b"ptx" * 1000, "kernel.o": bytes(range(256)) * 50}}
mode = sys.argv[1]
if mode == "killed":
    def half(stream):
        stream.write(b"PK" * 100)
        stream.flush()
        os.kill(os.getpid(), 9)
    object_cache.place(object_cache._path(facts), half)
for _ in range(40):
    if mode == "write":
        assert object_cache.write(facts, parts) is not None
    else:
        assert object_cache.read(facts, tuple(parts)) in (None, parts)
"""


def writer(mode: str) -> subprocess.Popen[bytes]:
    program = _WRITER.format(facts=FACTS)
    return subprocess.Popen([sys.executable, "-c", program, mode], cwd=Path(__file__).resolve().parents[3])


@posix
def test_a_killed_writer_leaves_nothing_that_is_read(own_cache: Path) -> None:
    assert writer("killed").wait(60) == -9
    (left,) = (own_cache / "kernels").iterdir()
    assert left.suffix == ".tmp" and object_cache.read(FACTS, tuple(PARTS)) is None
    assert object_cache.write(FACTS, PARTS) is not None and left.exists()  # it could still be at work
    os.utime(left, (1, 1))
    object_cache.write(FACTS, PARTS)
    assert not left.exists() and object_cache.read(FACTS, tuple(PARTS)) == PARTS


def test_processes_at_once(own_cache: Path) -> None:
    running = [writer(mode) for mode in ("write", "read", "write")]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert len(list((own_cache / "kernels").iterdir())) == 1


def test_changed_data_give_another_hash(tmp_path: Path) -> None:
    for name in ("code.py", "facts.json", "rows.txt", "code.pyc"):
        (tmp_path / name).write_text("1")
    hashes = [object_cache.hash_of(tmp_path)]
    for name in ("code.pyc", "facts.json", "rows.txt", "code.py"):
        (tmp_path / name).write_text("2")
        hashes.append(object_cache.hash_of(tmp_path))
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4
    assert object_cache.hash_of(tmp_path, ("code.py",)) != object_cache.hash_of(tmp_path, ("facts.json",))
