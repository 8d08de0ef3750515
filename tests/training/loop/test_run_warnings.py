"""What a training shows and what does not end it: said once, printed, and kept in the summary."""

from __future__ import annotations

import io

import pytest

from petra_graph.report.progress import LiveProgress, PlainProgress
from petra_graph.training.loop.peers import Peers, RunWarnings
from tests.support.runs import FakeListener


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
