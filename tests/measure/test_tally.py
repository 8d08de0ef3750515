"""Live bytes follow storages, FLOPs shapes, traffic what kernels read and write; and torch's compiler is not imported for it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from petra_graph.measure.tally import LiveBytes, Tally, flops_of


def convolved():
    x = torch.zeros(2, 3, 8, 8, requires_grad=True)
    grouped, transposed = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.ConvTranspose2d(6, 4, 3, groups=2)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), grouped, transposed, nn.Flatten(2), nn.Linear(25, 5))

    def run():
        found = net(x)
        torch.baddbmm(found, found @ found.mT, found).sum().backward()

    return run


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flops_of_convolutions_and_products_are_those_of_torch(device):
    with torch.device("cpu"):
        run = convolved()
        with FlopCounterMode(display=False) as counter:
            run()
    with torch.device(device):
        run = convolved()
        with Tally() as tally:
            run()
    assert tally.lap().flops == counter.get_total_flops() > 0


BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 6, 5, 7, 4
ATTENDED = 2 * (2 * BATCH * HEADS * QUERIES * KEYS * WIDTH)
"""Two matrix products of so many multiplications and additions."""
ON_CPU = {"matrix products": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "as torch picks": None}


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no-gradients"])
@pytest.mark.parametrize("heads", [HEADS, 2], ids=["heads", "shared-heads"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("kernel", ON_CPU)
def test_flops_of_attention_are_the_same_whatever_kernel_runs(kernel, is_causal, heads, gradients):
    query = torch.zeros(BATCH, HEADS, QUERIES, WIDTH, requires_grad=gradients)
    key, value = (torch.zeros(BATCH, heads, KEYS, WIDTH, requires_grad=gradients) for _ in range(2))
    backend = ON_CPU[kernel]
    with nullcontext() if backend is None else sdpa_kernel(backend), Tally() as tally:
        try:
            output = functional.scaled_dot_product_attention(
                query, key, value, is_causal=is_causal, enable_gqa=heads < HEADS
            )
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            pytest.skip("this torch has no such kernel: 2.8 has none on the CPU for shared heads")
        assert tally.lap().flops == ATTENDED
        if gradients:
            output.sum().backward()
            assert tally.lap().flops == 2 * ATTENDED


def test_every_kernel_of_attention_that_torch_has_counts():
    """Those of other devices do not run here; torch names them all alike, and has query, key and value first."""
    query = torch.empty(BATCH, HEADS, QUERIES, WIDTH, device="meta")
    key, value = (torch.empty(BATCH, HEADS, KEYS, width, device="meta") for width in (WIDTH, 3))
    expected = sdpa_flop_count(query.shape, key.shape, value.shape)
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and "dot_product_" in name:
            packet, _, overload = name.removeprefix("aten::").partition(".")
            func = getattr(getattr(torch.ops.aten, packet), overload or "default")
            first = (query,) if packet.endswith("_backward") else ()
            found[packet] = flops_of(func, (*first, query, key, value), {}, None)
    assert found.pop("scaled_dot_product_attention") == 0  # it only picks
    forward = {name for name in found if not name.endswith("_backward")}
    assert {f"_scaled_dot_product_{one}_attention" for one in ("flash", "efficient", "cudnn")} < forward
    assert "_scaled_dot_product_flash_attention_for_cpu_backward" in found
    assert found == {name: expected if name in forward else 2 * expected for name in found}


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # the flags set all that there are
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("with_onednn", [True, False])
def test_flops_of_an_lstm_are_the_same_whatever_kernel_runs(with_onednn, has_bias):
    net = nn.LSTM(3, 4, num_layers=2, bias=has_bias, bidirectional=True, batch_first=True)
    initial = tuple(torch.zeros(4, 2, 4, requires_grad=True) for _ in range(2))
    samples = torch.zeros(2, 5, 3, requires_grad=True)
    forward = sum(2 * 2 * 5 * 16 * (inputs + 4) for inputs in (3, 3, 8, 8))
    with torch.backends.mkldnn.flags(enabled=with_onednn), Tally() as tally:
        output, _ = net(samples, initial)
        assert tally.lap().flops == forward
        output.sum().backward()
        assert tally.lap().flops == 2 * forward


def test_traffic_is_inputs_and_outputs_of_what_is_no_view():
    with Tally() as tally:
        x = torch.zeros(10)
        assert tally.lap().traffic_bytes == 40
        x.view(2, 5)
        torch.empty(100)
        assert tally.lap().traffic_bytes == 0
        y = x + x
        assert tally.lap().traffic_bytes == 120
        y.add_(1)
        assert tally.lap().traffic_bytes == 80


def test_a_sparse_gradient_is_its_indices_and_values():
    """The costs of `nn.Embedding(sparse=True)` could not be measured, since a sparse tensor has no storage."""
    table = nn.Embedding(1000, 8, sparse=True)
    with Tally() as tally:
        for _ in range(2):
            table(torch.zeros(3, dtype=torch.int64)).sum().backward()
        lap = tally.lap()
    assert table.weight.grad.is_sparse
    assert 0 < lap.working_bytes < table.weight.nbytes


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_storage_counts_from_its_making_to_its_end(device):
    with LiveBytes() as live:
        one = torch.zeros(10, device=device)
        assert live.live == 40
        two = one + 1
        assert live.live == 80
        del one
        assert live.live == 40
        del two
    assert (live.live, live.peak) == (0, 80)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_and_changes_in_place_are_free(device):
    with LiveBytes() as live:
        whole = torch.zeros(10, device=device)
        kept = (whole[:5], whole.view(2, 5), whole.add_(1))
        assert live.live == 40
        del whole
        assert live.live == 40
        del kept
    assert (live.live, live.peak) == (0, 40)


# --- torch's compiler ---


SCRIPT = """
import sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from petra_graph.measure.without_compiler import uncompiled

def step():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    optimizer.step()
    return parameter.detach().tolist()

with uncompiled():
    inside = step()
    with FakeTensorMode():
        torch.zeros(2) + torch.zeros(2)
    # A library's own operators look for the file of every module, here while the library is still imported.
    import inspect
    inspect.getmodule(step.__code__)
    assert not hasattr(sys.modules["torch._dynamo"], "__file__")
assert "torch._dynamo" not in sys.modules
with uncompiled():
    import torch._dynamo as it
    marked = torch.compiler.disable(recursive=False)(step)
    assert marked() == inside and marked is not step
    assert callable(it.trace_rules.lookup)
    assert it.is_compiling() is False
assert step() == inside
import torch._dynamo
assert torch._dynamo.__file__
assert torch._dynamo.config.fake_tensor_cache_enabled
assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
"""


@pytest.mark.processes
def test_the_compiler_is_imported_only_for_more_than_marks():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
