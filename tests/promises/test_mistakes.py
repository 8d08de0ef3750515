"""Mistakes as their makers see them: broken contracts, refused options, networks and data that do not fit, and too much delay."""

import json
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.planning.plan_spec import plan
from petra_graph.planning.saved_plan import SavedPlan
from petra_graph.training.run import run
from tests.support import specs
from tests.support.runs import SPEC, FakeListener, overrides

# --- plugins ---------------------------------------------------------------------------------------------------------

BROKEN = """
import torch
from petra_graph.plugins import DataFacts

class Loss:
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target, reduction="none")
    def metrics(self, output, target): return {}

class Raising(Loss):
    def __call__(self, output, target): raise RuntimeError("no such class")

class Refusing(torch.optim.SGD):
    def step(self): raise ValueError("a step too far")

def refusing(groups, *, lr: float = 0.1): return Refusing([*groups.decayed, *groups.undecayed], lr=lr)

class Split:
    def __len__(self): return 64
    def fetch(self, indices, *, seed, epoch): return torch.zeros(len(indices), 8), torch.full((len(indices),), 10)

class Data:
    train = test = Split()
    facts = DataFacts(shape=(8,), dtype="float32", classes=10)
"""
ENDS = {
    "loss.name='broken:Loss'": (4, "is broken: it returns float32 [128], not a scalar of real numbers"),
    "data={name='broken:Data', batch=16}": (1, "targets are 10 .. 10, where the data set declares classes 0 .. 9"),
    "loss.name='broken:Raising'": (
        1,
        'stage 4 (head) failed in the forward of micro-batch 0: RuntimeError: no such class (loss "broken:Raising", loss.name)',
    ),
    "optimizer.name='broken:refusing'": (1, 'ValueError: a step too far (optimizer "broken:refusing", at update 1)'),
}


@pytest.mark.parametrize("mistake", ENDS)
def test_a_plugin_that_breaks_its_contract_ends_the_run_and_is_named(mistake, write, here, capsys):
    write("broken.py", BROKEN)
    code, said = ENDS[mistake]
    assert main(["run", write("a.toml", SPEC), "--set", mistake]) == code
    assert said in capsys.readouterr().err
    if "Error" in said:  # of the author's own code, whose traceback is kept
        (failure,) = here.glob("runs/*/failure.txt")
        assert 'broken.py", line' in failure.read_text()


REFUSES = """
from petra_graph.blocks import Buffered
from petra_graph.plugins import DataFacts, Problem, SpecError

def refuse():
    raise SpecError(Problem(message="there is no such size", hint="take 1", path=("size",)))

class Block(Buffered):
    def __init__(self, inputs, *, size: int = 1):
        super().__init__(inputs)
        refuse()
    def forward(self, *streams):
        return streams

def loss(*, size: int = 1):
    refuse()

class Data:
    facts = DataFacts(shape=(1, 8, 8), classes=10)
    def __init__(self, *, size: int = 1):
        refuse()
"""
REFUSED = '"refuses:{}"\noptions = {{ size = 3 }}'


def test_a_refused_option_is_shown_where_it_is_written(write, capsys):
    """The plugin says `path=("size",)`, and its user sees the file, the line and the value."""
    write("refuses.py", REFUSES)
    text = specs.SPEC.replace('"linear-stem"\noptions = { features = 16 }', REFUSED.format("Block"))
    text = text.replace('"digits"', REFUSED.format("Data")) + f"[loss]\nname = {REFUSED.format('loss')}\n"
    assert main(["run", write("a.toml", text), "--dry-run"]) == 2
    said = capsys.readouterr().err
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "size = 3" in line]
    for line, of in zip(lines, ("", 'node "stem": block "refuses:Block": ', ""), strict=True):
        assert f"a.toml:{line}: {of}there is no such size\n    help: take 1\n" in said


# --- networks and data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_problems_of_data_and_network_are_reported_together(write, capsys, arguments, here):
    wrong = specs.SPEC.replace('name = "digits"', 'name = "cifar10"\noptions = { root = "data" }')
    assert main(["run", write("a.toml", wrong.replace("= 10 }", "= 7 }")), *arguments]) == 2
    assert capsys.readouterr().err == (
        f"""\
a.toml:3: the files of CIFAR10 in {here}/data cannot be read: Dataset not found or corrupted. You can use download=True \
to download it
    help: root must hold cifar-10-batches-py/ with the published python batches; or set download = true
a.toml:20: the head "head" has 7 outputs, but the data set has 10 classes
    help: make it 10
2 problems
"""
    )
    assert not Path("runs").exists()


# --- delay that costs accuracy ---------------------------------------------------------------------------------------

LATE = specs.SPEC.replace("accumulation = 2", "accumulation = 1").replace('kind = "reversible"', "repeat = 2")
SAID = "gradients reach stage 1 {} updates late, which can cost accuracy: {}method.accumulation = {} makes it 2 updates or less"
LOCKSTEP = SAID.format(6, 'method.schedule = "1f1b" halves the delay, ', 3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], [LOCKSTEP]),
        (["method.schedule=1f1b", "optimizer.name=adamw"], [SAID.format(3, "", 2)]),
        (["method.accumulation=3"], []),
        (["method.name=gpipe"], []),
        # It corrects the delay.
        (["optimizer={ name = 'corrected', options = { optimizer = 'sgd', lr = 0.1, predict = true } }"], []),
    ],
)
def test_gradients_that_are_more_than_two_updates_late(write, capsys, settings, expected):
    """A dry run says it in one sentence."""
    assert main(["run", write("a.toml", LATE), "--json", *overrides(*settings), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == expected


def test_a_run_says_it_with_a_plan_and_without_and_so_does_the_plan(write):
    made = plan(write("a.toml", LATE))
    for saved in (None, SavedPlan(made, "a plan")):
        listener = FakeListener()
        run("a.toml", ("run.micro_batches=2", "run.evaluation_batches=1"), listener, saved=saved)
        assert listener.run.warnings.count(LOCKSTEP) == 1
    assert LOCKSTEP in made.warnings


@pytest.mark.parametrize(
    ("word", "said"), [("optimizer=adam", 'write optimizer.name = "adam"'), ("devices=cuda", "write partition.devices")]
)
def test_what_was_meant_is_said(word, said, write, capsys):
    assert main(["run", write("small.toml", SPEC), "--dry-run", "--set", word]) == 2
    assert said in capsys.readouterr().err
