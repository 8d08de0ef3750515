"""Numerics of a stage: memory format, precision, samples, random keys; narrow convolutions on processors without AVX-512."""

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Reversible
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.plugins.data_set import DataFacts
from petra_graph.runtime.channels import LocalChannel
from petra_graph.spec.model import PrecisionSpec
from tests.support.pipelines import CHAIN, REVNET, batches, node, pipeline

CPU = torch.device("cpu")
IMAGE = (3, 6, 6)


def numerics(compute="float32", **more) -> NumericsContext:
    return NumericsContext(**{"device": CPU, "precision": PrecisionSpec(compute=compute), "seed": 0, **more})


@pytest.fixture
def messages(monkeypatch):
    """Every tensor that goes over a channel between stages, as it is sent."""
    seen: list[torch.Tensor] = []
    init = LocalChannel.__init__

    def recorded(channel):
        init(channel)
        send = channel.send

        def recording(message):
            seen.extend(value for value in message if value.dim() > 1)  # without the weight of the targets
            send(message)

        channel.send = recording

    monkeypatch.setattr(LocalChannel, "__init__", recorded)
    return seen


def images(count: int):
    return [(x.float().contiguous(memory_format=torch.channels_last), target) for x, target in batches(IMAGE, count)]


@pytest.mark.parametrize("method", ["petra", "backprop"])
def test_every_channel_carries_channels_last_in_float32(messages, method):
    nodes = (*REVNET[:5], node("join", "add", inputs=["b0", "down"]), REVNET[5])
    pipeline(nodes, IMAGE, method=method, compute="float32").train(images(10))
    spatial = [tensor for tensor in messages if tensor.dim() == 4]
    assert len(spatial) > 100
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in spatial)
    assert not any(tensor.is_contiguous() for tensor in spatial), "a layout that is both shows nothing"
    assert {tensor.dtype for tensor in messages} == {torch.float32}
    assert not any(tensor.requires_grad for tensor in messages)


def test_images_become_sample_over_255_minus_mean_over_std_and_others_have_the_streams_type():
    sample = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    prepared = numerics("float64", facts=DataFacts(shape=(3, 4, 4), mean=mean, std=std)).prepare(sample)
    for channel in range(3):
        expected = (sample[:, channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(prepared[:, channel], expected, rtol=1e-15, atol=1e-15)
    assert prepared.is_contiguous(memory_format=torch.channels_last)
    assert numerics("float64").prepare(torch.zeros(2, 3)).dtype == torch.float64
    assert numerics().prepare(torch.zeros(2, 3, dtype=torch.int64)).dtype == torch.int64


def test_bfloat16_runs_f_in_bfloat16_and_streams_in_float32(messages):
    built = pipeline(REVNET, IMAGE, compute="bfloat16")
    inside: dict[str, set[tuple[torch.dtype, bool]]] = {}
    for executor in built.executors:
        for name, module in executor.modules.items():
            for part in (one for one in module.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)):
                seen = inside.setdefault(name, set())
                part.register_forward_hook(lambda _, __, out, seen=seen: seen.add((out.dtype, out.requires_grad)))
    (result, *_) = built.train(images(6))
    assert {tensor.dtype for tensor in messages} == {torch.float32}
    assert result.loss.dtype == torch.float32
    for name, seen in inside.items():
        assert seen == {(torch.bfloat16, with_graph) for with_graph in ({True} if name == "head" else {False, True})}
    assert {p.dtype for executor in built.executors for p in executor.updater.parameters} == {torch.float32}


class InvertedBySubtraction(Reversible):
    """A block with the default backward: the weight is cast by the inverse, and again by the forward after it."""

    streams = 2

    def __init__(self) -> None:
        super().__init__(((6,), (6,)))
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x, t):
        return t + self.linear(x), x

    def inverse(self, y, s):
        return s, y - self.linear(s)


