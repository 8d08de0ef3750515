"""What a training shows and what does not end it: said once, printed, and kept in the summary."""

from __future__ import annotations

import io
import re

import pytest

from petra_graph.cli.main import main
from petra_graph.report.progress import LiveProgress, PlainProgress
from petra_graph.training.loop.peers import Peers, RunWarnings
from tests.promises.mistaken import ENTRY_POINTS
from tests.support.forks import SPEC, ended, ranks
from tests.support.runs import FakeListener, only_run, summary_of, weights_bytes

MODULE = """
import torch
from petra_graph.catalog.blocks.residual import RevMlp

class Spare(RevMlp):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.spare = torch.nn.Linear(2, 2)
"""
UNUSED = 'no gradient has reached parameters "near/spare.weight", "near/spare.bias" in the first 3 updates of its stage'
RUN = ("run", "shared.toml", "--set", "run.epochs=1")


@pytest.fixture
def folder(write, here):
    write("spare_blocks.py", MODULE)

    def with_block(name):
        old = 'name = "near"\nblock = "rev-mlp"'
        write("shared.toml", SPEC.replace(old, f'name = "near"\nblock = "spare_blocks:{name}"'))
        return here

    return with_block


def test_parameters_that_nothing_trains_are_named(folder, capsys):
    folder("Spare")
    assert main([*RUN]) == 0
    assert capsys.readouterr().err.count(f"warning: {UNUSED}") == 1
    assert [text.partition(":")[0] for text in summary_of(only_run())["warnings"]] == [UNUSED]


def test_the_look_changes_no_bit(folder):
    folder("Spare")
    weights = []
    for name, more in (("with", ()), ("without", ("--set", "run.self_check=false"))):
        assert main([*RUN, "--set", f"run.directory={name}", *more]) == 0
        weights.append(weights_bytes(only_run(name)))
    assert weights[0] == weights[1]


@pytest.mark.processes
@pytest.mark.parametrize("replicas", [1, 2])
def test_another_process_says_it_to_the_one_that_records(folder, replicas):
    here = folder("Spare")
    more = ("--set", f"partition.replicas={replicas}")
    with ranks((*RUN, *more), (*RUN, *more)) as running:
        assert ended(running) == [0, 0]
    said = [one.said for one in running]
    records = replicas == 1
    assert [text.count(f"warning: {UNUSED}") for text in said] == [1 - records, int(records)]
    assert [text.partition(":")[0] for text in summary_of(only_run(here / "runs"))["warnings"]] == [UNUSED]


@pytest.mark.processes
def test_an_optimizer_that_leaves_parameters_still_ends_all_processes(write, install):
    """The kit's parameters are smaller, and it moves those."""
    install("my-plugins", ENTRY_POINTS)
    write("shared.toml", SPEC.replace("[optimizer]", '[optimizer]\nname = "only_matrices"'))
    with ranks(RUN, RUN) as running:
        assert ended(running) == [4, 4]
    said = [one.said for one in running]
    assert said[0] + said[1] == said[1], "the process that records says it"
    (line,) = [line for line in said[1].splitlines() if line.startswith("rank ")]
    assert re.match(
        r'rank [01]: stage \d \(\w+\), optimizer "only_matrices" of my-plugins is broken: it leaves parameter', line
    )
    assert "help: let step() write to every parameter" in said[1]


class Others(Peers):
    def __init__(self) -> None:
        self.published = []

    def warn(self, texts):
        self.published.append(list(texts))

    def warnings(self):
        return ["a", "b", "b"]


def test_the_process_that_records_says_each_once():
    noting = FakeListener()
    said = RunWarnings(Others(), (noting,))
    said.say("b")
    said.collect()
    said.collect()
    assert (noting.calls, said.texts, said.peers.published) == (["warned: b", "warned: a"], ["b", "a"], [])


def test_another_one_publishes_all_that_it_has_said():
    said = RunWarnings(Others(), ())
    for text in ("a", "a", "b"):
        said.say(text)
    said.collect()
    assert said.peers.published == [["a"], ["a", "b"]]


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_it_is_printed_as_it_is(kind):
    stream = io.StringIO()
    kind(stream).warned("[bold] \x1b")
    assert stream.getvalue() == "warning: [bold] \\u001b\n"
