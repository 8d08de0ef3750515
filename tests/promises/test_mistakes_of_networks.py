"""Mistakes in plugins, graphs, methods and data, as their makers see them: the whole output, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.specs import SPEC

DECLARED = """
def LOSS(output, target): ...
"""


def test_two_plugins_of_one_name(validate, install):
    install("first-losses", "[petra_graph.losses]\nmine = first_losses:LOSS\n", first_losses=DECLARED)
    install("second-losses", "[petra_graph.losses]\nmine = second_losses:LOSS\n", second_losses=DECLARED)
    assert validate(SPEC + '[loss]\nname = "mine"\n') == (
        4,
        """\
a.toml:29: loss "mine" is in 2 distributions: first-losses, second-losses
    help: write one of them: "first-losses:mine" or "second-losses:mine"
""",
    )
    assert main(["validate", "a.toml", "--set", "loss.name=second-losses:mine"]) == 0


def test_a_plugin_that_raises_on_import(validate, install, site):
    install("bad-losses", "[petra_graph.losses]\nbad = bad_loss:LOSS\n", bad_loss="x = 1\nraise RuntimeError('no')\n")
    assert validate(SPEC + '[loss]\nname = "bad"\n') == (
        4,
        f"""\
a.toml:29: loss "bad" of bad-losses cannot be loaded from 'bad_loss:LOSS': RuntimeError: no
    help: raised at {site}/bad_loss.py:2
""",
    )


def test_a_plugin_that_raises_on_import_is_no_problem_where_it_is_not_used(write, install):
    install("bad-losses", "[petra_graph.losses]\nbad = bad_loss:LOSS\n", bad_loss="raise SystemExit(3)\n")
    write("a.toml", SPEC)
    assert main(["validate", "a.toml"]) == 0


@pytest.fixture
def refused(write, capsys):
    """Start a run, and return the exit code and what was printed to stderr; nothing may be left behind."""

    def run(text: str, *arguments: str) -> tuple[int, str]:
        name = write("a.toml", text)
        code = main(["run", name, *arguments])
        assert not Path("runs").exists()
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_shape_mismatch(refused, arguments):
    wrong = SPEC.replace('block = "rev-mlp"\nkind = "reversible"', 'block = "down-basic"').replace("hidden", "channels")
    assert refused(wrong, *arguments) == (
        2,
        """\
a.toml:13: node "middle": block "down-basic" cannot read its input: Expected 3D (unbatched) or 4D (batched) input to \
conv2d, but got input of size: [2, 16]
    help: its input streams are 16, 16 (without the batch); it reads stem
""",
    )


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_missing_data_and_another_mistake_are_reported_together(refused, arguments, here):
    wrong = SPEC.replace('name = "digits"', 'name = "cifar10"\noptions = { root = "data" }').replace("= 10 }", "= 7 }")
    assert refused(wrong, *arguments) == (
        2,
        f"""\
a.toml:3: the files of CIFAR10 in {here}/data cannot be read: Dataset not found or corrupted. You can use download=True \
to download it
    help: root must hold cifar-10-batches-py/ with the published python batches; or set download = true
a.toml:20: the head "head" has 7 outputs, but the data set has 10 classes
    help: make it 10
2 problems
""",
    )
