"""The measurements of a probe: exact where theory knows the answer, and checked against gradients that were made without it."""

import copy

import pytest
import torch
from petra_graph_studies.figures import quantity_and_stage, report_fidelity
from petra_graph_studies.probe import Probe
from torch.nn.functional import cross_entropy

from petra_graph.errors import SpecError
from petra_graph.plugins.callback import Listener
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from tests.support.method_cases import DELAYED, EXACT, MethodCase
from tests.support.pipelines import CHAIN, GRAPHS, SHAPES, batches, pipeline, plain_network, run_by_clock
from tests.support.runs import MICRO_BATCHES, SPEC, events, only_run, weights_bytes

ROUNDING = 1e-12
STORED = MethodCase("revnet", "pairs", 3, "pipedream", "1f1b"), MethodCase("skip", "one a node", 1, "pipedream", "1f1b")
"""PipeDream: the backward reads stored inputs and parameters, both of the forward."""


def probed_stages(built, data, micro_batches, start=0):
    """Train, and return each stage's quantities by micro-batch."""
    found = {}
    probe = Probe(built.executors, found.__setitem__)
    probe.begin(range(start, start + len(data)), micro_batches)
    built.train(data, start)
    assert not probe.probed, "every probed micro-batch is compared before the drain ends"
    assert not probe.snapshots._copies
    assert not probe.snapshots._requests
    assert sorted(found) == sorted(micro_batches)
    return {micro_batch: by_stage(built, values) for micro_batch, values in found.items()}


def by_stage(built, values):
    stages = [{} for _ in built.executors]
    for name, value in values.items():
        quantity, stage = quantity_and_stage(name)
        stages[stage - 1][quantity] = value
    return stages


def with_parameters(built, stages):
    return {index: stage for index, stage in enumerate(stages) if any(parameters_of(built.executors[index]))}


def parameters_of(executor):
    return ((f"{name}/{key}", p) for name, module in executor.modules.items() for key, p in module.named_parameters())


def is_one(stage, name):
    return all(abs(stage[name.format(kind)] - 1) < ROUNDING for kind in ("cosine", "ratio"))


@pytest.mark.parametrize("case", [*EXACT[::3], *DELAYED[::3]], ids=str)
def test_without_a_difference_in_parameters_all_gradients_and_inputs_are_one(case):
    """Without delay, and under a delay with learning rate zero."""
    built = case.built() if case.synchronous else case.built(rate=lambda _: 0.0)
    for stages in probed_stages(built, batches(SHAPES[case.graph], 14), [0, 6, 13]).values():
        for stage in with_parameters(built, stages).values():
            assert is_one(stage, "{}_to_delayed")
            assert is_one(stage, "{}_to_end_to_end")
            assert is_one(stage, "delayed_{}_to_end_to_end")
            assert stage.get("reconstruction_error", 0.0) < ROUNDING


@pytest.mark.parametrize("case", STORED, ids=str)
def test_pipedream_computes_the_delayed_gradient(case):
    """One plain backward at each stage's forward parameters is the chain that stored inputs and parameters."""
    built = case.built(momentum=0.9)
    found = probed_stages(built, batches(SHAPES[case.graph], 14), [0, 5, 6, 13])
    for stages in found.values():
        assert all(is_one(stage, "{}_to_delayed") for stage in with_parameters(built, stages).values())
    assert not is_one(found[6][0], "{}_to_end_to_end")


@pytest.mark.parametrize(("schedule", "accumulation"), [("lockstep", 1), ("1f1b", 3), ((7, 4, 4, 2, 1), 1)])
def test_delay_is_seen(schedule, accumulation):
    """The identities above would hold for a probe that compared a gradient with itself."""
    built = pipeline(CHAIN, (8,), schedule=schedule, accumulation=accumulation)
    (stages,) = probed_stages(built, batches((8,), 20), [12]).values()
    assert all(s["cosine_to_end_to_end"] < 1 - 1e-6 for s in stages[:-1])
    assert all(s["cosine_to_delayed"] < 1 - 1e-6 for s in stages[:-1])
    assert is_one(stages[-1], "{}_to_delayed"), "the last stage has no delay"
    assert all(s.get("reconstruction_error") > 1e-4 for s in stages[1:4])
    assert all(s.get("reconstruction_error") is None for s in (stages[0], stages[4]))


