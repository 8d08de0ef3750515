"""New packages: they install, keep their promises, and train at once; no name in them is taken."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from petra_graph_authoring.new_package import new_package
from petra_graph_authoring.package_parts import PARTS

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.registry.registry import discover
from tests.support.environments import pip
from tests.support.forks import command

KINDS = [part.kind for part in PARTS]
REGISTRY = discover().only(["petra-graph"])


@pytest.fixture
def made(here, install, monkeypatch):
    """Write a package by the command line, and put it where Python finds it, as an installation does."""

    def make(name, *kinds):
        assert main(["new", "plugin", name, *(f"--{kind}" for kind in kinds)]) == 0
        folder = here / name
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        points = (
            "\n".join([f"[{group}]", *(f"{key} = {target}" for key, target in entries.items())])
            for group, entries in project["entry-points"].items()
        )
        install(project["name"], "\n".join(points))
        monkeypatch.syspath_prepend(str(folder / "src"))
        monkeypatch.chdir(folder)
        return folder

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_package_of_one_kind_keeps_its_promises_and_trains(made, capsys, kind):
    """Its one plugin is called like the package."""
    made("petra-graph-made-alone", kind)
    capsys.readouterr()
    assert main(["check", "petra-graph-made-alone", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["plugin"].partition("/")[2], result["status"]) == ("made-alone", "kept")
    assert main(["run", "example.toml", "--fast-dev-run"]) == 0


@pytest.mark.slow
def test_a_package_of_all_kinds_learns(made, capsys):
    made("made-whole", *KINDS)
    capsys.readouterr()
    assert main(["check", "made-whole", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {result["status"] for result in found} == {"kept"}
    assert len(found) == len(KINDS)
    assert main(["run", "example.toml", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["test"]["top1"] > 0.9
    assert "separated" in summary["test"]


@pytest.mark.slow
@pytest.mark.processes
def test_pip_installs_it_and_its_tests_pass(here):
    assert main(["new", "plugin", "made-to-install", "--architecture", "--loss"]) == 0
    folder = here / "made-to-install"

    there = here / "there"
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    pip("install", *options, f"--target={there}", str(folder), home=here)
    tested = command("-q", "-p", "no:cacheprovider", "tests", paths=[there], program="pytest", folder=folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert " passed" in tested.stdout
    assert "made-to-install-net" in command("list", "architectures", paths=[there], folder=folder).stdout


def test_no_name_of_the_parts_is_left():
    package = new_package("of-my-own", KINDS, REGISTRY)
    text = " ".join([*package.files(), *package.files().values()])
    letters = re.sub(r"[-_]", "", text).lower()
    assert [part.example for part in PARTS if part.example.replace("-", "") in letters] == []
    assert "examples" not in text


def test_an_architecture_without_blocks_has_those_of_petra_graph():
    text = new_package("of-my-own", ["architecture", "block"], REGISTRY).files()["src/of_my_own/declared.py"]
    assert [block in text for block in ('"conv-stem"', '"of-my-own-block"', '"pool-linear"')] == [True] * 3


def test_every_file_is_python_or_toml():
    for path, text in new_package("of-my-own", KINDS, REGISTRY).files().items():
        if path.endswith(".py"):
            compile(text, path, "exec")
        elif path.endswith(".toml"):
            tomllib.loads(text)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "My_Blocks",
            "block",
            (
                '"My_Blocks" cannot be the name of a package of plugins\n    help: write small letters, digits and single '
                'hyphens, beginning with a letter, as in "depthwise-blocks"'
            ),
        ),
        ("../up", "block", '"../up" cannot be the name of a package of plugins'),
        ("petra-graph", "block", 'a distribution called "petra-graph" is installed\n    help: choose another name'),
        ("torch", "block", 'a module called "torch" can be imported already\n    help: choose another name'),
        (
            "petra-graph-rev-basic",
            "block",
            (
                'blocks have a plugin "rev-basic" already, of petra-graph\n    help: choose another name: specs would have to '
                'write "petra-graph-rev-basic:rev-basic"'
            ),
        ),
        ("class", "loss", '"class" would be a word of Python\'s own in the code\n    help: choose another name'),
        ("none", "loss", '"none" would be a word of Python\'s own in the code\n    help: choose another name'),
    ],
)
def test_a_name_that_cannot_be(name, kind, message):
    with pytest.raises(SpecError) as caught:
        new_package(name, [kind], REGISTRY)
    assert str(caught.value).startswith(message)