def test_where_a_block_says_so_a_buffer_keeps_its_type_and_gradients_of_embeddings_are_dense():
    """Sparse ones failed with Adam, with replicas, and where they were clipped by value."""
    block = InvertedBySubtraction()
    block.keep_dtype, block.table = ("kept",), nn.Embedding(4, 3, sparse=True)
    for name in ("kept", "other"):
        block.register_buffer(name, torch.zeros(2, dtype=torch.float64))
    placed = place(block, numerics())
    assert (placed.kept.dtype, placed.other.dtype) == (torch.float64, torch.float32)
    placed.table(torch.tensor([1])).sum().backward()
    assert not placed.table.weight.grad.is_sparse


def test_parameters_get_gradients_after_an_inverse_in_bfloat16():
    """Autocast on torch before 2.10 kept the weight that the inverse had cast without a graph: its gradient was None."""
    block = InvertedBySubtraction()
    with numerics("bfloat16").node("a", 0):
        assert not torch.is_autocast_cache_enabled(), "a newer torch is right with it, an older one is not"
        block.reverse_vjp((torch.randn(4, 6), torch.randn(4, 6)), (torch.ones(4, 6), torch.ones(4, 6)))
    assert block.linear.weight.grad is not None
    assert block.linear.weight.grad.any()


def test_the_key_of_a_node_depends_on_seed_node_micro_batch_and_replica():
    def draw(name="a", micro_batch=0, **more) -> float:
        with numerics(**more).node(name, micro_batch):
            return torch.rand(()).item()

    drawn = [draw(), draw(name="b"), draw(micro_batch=1), draw(replica=1), draw(seed=1)]
    assert len(set(drawn)) == len(drawn)
    assert draw() == drawn[0]


def test_an_evaluation_draws_as_no_micro_batch_does(monkeypatch):
    enter, asked = NumericsContext.node, set()
    monkeypatch.setattr(NumericsContext, "node", lambda *given: asked.add(given[2]) or enter(*given))
    assert list(pipeline(CHAIN, (8,)).runtime.evaluate(batches((8,), 2), [4, 4]))
    assert asked == {None}


CHANNELS, SIDE = 4, 8


class Coupled(AdditiveCoupling):
    """Two convolutions that are hit, and two that are not."""

    def __init__(self):
        super().__init__(((CHANNELS, SIDE, SIDE),) * 2)
        self.narrow = nn.Sequential(
            nn.Conv2d(CHANNELS, 6, 1, stride=2),
            nn.Conv2d(6, 3, 1, stride=(1, 2), padding="valid"),
            nn.Conv2d(3, 8, 1, stride=1),
            nn.Conv2d(8, CHANNELS, 1, stride=2),
            nn.Upsample(SIDE),
        )

    def residual(self, x):
        return self.narrow(x)


def placed(layout="channels-last"):
    numerics = NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(memory_format=layout), seed=0)
    return place(Coupled(), numerics), numerics


def gradients(layout):
    torch.manual_seed(0)
    block, numerics = placed(layout)
    streams = numerics.canonicalize([torch.randn(8, CHANNELS, SIDE, SIDE) for _ in range(2)])
    reverse = block.reverse_vjp(block(*streams), streams)
    return [*reverse.inputs, *reverse.gradients, *(one.grad for one in block.parameters())]


@pytest.mark.parametrize(
    ("limit", "as_they_are"), [("", True), ("AVX512_CORE", True), ("AVX2", False), ("SSE41", False)]
)
def test_narrow_convolutions_have_no_stride_without_avx512_and_the_same_gradients(limit, as_they_are, monkeypatch):
    """OneDNN writes past its workspace there: a process that computes them as they are aborts."""
    # OneDNN reads its limit once: what this test says must not be left to the networks of others, which would be computed as they are.
    nn.Conv2d(4, 4, 3)(torch.zeros(2, 4, 8, 8))
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    strides = [one.stride for one in placed()[0].narrow[:4]]
    assert strides == [(2, 2) if as_they_are else (1, 1), (1, 2) if as_they_are else (1, 1), (1, 1), (2, 2)]
    for found, expected in (
        zip(gradients("channels-last"), gradients("contiguous"), strict=True) if not as_they_are else ()
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
