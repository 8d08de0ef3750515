"""Patterns of `[finetune]` name parameters and layers; one that names nothing is refused with the names that it may mean."""

from __future__ import annotations

import pytest
import torch
from petra_graph_modules.declared_passes import FinetuneOptions, LoraOptions
from petra_graph_modules.finetuned_graph import tuned

from petra_graph.errors import SpecError
from petra_graph.graph_passes import MeasuredGraph
from petra_graph.measure.build_block import build_to_look_at
from petra_graph.measure.node_shapes import measure_shapes
from tests.support.pipelines import CHAIN, REVNET, built_graph


def trained_of(nodes, shape, **keys):
    graph = built_graph(nodes)
    shapes = measure_shapes(graph, shape, torch.float32)
    made = tuned(FinetuneOptions(**keys), MeasuredGraph(graph=graph, shapes=shapes))
    return {
        name: [key for key, one in build_to_look_at(node, shapes[name].inputs).named_parameters() if one.requires_grad]
        for name, node in made.nodes.items()
    }


def faults_of(nodes, shape, **keys):
    with pytest.raises(SpecError) as raised:
        trained_of(nodes, shape, **keys)
    return [(problem.path, problem.message, problem.hint) for problem in raised.value.problems]


def test_a_node_a_parameter_and_a_pattern():
    found = trained_of(CHAIN, (8,), trained=["head", "rev0/*.weight", "*bias"], frozen=["rev2"])
    assert found["head"]
    assert all("weight" in key or "bias" in key for key in found["rev0"])
    assert found["rev1"] == [key for key in found["rev0"] if key.endswith("bias")] != []
    assert found["rev2"] == []


def test_adapters_alone_are_trained_by_default():
    found = trained_of(CHAIN, (8,), lora=LoraOptions(on=["rev*/*"], rank=2))
    assert found["head"] == found["stem"] == []
    assert found["rev0"]
    assert all(".lora_" in key for key in found["rev0"])


def test_patterns_that_name_nothing_are_told_together():
    keys = {"trained": ["haed"], "frozen": ["rev9"], "lora": LoraOptions(on=["heads/x"])}
    found = faults_of(CHAIN, (8,), **keys)
    assert [path for path, _, _ in found] == [
        ("finetune", "trained"),
        ("finetune", "frozen"),
        ("finetune", "lora", "on"),
    ]
    assert "'haed' names no trained parameter of the network" in found[0][1]
    assert "did you mean 'head'?" in found[0][2]
    assert "did you mean 'rev2'" in found[1][2]


def test_convolutions_have_no_adapters():
    ((path, message, hint),) = faults_of(REVNET, (3, 6, 6), lora=LoraOptions(on=["a0"]))
    assert path == ("finetune", "lora", "on")
    assert "names no linear layer that can have an adapter" in message
    assert "head/" in hint


def test_nothing_trained_is_refused():
    ((path, message, hint),) = faults_of(CHAIN, (8,))
    assert path == ("finetune",)
    assert message == "nothing of the network would be trained"
    assert "lora" in hint
