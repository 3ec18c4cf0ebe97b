"""Public callables refuse any foreign object in all places; records with arrays equal themselves alone."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import pkgutil
import typing
from pathlib import Path
from typing import Any

import pytest

import layoutgemm
from layoutgemm.errors import LayoutError
from tests import needs

ROOT = Path(layoutgemm.__file__).parent
PACKAGES = ["layoutgemm", *(m.name for m in pkgutil.walk_packages([str(ROOT)], "layoutgemm.") if m.ispkg)]
FOREIGN = [object(), None, "no such", 3.5, [], -1]
ARRAYS = ("ndarray", "NDArray", "IntArray", "torch.Tensor")


def callables(name: str) -> dict[str, tuple[Any, inspect.Signature]]:
    """The callables in a package's `__all__` that need arguments."""
    package, found = importlib.import_module(name), {}
    for each in getattr(package, "__all__", ()):
        value = getattr(package, each)
        if callable(value) and not (inspect.isclass(value) and issubclass(value, BaseException)):
            try:
                found[each] = value, inspect.signature(value)
            except (TypeError, ValueError):  # an alias of a type
                continue
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_foreign_objects_in_all_places_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "no such" is a path to `view.save`
    try:
        found = callables(name)
    except ImportError as error:  # an optional library is missing
        pytest.skip(str(error))
    for each, (value, signature) in found.items():
        due = [p for p in signature.parameters.values() if p.default is p.empty]
        by_place = [p for p in due if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_name = {p.name: object() for p in due if p.kind is p.KEYWORD_ONLY}
        for foreign in FOREIGN if by_place else ():
            try:
                value(*[foreign] * len(by_place), **by_name)
            except LayoutError:
                continue
            except Exception as error:
                pytest.fail(f"{name}.{each} of {foreign!r}: {type(error).__name__}: {error}")


def test_records_with_arrays_have_no_generated_equality() -> None:
    # the generated one asks an array whether it is true, and hashes it
    wrong = []
    for path in ROOT.rglob("*.py"):
        for record in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]:
            made = [ast.unparse(each) for each in record.decorator_list]
            types = [ast.unparse(each.annotation) for each in record.body if isinstance(each, ast.AnnAssign)]
            arrays = any(array in each and "Callable" not in each for each in types for array in ARRAYS)
            own = any(getattr(each, "name", "") == "__eq__" for each in record.body)
            if any("dataclass" in each and "eq=False" not in each for each in made) and arrays and not own:
                wrong.append(f"{path.relative_to(ROOT)}: {record.name}")
    assert not wrong


def test_a_copied_relation_is_equal() -> None:
    m = layoutgemm.dim("m", min=4)
    relation = m >= 9
    assert pickle.loads(pickle.dumps(relation)) == relation == copy.copy(relation) != (m >= 8)
    assert len({relation, m >= 9}) == 1


def test_types_of_functions_are_read_at_run_time() -> None:
    """As dataclasses, command lines and documentation read them: no alias is a text that `|` refuses."""
    needs.module("torch")
    for name in dir(layoutgemm):
        function = getattr(layoutgemm, name)
        if name[0] != "_" and inspect.isfunction(function):
            assert "return" in typing.get_type_hints(function), name