@pytest.mark.parametrize(("graph", "accumulation"), [("chain", 1), ("revnet", 3), ("skip", 1)])
def test_end_to_end_gradients_are_those_of_equation_5s_tick(graph, accumulation):
    """By a global clock, plain autograd on plain modules at the parameters that all stages have at that tick."""
    data, m = batches(SHAPES[graph], 16), 7
    built, other = (
        pipeline(GRAPHS[graph], SHAPES[graph], schedule="lockstep", accumulation=accumulation) for _ in range(2)
    )
    (stages,) = probed_stages(built, data, [m]).values()
    own, network_at = by_the_clock(other, data, m, accumulation)
    for index, stage in with_parameters(built, stages).items():
        nodes = built.executors[index].program.nodes
        modules, forward = network_at[index]
        cross_entropy(forward(data[m][0]), data[m][1]).backward()
        end_to_end = {f"{name}/{key}": p.grad for name in nodes for key, p in modules[name].named_parameters()}
        keys = [key for key in end_to_end if end_to_end[key] is not None]
        ours, theirs = (torch.cat([g[key].flatten() for key in keys]) for g in (own[index], end_to_end))
        assert stage["cosine_to_end_to_end"] == pytest.approx(
            float(ours @ theirs / ours.norm() / theirs.norm()), abs=1e-10
        )
        assert stage["ratio_to_end_to_end"] == pytest.approx(float(ours.norm() / theirs.norm()), abs=1e-10)


def by_the_clock(built, data, probed, accumulation):
    """Run equation (5); return each stage's own gradient of `probed`, and the plain network as of its backward's tick."""
    distance = [(executor.program.depth - 1) // 2 for executor in built.executors]
    own, network_at = {}, {}

    def begin(tick):
        network_at.update(
            (index, plain_network(built)) for index, d in enumerate(distance) if tick == max(distance) + d + probed
        )

    for index, executor in enumerate(built.executors):
        verb = "forward" if executor.program.holds_head else "backward"  # the head differentiates at once
        operation = getattr(executor, verb)

        def noting(m, *given, index=index, executor=executor, operation=operation):
            before = {key: copy.deepcopy(p.grad) for key, p in parameters_of(executor)}
            found = operation(m, *given)
            if m == probed:
                own[index] = difference(executor, before)
            return found

        setattr(executor, verb, noting)
    run_by_clock(built.executors, data, accumulation, begin)
    return own, network_at


def difference(executor, before):
    return {
        key: p.grad - (0 if before[key] is None else before[key])
        for key, p in parameters_of(executor)
        if p.grad is not None
    }


def probe(per_epoch):
    return f"callback=[{{name='probe', options={{per_epoch={per_epoch}}}}}]"


def test_a_run_records_what_its_probe_saw_and_is_the_run_without_one(write):
    spec = write("small.toml", SPEC)
    run(spec, ["run.directory=plain"], Listener())
    run(spec, ["run.directory=probed", probe(2)], Listener())
    plain, probed = only_run("plain"), only_run("probed")
    assert weights_bytes(plain) == weights_bytes(probed)
    untimed = [
        [(e["epoch"], e["step"], e["name"], e["value"]) for e in events(directory) if e["name"] != "samples_per_second"]
        for directory in (plain, probed)
    ]
    assert [event for event in untimed[1] if not event[2].startswith("probe/")] == untimed[0]
    seen = [event for event in untimed[1] if event[2].startswith("probe/")]
    assert {(epoch, step) for epoch, step, *_ in seen} == {
        (epoch, (epoch - 1) * MICRO_BATCHES + m + 1) for epoch in (1, 2) for m in (2, 8)
    }
    found = {quantity_and_stage(name) for _, _, name, _ in seen}
    assert len({quantity for quantity, _ in found}) == 7
    assert {stage for quantity, stage in found if quantity == "reconstruction_error"} == {2, 3}
    means = report_fidelity(probed)
    assert (probed / "fidelity.png").read_bytes().startswith(b"\x89PNG")
    values = [value for epoch, _, name, value in seen if (epoch, name) == (1, "probe/cosine_to_delayed/stage-01")]
    assert means["cosine_to_delayed"][1][1] == pytest.approx(sum(values) / len(values))
    with pytest.raises(SpecError, match="holds no measurement of a probe"):
        report_fidelity(plain)


def test_no_more_probes_than_micro_batches(write):
    spec = write("small.toml", SPEC)
    with pytest.raises(SpecError, match="an epoch has 11 micro-batches, and 12 are to be probed"):
        prepare(spec, [probe(12)])
    prepare(spec, [probe(11)])
    with pytest.raises(SpecError, match="a probe looks at all stages at once, and 2 processes share them"):
        prepare(spec, [probe(2)], 2)
