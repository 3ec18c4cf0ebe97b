"""Old paths of every public name still work, and warn with the new path."""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from layoutgemm.moved import MODULES, NAMES
from tests import needs

PUBLIC: dict[str, list[str]] = json.loads((Path(__file__).parent / "public_names.json").read_text(encoding="utf-8"))
OPTIONAL = frozenset({"cutlass", "cuda", "torch", "tvm_ffi"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_is_found_at_its_old_path(path: str) -> None:
    try:
        module = import_module(path)
        missing = [name for name in PUBLIC[path] if not hasattr(module, name)]
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in OPTIONAL:
            pytest.skip(needs.reason(str(error.name)))
        raise
    assert not missing


def test_new_paths_are_modules() -> None:
    root = Path(__file__).resolve().parents[1] / "layoutgemm"
    for new in {*MODULES.values(), *NAMES.values()}:
        path = root / new.partition(":")[0].replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), new


def test_a_moved_module_warns_with_its_new_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import layoutgemm.layouts
    from layoutgemm.layouts.proofs.gf2 import combine

    monkeypatch.delitem(sys.modules, "layoutgemm.layouts.gf2", raising=False)
    monkeypatch.delattr(layoutgemm.layouts, "gf2", raising=False)
    with pytest.warns(DeprecationWarning, match=r"layoutgemm\.layouts\.gf2 is now layoutgemm\.layouts\.proofs\.gf2"):
        old = import_module("layoutgemm.layouts.gf2")
    with pytest.warns(DeprecationWarning, match=r"layoutgemm\.layouts\.proofs\.gf2\.combine"):
        assert old.combine is combine


def test_a_name_that_left_its_package_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"layoutgemm\.checks\.Grouped is now layoutgemm\.schedule\.Grouped"):
        from layoutgemm.checks import Grouped
    from layoutgemm.schedule import Grouped as now

    assert Grouped is now


def test_unknown_names_are_refused_as_always() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"layoutgemm\.layouts\.no_such"):
        import_module("layoutgemm.layouts.no_such")
    with pytest.raises(ImportError, match="no_such"), warnings.catch_warnings():
        warnings.simplefilter("error")
        from layoutgemm.checks import no_such  # noqa: F401


def test_a_package_keeps_its_own_names() -> None:
    """atoms.mma_sync was a module and a function of the package: importing the one leaves the other."""
    import layoutgemm.atoms

    before = layoutgemm.atoms.mma_sync
    with pytest.warns(DeprecationWarning, match=r"layoutgemm\.atoms\.mma\.sync"):
        sys.modules.pop("layoutgemm.atoms.mma_sync", None)
        import_module("layoutgemm.atoms.mma_sync")
    assert layoutgemm.atoms.mma_sync is before and before.__name__ == "mma_sync"
