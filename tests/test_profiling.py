"""Profiles: what is timed, and what a plan makes of it. How long things take is not asserted."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from petra_graph import profiling
from petra_graph.errors import SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import write_profile
from petra_graph.planning.plan_spec import Planner
from petra_graph.profiling import Stopwatch, profile
from petra_graph.program.node_costs import Profile
from tests.support.runs import SPEC


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "small.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture(scope="module")
def taken(spec):
    return profile(spec, ["method.schedule=1f1b"], 2)


@pytest.fixture(scope="module")
def planned(spec):
    """Plan with a profile, or what stands in its file, and with changes; the network is measured once."""
    file = Path(spec).with_name("p.json")
    given = f"partition.profile={file}"
    planner = Planner(spec, [given])

    def plan_with(made, *changes):
        write_profile(file, made) if isinstance(made, Profile) else file.write_text(json.dumps(made))
        return planner.plan(check_spec(spec, [given, *changes]).spec)

    return plan_with


def as_json(made, here):
    write_profile(here / "p.json", made)
    return json.loads((here / "p.json").read_text())


def test_every_operation_that_a_method_may_need(taken):
    assert set(taken.nodes) == {"stem", "rev.0", "rev.1", "head"}
    reversible = {"forward", "reverse", "recompute", "record", "replay", "invert", "copy", "update"}
    assert set(taken.nodes["rev.0"]) == reversible
    assert set(taken.nodes["stem"]) == {"forward", "recompute", "record", "replay", "copy", "update"}
    assert set(taken.nodes["head"]) == {"forward_backward", "update"}
    assert all(seconds >= 0 for node in taken.nodes.values() for seconds in node.values())
    assert (taken.micro_batch, taken.threads, taken.device_type) == (128, 1, "cpu")
    assert taken.link.latency_seconds < 64 * 2**20 / taken.link.bytes_per_second


def test_a_plan_adds_its_times_up(taken, planned):
    document = planned(taken).as_json()
    stem, first, second, head = document["stages"]
    nodes = taken.nodes
    assert stem["seconds"]["forward"] == pytest.approx(nodes["stem"]["forward"] + taken.outside)
    assert stem["seconds"]["backward"] == pytest.approx(nodes["stem"]["recompute"])
    assert first["seconds"]["backward"] == pytest.approx(nodes["rev.0"]["reverse"])
    assert second["seconds"]["update"] == pytest.approx(nodes["rev.1"]["update"])
    assert head["seconds"] == pytest.approx(
        {"forward": nodes["head"]["forward_backward"], "backward": 0, "update": nodes["head"]["update"], "exchange": 0}
    )
    assert document["certainty"].startswith("measured in a profile")
    more = evolve(taken, nodes={**nodes, "gone": nodes["stem"]})
    assert planned(more).timing == planned(taken).timing


def on_a_gpu(taken, **changes):
    """The profile as if it were a GPU's, whose host takes three times as long as it does."""
    host = {name: {key: 3 * seconds for key, seconds in own.items()} for name, own in taken.nodes.items()}
    return evolve(taken, kind="cuda", device="an H100", device_type="h100", host=host, **changes)


ON_H100 = "partition.device_type=h100"


def test_a_plan_takes_the_longer_of_the_host_and_the_device(taken, planned):
    """A device that does everything has its host ahead: the longer of their sums counts."""
    made = on_a_gpu(taken)
    steps = [own["update"] for own in made.host.values()]
    host = made.outside + sum(
        made.host[name][operation]
        for name in made.nodes
        for operation in (
            {"head": ["forward_backward"], "stem": ["forward", "recompute"]}.get(name, ["forward", "reverse"])
        )
    )
    together = planned(made, ON_H100, "method.accumulation=1")
    assert together.timing.tick_seconds == pytest.approx(host + sum(steps))
    assert sum(one.seconds.per_micro_batch(1) for one in together.stages) == pytest.approx(together.timing.tick_seconds)
    apart = planned(made, ON_H100, "method.accumulation=1", "partition.devices=4", "partition.stages=per-block")
    stem, first, *_ = (stage.seconds for stage in apart.stages)
    assert first.forward == pytest.approx(made.host["rev.0"]["forward"])
    assert stem.update == pytest.approx(made.nodes["stem"]["update"] + sum(steps) / 4)


