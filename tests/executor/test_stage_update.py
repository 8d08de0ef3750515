"""A stage's update: average, clip, learning rate, step."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.nn.functional import cross_entropy

from petra_graph.errors import RunFailed
from petra_graph.executor.update import Updater
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.spec.model import ClipSpec
from tests.support.pipelines import CHAIN, batches, pipeline, plain_network, relative_error

ROUNDING = 1e-12
TORCHS_NORM_GUARD = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by the norm plus this."""


def parameter(*values: float, gradient: tuple[float, ...] | None = None) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    made.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    return made


def updater(parameters, clip: ClipSpec) -> Updater:
    return Updater(parameters, torch.optim.SGD(parameters, lr=1.0), lambda _: 1.0, clip)


@pytest.mark.parametrize("early", [False, True])
def test_a_group_with_that_key_has_the_delay_of_its_window_beside_the_rate(early):
    """Depth 4, k = 2, five micro-batches, and then again; where the norm of all stages is asked for, the window is averaged before the step."""
    p = [parameter(0.0), parameter(0.0), parameter(0.0)]
    others = [{"params": [one], "staleness": 0.0} for one in p[:2]]
    optimizer = torch.optim.SGD([*others, {"params": p[2:]}], lr=1.0)
    stage = evolve(DELAYED, accumulation=2, micro_batches=5)
    made = Updater(p, optimizer, lambda u: 0.5**u, None, stage=stage)
    found = []
    for window in ([0, 1], [2, 3], [4], [5, 6], [7, 8], [9]):
        for m in window:
            made.accumulated(m)
        if early:
            made.squared_norm()
        made.step()
        assert optimizer.param_groups[0]["staleness"] == optimizer.param_groups[1]["staleness"]
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["staleness"]))
    late = [0.0, 1.0, 2.0] * 2
    assert "staleness" not in optimizer.param_groups[2]
    assert found == [(0.5**u, late[u]) for u in range(6)]
    made.filled(12)
    assert [made.stage.staleness(m) for m in (12, 13, 14)] == [0, 0, 1]


NORM = torch.tensor(50.0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("clip", "norm", "expected"),
    [
        ({"by": "value", "limit": 1.0}, None, [-1.0, 1.0]),
        ({"limit": 1.0}, None, [-0.6, 0.8]),
        ({"limit": 5.0, "scope": "global"}, NORM, [-0.3, 0.4]),
        ({"limit": 100.0}, None, [-3.0, 4.0]),  # below the limit nothing is clipped
        ({"limit": 100.0, "scope": "global"}, NORM, [-3.0, 4.0]),
    ],
)
def test_clipping(clip, norm, expected):
    """By value, by the norm of a stage's parameters together, and by that of all stages."""
    one, other = parameter(0.0, gradient=(3.0,)), parameter(0.0, gradient=(-4.0,))
    updater([one, other], clip=ClipSpec(**clip)).step(norm)
    assert [one.item(), other.item()] == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("norm", [None, torch.tensor(float("inf"))])
def test_a_norm_that_is_not_finite_leaves_the_parameters_alone(norm):
    p = parameter(1.0, 2.0, gradient=(3.0, float("nan")))
    made = updater([p], clip=ClipSpec(limit=5.0))
    with pytest.raises(RunFailed, match=r"update 1: the norm of the gradient is (nan|inf), and cannot be clipped"):
        made.step(norm)
    assert (p.tolist(), made.updates) == ([1.0, 2.0], 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf")])
def test_read_later_a_gradient_that_is_not_finite_is_zeros_for_the_whole_stage(bad, dtype):
    """Where the host does not wait for the norm; finite gradients keep their bits, whatever their sign and layout."""
    one = nn.Parameter(torch.zeros(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last))
    other = nn.Parameter(torch.zeros(3, dtype=dtype))
    one.grad = torch.randn(one.shape, dtype=dtype).to(memory_format=torch.channels_last)
    other.grad = torch.tensor([-0.0, 1e-30, -2.5], dtype=dtype)
    if bad is not None:
        other.grad[1] = bad
    expected = [torch.zeros_like(p.grad) if bad else -p.grad for p in (one, other)]
    made = Updater([one, other], torch.optim.SGD([one, other], lr=1.0), lambda _: 1.0, None, read_interval=2)
    made.step()
    assert all(torch.equal(p.detach(), value) for p, value in zip((one, other), expected, strict=True))
    if bad is None:
        made.check()
        return
    with pytest.raises(RunFailed, match=r"update 1: the norm of the gradient is (nan|inf)"):
        made.check()


def plain_updates(built, data, accumulation, limit, lr=0.05):
    modules, forward = plain_network(built)
    every = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.SGD(every, lr=lr, momentum=0.9, nesterov=True)
    for start in range(0, len(data), accumulation):
        window = data[start : start + accumulation]
        optimizer.zero_grad()
        for x, target in window:
            (cross_entropy(forward(x), target) / len(window)).backward()
        assert nn.utils.clip_grad_norm_(every, limit) > limit, "nothing would be clipped"
        optimizer.step()
    return {f"{name}/{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


@pytest.mark.parametrize(("method", "schedule", "accumulation"), [("backprop", None, 1), ("petra", "sequential", 3)])
def test_the_global_norm_is_torchs_over_all_parameters(method, schedule, accumulation):
    limit = 0.05
    data = batches((8,), 7)
    clip = ClipSpec(limit=limit, scope="global")
    how = {"method": method, "schedule": schedule, "accumulation": accumulation}
    built = pipeline(CHAIN, (8,), **how, clip=clip, weight_decay=0.0)
    expected = plain_updates(built, data, accumulation, limit)
    built.train(data)
    assert relative_error(built.parameters(), expected) < TORCHS_NORM_GUARD / limit
