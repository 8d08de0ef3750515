"""A stage's update: average, clip, learning rate, and steps in a few calls that have the bits of torch's own."""

import attrs
import pytest
import torch
from attrs import evolve
from torch import nn
from torch.nn.functional import cross_entropy

from petra_graph.errors import RunFailed
from petra_graph.executor.update import Updater, horizon, learning_rate, step_of
from petra_graph.plugins.stage_facts import DELAYED, UNDELAYED, Horizon
from petra_graph.spec.model import ClipSpec, DataSpec, LrScheduleSpec, MethodSpec, RunSpec, Spec
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


def spec(*, batch=64, accumulation=1, epochs=1, **schedule) -> Spec:
    return Spec(
        data=DataSpec(name="random", batch=batch),
        method=MethodSpec(accumulation=accumulation),
        run=RunSpec(epochs=epochs),
        lr_schedule=LrScheduleSpec(**schedule),
    )


def rates(given: Spec, count: int, *, base: float = 0.1, stage=UNDELAYED) -> list[float]:
    rate = learning_rate(given, base, lambda _: 1.0, horizon(given, 8), stage)
    return [rate(update) for update in range(count)]


@pytest.mark.parametrize(
    ("micro_batches", "accumulation", "epochs", "warmup_epochs", "expected"),
    [
        (8, 4, 3, 0, (6, 2, 0)),
        (9, 4, 3, 0, (9, 3, 0)),  # the last window of each epoch is shorter, and yet an update
        (8, 2, 5, 0.6, (20, 4, 2)),
        (3, 8, 2, 1, (2, 1, 1)),
    ],
)
def test_horizon(micro_batches, accumulation, epochs, warmup_epochs, expected):
    given = spec(accumulation=accumulation, epochs=epochs, warmup_epochs=warmup_epochs)
    updates, per_epoch, warmup = expected
    assert horizon(given, micro_batches) == Horizon(updates=updates, updates_per_epoch=per_epoch, warmup_updates=warmup)


def test_warm_up_over_w_updates_is_u_plus_1_over_w():
    assert rates(spec(warmup_epochs=0.5), 6) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


@pytest.mark.parametrize(("batch", "accumulation", "scale"), [(64, 4, 1), (256, 1, 1), (64, 16, 4), (32, 1, 1 / 8)])
def test_goyal_scales_by_samples_in_an_update_over_256(batch, accumulation, scale):
    given = spec(batch=batch, accumulation=accumulation, scaling="goyal")
    assert rates(given, 1) == pytest.approx([0.1 * scale])
    assert rates(attrs.evolve(given, lr_schedule=LrScheduleSpec(scaling="none")), 1) == [0.1]
    replicas = attrs.evolve(given, partition=attrs.evolve(given.partition, replicas=3))
    assert rates(replicas, 1) == pytest.approx([0.3 * scale])


SETTINGS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    (torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
    (torch.optim.Adam, {"weight_decay": 1e-2}),
    (torch.optim.AdamW, {"betas": (0.8, 0.99), "eps": 1e-6}),
]


def trained(kind, options, own: bool, steps: int = 6):
    """Groups have one rate at every other step, and are then stepped as one."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (7,), (4, 3, 3, 3))]
    parameters[2].data = parameters[2].data.contiguous(memory_format=torch.channels_last)
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0}]
    for group in groups:
        group["mask"] = torch.ones(3)  # an author's own
    optimizer = kind(groups, lr=0.1, **options)
    optimizer.defaults["mask"] = torch.ones(3)
    step = step_of(optimizer) if own else optimizer.step
    assert own == (step != optimizer.step)
    for at in range(steps):
        for ratio, group in enumerate(optimizer.param_groups, start=1):
            group["lr"] = 0.1 / (1 + at) * ratio ** (at % 2)
        for index, one in enumerate(parameters):
            one.grad = torch.randn_like(one) if at or index else None  # the first one's first step comes later
        step()
    return parameters, optimizer


@pytest.mark.parametrize(("kind", "options"), SETTINGS)
def test_bits_and_state_are_those_of_torch(kind, options):
    parameters, optimizer = trained(kind, options, own=True)
    expected, of_torch = trained(kind, options, own=False)
    for one, other in zip(parameters, expected, strict=True):
        assert torch.equal(one, other)
        state, known = optimizer.state.get(one, {}), of_torch.state.get(other, {})
        assert state.keys() == known.keys()
        for key, value in known.items():
            assert torch.equal(state[key], value)
            assert (state[key].dtype, state[key].stride()) == (value.dtype, value.stride())


def test_what_is_not_torchs_arithmetic_or_has_a_hook_keeps_torchs_own_way():
    class Doubled(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    p, called = parameter(1.0, gradient=(1.0,)), []
    for optimizer in (Doubled([p], lr=0.1), torch.optim.NAdam([p])):
        assert step_of(optimizer) == optimizer.step
    optimizer = torch.optim.SGD([p], lr=0.1)
    step = step_of(optimizer)
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    step()
    assert (called, p.item()) == ([1], 0.9)
