"""A prepared run: what it refuses at once and located, its plan and warnings, what resolves, and what processes must agree on."""

from __future__ import annotations

import attrs
import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.program.stage_program import Partition
from petra_graph.training import identity
from petra_graph.training.identity import agree, resolved
from petra_graph.training.initial_weights import InitialWeights
from petra_graph.training.prepare import fix_arithmetic, prepare
from petra_graph.training.run import run
from tests.support.pipelines import REVNET, pipeline
from tests.support.runs import SPEC, FakeListener, only_run


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_on_cuda_kernels_are_deterministic_and_nothing_is_filled_for_it(spec, monkeypatch):
    """Torch would fill pinned memory before each copy into it, while the host waits."""
    prepared = prepare(spec)
    monkeypatch.setattr(type(prepared), "on_cuda", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filled = torch.utils.deterministic.fill_uninitialized_memory
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        fix_arithmetic(prepared)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert products_in_tf32() == {True}
        fix_arithmetic(prepare(spec, ["precision.fp32_precision=ieee"]))
        assert products_in_tf32() == {False}
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def products_in_tf32():
    return {torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32}


# --- its plan and warnings ------------------------------------------------------------------------------------------------

ONE = ("run.epochs=1", "run.micro_batches=2", "run.evaluation_batches=1")


def test_a_run_in_which_nothing_is_open_measures_no_costs_and_has_no_plan(spec, monkeypatch):
    """A plan that no training read was 85 % of the calls before the first forward."""
    monkeypatch.setattr(MeasuredNetwork, "costs", lambda _: pytest.fail("measured"))
    summary = run(spec, ONE, FakeListener()).summary
    assert "planned_and_measured" not in summary
    assert not (only_run() / "plan.json").exists()


# --- the resolved specification says everything that was decided ----------------------------------------------------------


@pytest.mark.parametrize("devices", [("cpu",), ("a", "b"), ("a", "b", "a"), ("a", "b", "c", "d", "e", "f")])
def test_devices_are_placed_again_as_they_were(spec, devices):
    """The distinct devices alone would be spread anew: a, b, a over four stages became a, b."""
    given = prepare(spec)
    stages = Partition(stages=given.placement.stages)
    placed = stages.spread_over(devices)
    programs = zip(given.programs, placed.stages, strict=True)
    again = resolved(attrs.evolve(given, programs=tuple(attrs.evolve(p, device=s.device) for p, s in programs)))
    assert again.partition.stages == tuple(stage.nodes for stage in placed.stages)
    assert stages.spread_over(again.partition.devices) == placed


# --- processes whose numbers would differ are told, by what and with both values ------------------------------------------


class FakeWorld:
    """One process's view of a store that all share."""

    def __init__(self, rank, values):
        self.rank, self.values, self.store = rank, values, self

    def set(self, name, value):
        self.values[name] = value

    def wait(self, name):
        return self.values[name]


def difference(one, other):
    """Return what rank 1 is told, where it has prepared `other` and rank 0 `one`."""
    values = {}
    agree(FakeWorld(0, values), one)
    try:
        agree(FakeWorld(1, values), other)
    except SpecError as error:
        return [problem.message.removeprefix("rank 1 and rank 0 run different things: ") for problem in error.problems]
    return []


def test_equal_runs_agree_and_another_version_of_a_library_does_not(spec, monkeypatch):
    values, prepared, known = {}, prepare(spec), identity.version
    assert difference(prepared, prepared) == []
    agree(FakeWorld(0, values), prepared)
    monkeypatch.setattr(identity, "version", lambda name: "1.0" if name == "numpy" else known(name))
    with pytest.raises(SpecError, match=f"numpy's version: {known('numpy')} on rank 0, 1.0 here"):
        agree(FakeWorld(1, values), prepared)


@pytest.mark.parametrize("of_folder", [False, True], ids=["file", "folder"])
def test_other_weights_to_begin_with(spec, tmp_path, of_folder):
    made = []
    for name in ("one", "alike", "other"):
        path = tmp_path / name / "weights"
        path.parent.mkdir()
        path.write_bytes(b"other" if name == "other" else b"same")
        file = path.parent if of_folder else path
        made.append(attrs.evolve(prepare(spec), initial=InitialWeights(file=file, fitting={}, said="")))
    one, alike, other = made
    assert difference(one, alike) == []
    (told,) = difference(one, other)
    assert told.startswith("the weights to begin with: ")


# --- initial parameters follow from seed and node alone -------------------------------------------------------------------

IMAGE = (3, 6, 6)


def same(one, other) -> set[str]:
    return {key for key in one if torch.equal(one[key], other[key])}


def test_neither_partition_nor_method_nor_other_nodes_change_initial_parameters():
    one = pipeline(REVNET, IMAGE).parameters()
    cut = pipeline(REVNET, IMAGE, stages=(("stem", "a0", "a1"), ("down", "b0", "head"))).parameters()
    plain = pipeline(REVNET, IMAGE, method="backprop").parameters()
    fewer = pipeline((*REVNET[:2], *REVNET[3:]), IMAGE).parameters()
    assert same(one, cut) == same(one, plain) == set(one)
    assert same(fewer, one) == set(fewer)
    assert not torch.equal(one["a0/first.0.weight"], one["a1/first.0.weight"]), "nodes of one shape start differently"
