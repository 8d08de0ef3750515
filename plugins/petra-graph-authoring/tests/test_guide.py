"""The guide in plugins/ shows the code that `petra-graph new plugin` writes: the same parts, listing by listing."""

from __future__ import annotations

import json
import re

import pytest
from petra_graph_authoring.new_package import example_package
from petra_graph_authoring.package_parts import PARTS, common_test, part_files

from petra_graph.cli.main import main
from tests.support.pages import guide

GUIDE = [listing for page in guide() for listing in page.listings("python", "toml")]


def listings(name):
    """The listings of one file, in their order."""
    found = [listing.partition("\n") for listing in GUIDE]
    return [text.strip("\n") for head, _, text in found if re.fullmatch(rf"# {re.escape(name)}", head)]


def test_each_file_of_a_part_is_a_listing():
    shown = {}
    for part in PARTS:
        for name, text in part_files(part).items():
            path = f"tests/{name}" if name.startswith("test_") else f"src/petra_graph_examples/{name}"
            shown.setdefault(path, []).append(text.strip("\n"))
    assert all(f"{part.entry.partition(':')[0]}.py" in part_files(part) for part in PARTS)
    for path, texts in shown.items():
        assert listings(path) == texts, path


def test_the_files_around_them_too():
    files = example_package().files()
    for name in ("pyproject.toml", "example.toml"):
        assert listings(name) == [files[name].strip("\n")]
    assert listings("tests/test_declared.py") == [common_test().strip("\n")]


def test_there_is_no_other_file():
    named = {head for listing in GUIDE if (head := listing.partition("\n")[0]).startswith("# ")}
    alone = {
        "my_module.py",
        "backwards.py",
        "backwards.toml",
        "quadrants.py",
        "quadrants.toml",
        "my_net.py",
        "my_net.toml",
        "auxiliary.py",
        "auxiliary.toml",
        "notes.py",
        "rows.py",
        "rows.toml",
        "two_inputs.py",
        "two_inputs.toml",
        "two_towers.py",
        "two_towers.toml",
    }
    assert {name.removeprefix("# ") for name in named} - alone == set(example_package().files()) - {
        "README.md",
        "src/petra_graph_examples/__init__.py",
    }


@pytest.fixture
def tokens(write):
    for name in ("backwards.py", "backwards.toml"):
        write(name, *listings(name))


def test_tokens_with_a_target_each_train(tokens, capsys):
    assert main(["run", "backwards.toml", "--set", "run.epochs=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["top1"] > 0.9


def test_their_plugins_keep_all_promises(tokens, capsys):
    for name in ("datasets/backwards:Sequences", "losses/backwards:Focal", "backwards:Mixer", "backwards:EachPosition"):
        assert main(["check", name]) == 0, capsys.readouterr().out
