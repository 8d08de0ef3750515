"""petra_graph/README.md names the packages, the steps and the order of imports as they are."""

from __future__ import annotations

import pkgutil
import re
import tomllib

import pytest

from tests.support import ROOT

PAGE = (ROOT / "petra_graph" / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def first_cells(title):
    return re.findall(r"^\| `([\w.]+)` \|", section(title), re.MULTILINE)


def test_the_rooms_are_the_packages_in_the_order_of_imports():
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = iter(first_cells("Rooms"))
    for layer in layers[1:]:
        names = {name.strip() for name in layer.split("|")}
        assert {next(rooms) for _ in names} == names
    assert list(rooms) == []


def test_the_table_has_every_package():
    folders = {path.parent.name for path in (ROOT / "petra_graph").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "petra_graph").glob("[a-z]*.py")}
    assert set(first_cells("Rooms")) == folders | modules


STEPS = re.findall(r"^\| \w+ \| `([\w.]+)` \|", section("The path from a spec to a run"), re.MULTILINE)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_a_function_of_that_name(step):
    module, _, function = step.rpartition(".")
    assert callable(pkgutil.resolve_name(f"petra_graph.{module}:{function}"))
