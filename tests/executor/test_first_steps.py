"""The first steps of an optimizer, observed for parameters that it does not train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.errors import PluginError, RunFailed
from petra_graph.executor.first_steps import STEPS, FirstSteps
from petra_graph.executor.stage_update import Updater
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.kinds.plugin import build_plugin
from petra_graph.registry.registry import discover


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.spare = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return self.norm(self.linear(x)).sum(1).tanh().sum()


class Copies(torch.optim.SGD):
    """Has the right groups, and steps copies."""

    def __init__(self, parameters, lr) -> None:
        super().__init__(parameters, lr=lr)
        self.copies = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self):
        for copy in self.copies:
            copy.mul_(0.9)


class OnlyMatrices(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.dim() > 1:
                    parameter.data.add_(parameter.grad, alpha=-group["lr"])


def trained(optimizer=torch.optim.SGD, *, steps=STEPS, rate=lambda _: 0.1, block=None, deferred=False, before=None):
    """Return the block, its warnings and its updater, after some steps."""
    torch.manual_seed(0)
    block, said = block or Block(), []
    parameters = [p for p in block.parameters() if p.requires_grad]
    made = optimizer(parameters, lr=1.0)
    observed = FirstSteps({"mine": block}, parameters, 'optimizer "x" of y', deferred)
    observed.warn = said.append
    updater = Updater(parameters, made, rate, None, False, 'optimizer "x" of y', observed)
    if before:
        before(block)
    for _ in range(steps):
        block(torch.randn(8, 3)).backward()
        updater.accumulated()
        updater.step()
    return block, said, updater


UNUSED = (
    'no gradient has reached parameters "mine/spare.weight", "mine/spare.bias" in the first 3 updates of its stage: '
    "let the block use it in forward, or not have it"
)


def test_parameters_without_a_gradient_are_named_once():
    assert trained(steps=STEPS - 1)[1] == []
    assert trained(steps=STEPS)[1] == [UNUSED]
    assert trained(steps=STEPS + 4)[1] == [UNUSED]


def test_fewer_steps_are_judged_where_the_pipeline_drains():
    _, said, updater = trained(steps=1)
    updater.drained()
    updater.drained()
    assert said == [UNUSED.replace("3 updates", "1 update")]
    _, said, updater = trained(steps=0)
    updater.drained()
    assert said == []


@pytest.mark.parametrize("steps", [1, STEPS, STEPS + 2])
def test_it_changes_no_bit(steps):
    plain = Block()
    torch.manual_seed(0)
    plain = Block()
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    for _ in range(steps):
        plain(torch.randn(8, 3)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    state = torch.get_rng_state()
    block, _, _ = trained(steps=steps)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(*pair) for pair in zip(plain.state_dict().values(), block.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (Copies, 'parameters "mine/linear.weight", "mine/norm.bias", "mine/norm.weight"'),
        (OnlyMatrices, 'parameters "mine/norm.bias", "mine/norm.weight"'),
    ],
)
def test_an_optimizer_that_leaves_parameters_still(optimizer, named):
    """Their groups are right, and small parameters of the kit's may be treated rightly. A bias before a normalisation has no gradient."""
    with pytest.raises(PluginError) as raised:
        trained(optimizer)
    (problem,) = raised.value.problems
    assert problem.message == (
        f'optimizer "x" of y is broken: it leaves {named} still, though gradient and learning rate are not zero'
    )


def test_it_is_read_later_on_a_device_that_must_not_be_waited_for(monkeypatch):
    reads = []
    monkeypatch.setattr(
        "petra_graph.executor.first_steps.floats", lambda values: reads.append(len(values)) or [1.0] * len(values)
    )
    _, said, updater = trained(steps=STEPS + 2, deferred=True)
    assert (said, reads) == ([], [])
    updater.check()
    updater.check()
    updater.drained()
    assert (said, len(reads)) == ([UNUSED], 1)
    monkeypatch.undo()
    updater = trained(Copies, deferred=True)[2]
    with pytest.raises(PluginError, match="is broken: it leaves parameters"):
        updater.check()


def test_a_step_that_rounding_may_hide_is_not_judged():
    """A warm-up of 100,000 updates begins at a rate that moves no weight."""
    block, _, _ = trained(rate=lambda _: 1e-12)
    torch.manual_seed(0)
    assert torch.equal(block.norm.weight, Block().norm.weight)
    trained(OnlyMatrices, rate=lambda _: 0.0)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars", "muon", "soap"])
@pytest.mark.parametrize("rate", [1.0, 1e-2, 1e-5, 1e-8])
def test_the_first_party_s_optimizers_move_what_they_should(name, rate):
    plugin = discover().resolve(OPTIMIZER, name)
    block = Block()

    def build(parameters, lr):
        return build_plugin(plugin, parameter_groups([block]), plugin.declaration.options())

    trained(build, rate=lambda u: rate * (u + 1) / 3, block=block)


def test_a_parameter_that_a_block_makes_later():
    def makes(block):
        block.late = nn.Parameter(torch.ones(2))

    with pytest.raises(RunFailed) as raised:
        trained(before=makes)
    (problem,) = raised.value.problems
    assert problem.message == 'parameter "mine/late" was made after the block was built, so no optimizer has it'


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda group: group["params"].pop(0), 'parameter "mine/linear.weight" is in none of its groups'),
        (
            lambda group: group["params"].append(group["params"][0]),
            'parameter "mine/linear.weight" is in its groups more than once',
        ),
    ],
)
def test_groups_that_change_before_the_first_step(change, fault):
    def optimizer(parameters, lr):
        made = torch.optim.SGD(parameters, lr=lr)
        change(made.param_groups[0])
        return made

    with pytest.raises(PluginError) as raised:
        trained(optimizer)
    assert raised.value.problems[0].message == f'optimizer "x" of y is broken: {fault}'


def test_gradients_that_are_not_finite_or_sparse_are_not_judged():
    class Broken(Block):
        def forward(self, x):
            return super().forward(x) * float("nan")

    trained(block=Broken())

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(4, 2, sparse=True)

        def forward(self, x):
            return self.rows(x[:, 0].abs().long().clamp(max=3)).sum()

    trained(block=Rows())
