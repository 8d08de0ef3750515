"""Formats of plans of other distributions: found, and refused by name."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from tests.support.runs import SPEC

FORMAT = """\
def shout(document):
    return document["name"].upper()
"""


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_a_format_of_another_distribution_is_written(install, spec, capsys):
    install("my-format", "[petra_graph.plan_formats]\nshout = my_format:shout\n", my_format=FORMAT)
    assert main(["plan", spec, "--format", "shout"]) == 0
    assert capsys.readouterr().out == "SMALL\n"
    assert main(["plan", spec, "--format", "shoot"]) == 2
    assert "there is no format 'shoot' of plans\n    help: allowed: text, json, " in capsys.readouterr().err


@pytest.mark.parametrize("target", ["nowhere:shout", "my_format:whisper"])
def test_a_format_that_cannot_be_imported(install, spec, capsys, target):
    install("my-format", f"[petra_graph.plan_formats]\nshout = {target}\n", my_format=FORMAT)
    assert main(["plan", spec, "--format", "shout"]) == 4
    said = f"my-format: the format 'shout' ({target}) cannot be imported: "
    assert said in capsys.readouterr().err