def test_what_kernels_allocate_inside_themselves_is_planned(taken, planned):
    without = planned(on_a_gpu(taken), ON_H100).totals.bytes
    workspace = {name: dict.fromkeys(own, 2**30) for name, own in taken.nodes.items()}
    prediction = planned(on_a_gpu(taken, workspace=workspace), ON_H100)
    assert prediction.totals.bytes.total == without.total + 2**30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch": 64}, "micro-batches of 64, not 128"),
        ({"settings": {"precision": {"compute": "bfloat16"}}}, "the profile is of [precision] = "),
        ({"nodes": {}}, 'has no node "stem"'),
        ({"threads": 2}, "run.threads = 2, not 1"),
        ({"format": 2}, "p.json is a profile of format 2, and this petra-graph reads format 4"),
        ({"workspace": {"stem": 1}}, "is not a profile"),
        ({"kind": "cuda"}, 'a device of kind "cuda", not "cpu"'),
        ({"sizes": {"stem": [1, 2]}}, 'node "stem" has other sizes'),
    ],
)
def test_a_profile_of_something_else(taken, planned, here, change, message):
    with pytest.raises(SpecError) as caught:
        planned(as_json(taken, here) | change)
    assert message in str(caught.value)
    assert re.match(r"--set partition\.profile=.*p\.json: ", str(caught.value))


def test_a_profile_of_nodes_of_another_kind(taken, planned):
    """What was not timed took no time in a plan."""
    with pytest.raises(SpecError, match=r'has not timed invert, reverse of node "rev.0"'):
        planned(evolve(taken, nodes={**taken.nodes, "rev.0": taken.nodes["stem"]}))


class PretendedGpu:
    """Has 100 bytes of tensors; a kernel allocates 7 more for itself, and leaves 5 bytes behind."""

    def __init__(self, monkeypatch):
        self.slept, self.tensors, self.most = [], 100, 0
        event = SimpleNamespace(record=lambda: None, elapsed_time=lambda _: 250)
        pretended = {
            "_sleep": lambda cycles: self.slept.append(cycles / 2e9),
            "Event": lambda **_: event,
            "memory_allocated": lambda _: self.tensors,
            "max_memory_allocated": lambda _: self.most,
            "reset_peak_memory_stats": lambda _: setattr(self, "most", self.tensors),
        }
        for name, one in pretended.items():
            monkeypatch.setattr(torch.cuda, name, one)
        monkeypatch.setattr(profiling, "wait_for", lambda _: None)

    def kernel(self):
        self.most = max(self.most, self.tensors + 7)
        self.tensors += 5


@pytest.fixture
def gpu(monkeypatch):
    return PretendedGpu(monkeypatch)


@pytest.fixture
def watch(gpu):
    return Stopwatch(torch.device("cuda"))


def test_the_device_and_its_host_are_timed_apart(watch):
    for _ in range(3):
        with watch.forward(0, None):
            time.sleep(0.002)
    assert watch.times["forward"] == [0.25] * 3
    assert min(watch.host_times["forward"]) >= 0.002
    assert watch.inside >= sum(watch.host_times["forward"])


def test_the_gpu_sleeps_until_its_host_has_queued_the_operation(watch, gpu):
    for _ in range(2):
        with watch.backward(0):
            time.sleep(0.002)
    first, second = gpu.slept
    assert first == 0.0
    assert second == pytest.approx(2 * watch.host_times["backward"][0])
    with watch.update():  # of another kind: not yet known
        time.sleep(0.2)
    with watch.update():
        pass
    assert gpu.slept[2:] == [0.0, 0.05]


def test_a_workspace_is_what_is_allocated_while_a_kernel_is_called(watch, gpu):
    watch.weighs = True
    with watch.update():
        gpu.kernel()
        torch.zeros(1)  # The tensors of the first kernel, 105 bytes, are seen here.
        gpu.kernel()  # It has 112 bytes while it works.
        torch.zeros(1)
    assert watch.workspace == {"update": 2}
    assert not watch.times
    watch.weighs = False
    with watch.update():
        gpu.kernel()
    assert watch.workspace == {"update": 2}
