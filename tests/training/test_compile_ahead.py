"""Stages are compiled before they train: nothing is compiled later, and what cannot be is refused with all its nodes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.planning import cpp_compiler
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.compile_ahead import compile_ahead
from petra_graph.training.prepared_run import Prepared, prepare
from petra_graph.training.start_reporter import StartReporter
from tests.support.runs import SPEC

BROKEN = """
import torch
from petra_graph.blocks import Buffered

class Branching(Buffered):
    def forward(self, x):
        x = x.flatten(1)
        return (x, x) if x.sum().item() > 0 else (x, -x)
"""


@pytest.fixture
def counter(monkeypatch):
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr(cpp_compiler, "lacking", str)
    yield counter
    torch.compiler.reset()


@pytest.fixture
def prepared(write):
    def of(*settings: str, text: str = SPEC.replace(", dropout = 0.1", "")) -> Prepared:
        return prepare(write("small.toml", text), ["run.compile=true", *settings])

    return of


def ahead(ready: Prepared) -> None:
    compile_ahead(ready, ready.programs, StartReporter(say=lambda _: None))


def told(ready: Prepared) -> list[str]:
    with pytest.raises(SpecError) as caught:
        ahead(ready)
    return [f"{problem.where}: {problem.message}; {problem.hint}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    "settings",
    [
        {"method.name=petra"},
        {"method.name=delayed-reconstructed", "precision.channel_dtype=bfloat16"},
        {"method.name=pipedream", "method.schedule=lockstep", "precision.compute=bfloat16"},
        {"partition.stages=2", "method.name=backprop", "method.schedule=sequential"},
    ],
    ids=lambda settings: " ".join(sorted(settings)),
)
def test_training_compiles_nothing_more(counter, prepared, settings):
    ready = prepared(*settings)
    ahead(ready)
    compiled = counter.frame_count
    scheduler = Scheduler(ready.executors())
    scheduler.train(ready.opened.epoch(0), range(len(ready.opened.batches)), lambda _: None)
    assert 0 < compiled == counter.frame_count


def test_nodes_that_draw_random_numbers(counter, prepared):
    (problem,) = told(prepared(text=SPEC))
    assert problem == (
        '--set run.compile=true: nodes "rev.0", "rev.1" cannot be compiled: it draws random numbers, and compiled code '
        "does not promise those of a forward to its backward; set dropout to 0, or leave out run.compile"
    )


def test_a_block_that_cannot_be_compiled_whole(counter, prepared, here):
    (here / "branching.py").write_text(BROKEN)
    text = SPEC.replace(", dropout = 0.1", "").replace(
        '"linear-stem"\noptions = { features = 12 }', '"branching:Branching"'
    )
    (problem,) = told(prepared(text=text))
    assert problem.startswith('--set run.compile=true: node "stem" cannot be compiled: ')


def test_without_a_compiler(prepared, monkeypatch):
    monkeypatch.setenv("CXX", "nowhere++")
    (problem,) = told(prepared())
    assert problem == (
        "--set run.compile=true: a C++ compiler (nowhere++) is not here; install it (on Debian: apt install g++ python3-dev), "
        "or name a compiler in CXX; or leave out run.compile"
    )
