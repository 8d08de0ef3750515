"""Verbs of other distributions: found, helped, refused by name."""

import pytest

from petra_graph.cli.main import main

VERB = """\
import click

@click.command()
def greet():
    "Greet whoever calls."
    click.echo("hello")

not_a_verb = 3
"""


@pytest.fixture
def verbs(install):
    def installed(*targets, name="greet"):
        for at, target in enumerate(targets):
            install(f"my-verbs-{at}", f"[petra_graph.verbs]\n{name} = {target}\n", my_verbs=VERB)

    return installed


def test_a_verb_of_another_distribution_runs_and_is_in_the_help(verbs, capsys):
    verbs("my_verbs:greet")
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert main(["--help"]) == 0
    assert "  greet     Greet whoever calls.\n" in capsys.readouterr().out
    assert main(["gret"]) == 2
    assert "Did you mean 'greet'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["my_verbs:missing"], "my-verbs-0: the verb 'greet' (my_verbs:missing) cannot be imported: AttributeError: "),
        (["nowhere:greet"], "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (["my_verbs:not_a_verb"], "(my_verbs:not_a_verb) must be a click command, and is an object of class int\n"),
        (
            ["my_verbs:greet"] * 2,
            "the verb 'greet' is in 2 distributions: my-verbs-0, my-verbs-1\n    help: remove one",
        ),
    ],
)
def test_a_verb_that_cannot_be_used(verbs, capsys, targets, message):
    verbs(*targets)
    assert main(["greet"]) == 4
    assert message in capsys.readouterr().err
    assert main(["--help"]) == 0, "the others can be used"
    assert "greet" in capsys.readouterr().out


def test_our_own_verbs_come_first(verbs, capsys):
    verbs("my_verbs:greet", name="run")
    assert main(["run", "--help"]) == 0
    assert "Greet" not in capsys.readouterr().out
