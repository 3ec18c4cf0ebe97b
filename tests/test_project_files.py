"""The files of a published project agree with each other: versions, addresses, commands of the workflows, links."""

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

import layoutgemm
from layoutgemm.torch_op.problem import OLDEST_TORCH
from tests.test_readme import SHELL, blocks, command_problem, commands

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
REPOSITORY = re.search(r'^Repository = "(.*)"$', PROJECT, re.MULTILINE)[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_one_license_one_repository():
    citation = text_of("CITATION.cff")
    assert f"version: {layoutgemm.__version__}\n" in citation and f"repository-code: {REPOSITORY}\n" in citation
    assert re.search(r'^license = "(.*)"$', PROJECT, re.MULTILINE)[1] in citation
    assert f"## [{layoutgemm.__version__}] - " in text_of("CHANGELOG.md")
    addresses = re.findall(
        r"https://github.com/layoutgemm/[\w-]+", PROJECT + citation + text_of(".github/ISSUE_TEMPLATE/config.yml")
    )
    assert set(addresses) == {REPOSITORY}


def test_one_oldest_torch():
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert f'torch = ["torch>={oldest}"]' in PROJECT
    for page in ("README.md", "docs/combinations.md"):
        assert f"torch {oldest} is the oldest" in text_of(page)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_commands_and_links_exist(page):
    text = text_of(page)
    for block in blocks(text):
        for command, _ in commands(block) if block.language in SHELL else ():
            assert not command_problem(command)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert target.startswith("https:") or (ROOT / target).exists(), target


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists_with_few_rights(path):
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^permissions: \{ contents: read \}$", text, re.MULTILINE)
    assert "secrets." not in text and "\t" not in text
    for command in re.findall(r"run: (.*)", text):
        if command.startswith("make "):
            assert command.split()[1] in TARGETS
        if command.startswith("."):
            assert (ROOT / command).exists()
        for folder in re.findall(r"\btests/\S+", command):
            assert (ROOT / folder).exists()
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w./-]+@(v\d+|release/v1)", action), action


def test_only_the_release_may_publish():
    writers = [path.stem for path in WORKFLOWS if "id-token: write" in path.read_text(encoding="utf-8")]
    assert writers == ["docs", "release"]  # pages, and trusted publishing
    release = text_of(".github/workflows/release.yml")
    assert release.index("make dist") < release.index("id-token: write") and 'tags: ["v*"]' in release


def test_the_readme_of_the_index_has_absolute_links(monkeypatch):
    plugin = types.ModuleType("hatchling.metadata.plugin.interface")
    plugin.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    spec = importlib.util.spec_from_file_location("readme_links", ROOT / "docs" / "readme_links.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = hook.absolute(text_of("README.md"), REPOSITORY)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20 and all(target.startswith("https://") for target in targets)
    assert any("raw.githubusercontent.com" in target and target.endswith(".svg") for target in targets)
    assert hook.absolute("[a](https://x.y/z) [b](#c)", REPOSITORY) == "[a](https://x.y/z) [b](#c)"
