"""`petra_graph.reversible` is plain autograd in everything but its memory."""

import copy
import gc
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from petra_graph.autograd import reversible
from petra_graph.measure.tally import LiveBytes
from tests.support.sequences import FEATURES, branch, expect_plain, gradients, inputs, sequence

COUPLINGS = ["additive", "affine", "momentum"]

# --- gradients -------------------------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(depth=st.integers(1, 6), seed=st.integers(0, 2**32), batch=st.integers(2, 5))
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_gradients_masks_and_statistics_are_plain_autograds(coupling, depth, seed, batch):
    torch.manual_seed(seed)
    expect_plain(sequence(coupling, depth), inputs(batch, seed))
    expect_plain(sequence(coupling, depth).eval(), inputs(batch, seed))


@pytest.mark.parametrize("split", [None, 1, -1])
def test_pairs_of_functions_are_a_transformers_block(split):
    wide = torch.randn(4, 2 * FEATURES, dtype=torch.float64, requires_grad=True)
    expect_plain(sequence(pairs=True, split=split), inputs() if split is None else wide)


class Attends(nn.Module):
    """It reads a mask, an optional bias, and another tensor with a gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x, memory, *, mask, scale=None, name="none"):
        assert name in {"none", "given"}
        assert not mask.requires_grad
        value = (self.linear(x) * memory + memory) * mask
        return value if scale is None else value * scale["by"]


@pytest.mark.parametrize("coupling", ["additive", "momentum"])
def test_functions_read_masks_and_other_tensors(coupling):
    """Gradients of what requires one are summed over all blocks; a mask in floating point gets none."""
    torch.manual_seed(0)
    made = reversible([Attends() for _ in range(3)], coupling=coupling).double()
    x, memory = inputs(), inputs(seed=1)
    for mask in (torch.rand(4, 1) > 0.3, torch.rand(4, 1, dtype=torch.float64)):
        expect_plain(made, x, memory, mask=mask, name="given")
    expect_plain(reversible([(Attends(), Attends()) for _ in range(3)]).double(), x, memory, mask=mask)


def frozen_and_shared():
    shared = branch(dropout=0.0)
    made = [shared, branch(), shared]
    made[1][0].weight.requires_grad_(requires_grad=False)
    return made


def normalised():
    """Their buffers, which the recomputation hides, were put back before it ran: each forward counted twice."""
    return [nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Conv1d(4, 4, 1)) for _ in range(2)]


@pytest.mark.parametrize(
    ("functions", "x"),
    [
        (frozen_and_shared, inputs()),
        (frozen_and_shared, inputs().detach()),  # only parameters need a gradient
        (normalised, torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)),
    ],
)
def test_functions_and_blocks_of_ones_own(functions, x):
    expect_plain(reversible(functions()).double(), x)


class Inner(nn.Module):
    """A residual function that is a reversible network itself."""

    def __init__(self, dropout=0.5, **settings):
        super().__init__()
        self.inner = reversible([branch(dropout=dropout) for _ in range(2)], **settings)

    def forward(self, x):
        return self.inner(x) - x


class Reentrant(Inner):
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=True)


@pytest.mark.parametrize(
    "network",
    [
        lambda: reversible([Inner() for _ in range(2)]),
        lambda: reversible([reversible([branch()]) for _ in range(2)]),  # sequences stand among functions as they are
        Reentrant,
    ],
)
def test_a_sequence_that_runs_again_draws_the_masks_of_its_forward(network):
    """It trained on others: the gradient was not that of the forward."""
    made = network().double().eval()
    for part in made.modules():
        part.train(not isinstance(part, nn.BatchNorm1d))
    x, direction = torch.randn(2, 4, FEATURES, dtype=torch.float64)

    def loss(at):
        torch.manual_seed(5)
        return made(at).square().sum()

    given = x.clone().requires_grad_()
    loss(given).backward()
    above, below = ((x + sign * 1e-6 * direction).requires_grad_() for sign in (1, -1))
    slope = (loss(above) - loss(below)) / 2e-6
    torch.testing.assert_close((given.grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


# --- memory and work -------------------------------------------------------------------------------------------------


def saved_bytes(made, x):
    """Return how much the forward keeps for the backward, parameters left out."""
    kept = {}

    def keep(tensor):
        if not isinstance(tensor, nn.Parameter) and tensor.dim():
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = made(x)
    output.sum().backward()
    return sum(kept.values())


def test_no_depth_changes_what_the_forward_keeps():
    two_streams = 2 * inputs(64).nbytes
    assert [saved_bytes(sequence(depth=depth), inputs(64)) for depth in (1, 4, 16)] == [two_streams] * 3
    plain = [saved_bytes(sequence(depth=depth, keep_graphs=depth), inputs(64)) for depth in (4, 16)]
    assert plain[1] > 3.5 * plain[0]


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_nothing_is_left_in_a_cycle(coupling):
    """Memory is free at once, without the garbage collector, with a backward and without one."""
    made = sequence(coupling)
    gc.collect()
    gc.disable()
    try:
        with LiveBytes() as live:
            for backward in (False, True):
                output = made(inputs(64))
                if backward:
                    output.sum().backward()
                    made.zero_grad()
                del output
                assert live.live == 0
    finally:
        gc.enable()


def test_anchors_keep_two_tensors_a_stretch():
    assert saved_bytes(sequence(depth=12, anchor_every=3), inputs(64)) == 4 * 2 * inputs(64).nbytes
    expect_plain(sequence(depth=7, anchor_every=3), inputs())


def test_some_of_the_last_blocks_may_keep_their_graph():
    made = sequence(depth=5)
    assert saved_bytes(made, inputs(64)) < saved_bytes(sequence(depth=5, keep_graphs=2), inputs(64))
    results = [gradients(copy.deepcopy(made), inputs(), keep_graphs=kept) for kept in (0, 2, 5)]
    for (_, found, _), (_, other, _) in pairwise(results):
        for pair in zip(found, other, strict=True):
            torch.testing.assert_close(*pair, rtol=1e-11, atol=1e-11)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(FEATURES, FEATURES), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x).tanh()


def test_each_function_runs_twice_a_step_and_once_in_an_evaluation():
    functions = [(Counted(), Counted()) for _ in range(3)]
    made = reversible(functions)
    made(torch.randn(2, FEATURES)).sum().backward()
    assert {part.calls for pair in functions for part in pair} == {2}
    with torch.no_grad():
        made(torch.randn(2, FEATURES))
    assert {part.calls for pair in functions for part in pair} == {3}


# --- evaluation, random numbers, copies ------------------------------------------------------------------------------


def test_without_gradients_it_is_a_plain_loop():
    """No generator moves, so that an evaluation changes no training beside it, and no node is made."""
    made, x = sequence().eval(), inputs()
    before = torch.get_rng_state()
    with torch.no_grad():
        output = made(x)
    assert torch.equal(torch.get_rng_state(), before)
    a = b = x.detach()
    for block in made:
        a, b = block(a, b)
    assert torch.equal(output, (a + b) / 2)
    assert not made.requires_grad_(requires_grad=False)(x.detach()).requires_grad


def test_masks_of_two_forwards_differ_and_follow_the_seed():
    made, x = sequence(dropout=0.5), inputs()
    torch.manual_seed(3)
    first, second = made(x), made(x)
    torch.manual_seed(3)
    assert torch.equal(made(x), first)
    assert not torch.equal(first, second)


def test_a_hook_of_a_parameter_runs_once_and_may_change_the_gradient():
    made, calls = sequence(dropout=0.0), []
    plain = copy.deepcopy(made)
    plain.keep_graphs = len(plain)
    for parameter in made.parameters():
        parameter.register_hook(lambda gradient: (calls.append(1), gradient * 3)[1])
    for one in (made, plain):
        one(inputs()).square().sum().backward()
    assert len(calls) == len(list(made.parameters()))
    for one, other in zip(made.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, 3 * other.grad, rtol=1e-11, atol=1e-11)


def test_parameters_may_be_given_from_outside():
    """As meta-learning and ensembles do it."""
    made, found = sequence(dropout=0.0).eval(), []
    given = {name: (value * 1.1).detach().requires_grad_() for name, value in made.named_parameters()}
    for keep in (0, len(made)):
        made.keep_graphs = keep
        scaled = {name: value * 1.0 for name, value in given.items()}
        output = torch.func.functional_call(made, scaled, (inputs(),))
        found.append(torch.autograd.grad(output.sum(), list(given.values())))
    close(*found, 1e-11)


# --- types and compilers ---------------------------------------------------------------------------------------------


def close(found, expected, tolerance):
    size = max(float(one.abs().max()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_under_autocast_gradients_are_plain_autograds(coupling):
    """Torch before 2.10 lost the gradients of weights that a pass without a graph had cast first."""
    made = sequence(coupling, dropout=0.0).float()
    for block in made:
        block.function[1] = nn.Identity()
    stem, found = nn.Linear(FEATURES, FEATURES), []
    for keep in (0, len(made)):
        made.keep_graphs = keep
        with torch.autocast("cpu", torch.bfloat16):
            output = made(stem(inputs().float()))
            assert output.dtype == torch.bfloat16
            tied = nn.functional.linear(output, made[0].function[0].weight)
        made.zero_grad()
        tied.float().square().mean().backward()
        found.append([parameter.grad for parameter in made.parameters()])
    assert all(one is not None and one.isfinite().all() for one in found[0])
    close(*found, 2e-2)


def test_autocast_of_the_forward_holds_in_the_backward_whatever_holds_around_it():
    made, x, seen = reversible([Counted()]), torch.randn(2, FEATURES), []
    made[0].function.linear.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = made(x).float().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=not enabled):
            loss.backward()
    assert seen == [torch.bfloat16] * 2 + [torch.float32] * 2


def test_streams_in_half_precision_are_reconstructed_in_float32():
    """Functions read them in the type that came in; the result has it too."""
    made = reversible([Counted() for _ in range(24)]).bfloat16()
    x = torch.randn(8, FEATURES, dtype=torch.bfloat16, requires_grad=True)
    output, found, _ = gradients(made, x)
    assert output.dtype == torch.bfloat16
    for one, expected in zip(found, gradients(made, x, keep_graphs=len(made))[1], strict=True):
        close([one], [expected], 1e-2)  # each by its own size: reconstructed in half precision, the worst is 4 % off


def test_a_program_may_be_recorded():
    made, x = sequence(dropout=0.0).eval(), inputs().detach()
    torch.testing.assert_close(torch.export.export(made, (x,)).module()(x), made(x))


def test_compiled_functions_run_compiled_and_a_compiler_around_leaves_the_reversal_alone():
    runs = []

    def backend(graph, _):
        return lambda *arguments: (runs.append(torch.is_grad_enabled()), graph(*arguments))[1]

    class Bent(nn.Linear):
        """Torch 2.8 compiles no call of a module that is all its own."""

        def forward(self, x):
            return super().forward(x).tanh()

    made = reversible([Bent(FEATURES, FEATURES) for _ in range(2)]).double()
    expected, around = gradients(made, inputs())[1], torch.compile(copy.deepcopy(made), backend=backend)
    torch._dynamo.reset()
    close(gradients(around, inputs())[1], expected, 1e-11)
    runs.clear()
    for block in made:
        block.function.compile(backend=backend)
    close(gradients(made, inputs())[1], expected, 1e-11)
    assert runs == [False, False, True, True]
    torch._dynamo.reset()
