"""Targets that a loss passes over weigh nothing, whatever the batches; and there may be a target for each token or pixel."""

import json

import pytest
import torch

from petra_graph.cli.main import main
from tests.support.forks import SPEC as shared
from tests.support.forks import ended, ranks
from tests.support.pipelines import CHAIN, SHAPES, batches, pipeline, plain_gradients, plain_network, relative_error
from tests.support.runs import events, only_run, overrides

TOLERANCE = 1e-12
WINDOW = 4
MODULE = """
import torch
from torch.nn import functional
from petra_graph.plugins import DataFacts


class Split:
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.samples = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        self.targets = torch.randint(5, (count,), generator=generator)
        self.targets[torch.rand(count, generator=generator) < 0.4] = -100
        self.targets[8:16] = -100

    def __len__(self):
        return len(self.samples)

    def fetch(self, indices, *, seed, epoch):
        return self.samples[indices], self.targets[indices]


class Data:
    facts = DataFacts(shape=(6,), dtype="float64", classes=5)

    def __init__(self):
        self.train, self.test = Split(96, 0), Split(52, 1)


class OfClasses:
    weights = torch.tensor([0.1, 0.2, 3.0, 4.0, 1.0], dtype=torch.float64)

    def __call__(self, output, target):
        return functional.cross_entropy(output, target, self.weights.to(output.dtype))

    def target_weight(self, target):
        return float(self.weights[target[target >= 0]].sum())

    def target_count(self, target):
        return int((target >= 0).sum())

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum(), "there": (target >= 0).sum()}
"""
SPEC = (
    shared[: shared.index("[optimizer]")]
    + """
accumulation = 2

[data]
name = "padded:Data"
batch = 8

[precision]
compute = "float64"

[run]
epochs = 3
"""
)


@pytest.fixture
def spec(write):
    write("padded.py", MODULE)
    return write("padded.toml", SPEC)


@pytest.mark.parametrize(
    "how", [{"method": "petra", "schedule": "sequential"}, {"method": "reversible-backprop"}, {"method": "gpipe"}]
)
def test_a_window_is_one_batch_of_everything(how):
    """Of the four micro-batches one has all its targets, two have some, and one has none."""
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    built = pipeline(CHAIN, SHAPES["chain"], **how, accumulation=WINDOW, **plain)
    parts = batches(SHAPES["chain"], WINDOW)
    parts[1][1][:1] = parts[2][1][:3] = parts[3][1][:] = -100
    modules, forward = plain_network(built)
    together = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    gradients = plain_gradients(modules, forward, together)
    expected = {key: value - 0.05 * gradients[key] for key, value in built.parameters().items()}
    results = built.train(parts)
    assert relative_error(built.parameters(), expected) <= TOLERANCE
    assert [result.weight for result in results] == [4, 3, 1, 0]
    assert float(results[3].loss) == 0


def test_a_window_without_targets_leaves_the_parameters():
    built = pipeline(CHAIN, SHAPES["chain"], accumulation=2, schedule="lockstep")
    before = built.parameters()
    built.train([(samples, torch.full_like(targets, -100)) for samples, targets in batches(SHAPES["chain"], 4)])
    assert relative_error(built.parameters(), before) == 0
    assert {executor.updater.updates for executor in built.executors} == {2}


def train(*words: str, directory: str = "runs", processes: int = 1) -> dict[str, float]:
    """Train with weights of classes, and return the losses and shares of all epochs."""
    command = ["run", "padded.toml", *overrides('loss.name="padded:OfClasses"', *words, f"run.directory={directory}")]
    if processes == 1:
        assert main(command) == 0
    else:
        with ranks(*[command] * processes) as running:
            assert ended(running) == [0] * processes
    return {
        f"{event['name']} of epoch {event['epoch']}": event["value"]
        for event in events(only_run(directory))
        if event["name"].endswith(("/loss", "/top1", "/there"))
    }


@pytest.mark.processes
def test_replicas_are_one_pipeline_with_a_larger_micro_batch_and_metrics_are_divided_by_what_they_count(spec, capsys):
    """A network that was always right had 65 % where the weights of its classes were larger than 1, and 416 % where they were smaller."""
    whole = train("data.batch=16")
    shares = {name: value for name, value in whole.items() if "/there" in name}
    assert (len(shares), set(shares.values())) == (6, {1.0})
    assert train("partition.replicas=2", processes=2, directory="two") == pytest.approx(whole, rel=1e-10)
    last = {name: whole[f"test/{name} of epoch 3"] for name in ("loss", "top1", "there")}
    for size in (1, 7, 52):
        capsys.readouterr()
        assert main(["evaluate", "latest", "--json", *overrides(f"data.evaluation_batch={size}")]) == 0
        assert json.loads(capsys.readouterr().out)["means"] == pytest.approx(last, rel=TOLERANCE)


def test_data_of_which_no_target_counts(spec, here, capsys):
    (here / "padded.py").write_text(MODULE.replace("< 0.4", "< 2"))
    assert main(["run", spec]) == 1
    said = capsys.readouterr().err
    assert "no target of the training data counts: " in said
    assert "gives all 96 samples a weight of 0" in said
