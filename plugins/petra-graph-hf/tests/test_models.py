"""A model of transformers as nodes: the same logits to the bit, from a folder, shards, a GGUF file, or a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from petra_graph_hf.architectures import DecoderOptions, decoder
from petra_graph_hf.configuration import FAMILIES
from petra_graph_hf.declared import TokensOptions
from petra_graph_hf.names import of_node, of_transformers
from petra_graph_hf.text import text_tokens
from petra_graph_hf.weights import read
from tiny_models import SIZES, VOCABULARY, latest, save_model, tiny, write_gguf
from torch import Tensor

import petra_graph
from petra_graph.cli.main import main

ONE_STAGE = "partition.stages=1"
STILL = ["--fast-dev-run", "--set", "optimizer.options.lr=0"]
TOKENS = torch.arange(48).view(4, 12) % VOCABULARY


def logits_of_run(*changes: str) -> Tensor:
    """Return the logits of a run that begins with a model's weights and does not move them."""
    arguments = [part for change in changes for part in ("--set", change)]
    assert main(["run", "tiny.toml", *STILL, *arguments]) == 0
    network = petra_graph.load(latest())
    with torch.no_grad():
        found: Tensor = network(TOKENS)
    return found.transpose(1, 2)


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
    return found


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_has_the_logits_of_transformers(family: str) -> None:
    model = save_model("model", family=family)
    assert torch.equal(logits_of_run(), logits_of(model))


@pytest.mark.long
def test_gradients_are_those_of_transformers() -> None:
    model = tiny()
    targets = TOKENS.roll(1, 1)
    torch.autograd.backward(torch.nn.functional.cross_entropy(model(TOKENS).logits.transpose(1, 2), targets))
    assert main(["run", "tiny.toml", *STILL]) == 0
    network = petra_graph.load(latest()).train()
    torch.autograd.backward(torch.nn.functional.cross_entropy(network(TOKENS), targets))
    expected = {of_node(name): one.grad for name, one in model.named_parameters()}
    found = {
        f"{name}/{key}": one.grad for name in network.graph.nodes for key, one in network.block(name).named_parameters()
    }
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.long
def test_shards_are_read_by_their_index() -> None:
    model = save_model("sharded", shards="20KB")
    assert len(list(Path("sharded").glob("*.safetensors"))) > 2
    found = logits_of_run("architecture.options.model=sharded", "init.weights=sharded")
    assert torch.equal(found, logits_of(model))


@pytest.mark.long
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama", True), ("qwen2", False), ("qwen3", True)])
def test_a_gguf_file_has_the_logits_of_its_model(family: str, tied: bool) -> None:
    """Rows of Llama's q and k are in the order of llama.cpp in the file."""
    model = tiny(family, tie_word_embeddings=tied)
    write_gguf(Path("tiny.gguf"), model)
    tie = [ONE_STAGE] * tied
    found = logits_of_run("architecture.options.model=tiny.gguf", "init.weights=tiny.gguf", *tie)
    assert torch.equal(found, logits_of(model))


@pytest.mark.long
def test_a_quantised_gguf_file_is_dequantised() -> None:
    model = tiny()
    write_gguf(Path("tiny.gguf"), model, gguf.GGMLQuantizationType.Q8_0)
    opened = read(Path("tiny.gguf"))
    for name, tensor in model.state_dict().items():
        found = opened.read(of_node(name))
        assert opened.shapes[of_node(name)] == tuple(tensor.shape)
        scale = tensor.abs().max() / 127
        assert (found - tensor).abs().max() <= scale
        assert torch.equal(found, tensor) == (tensor.dim() == 1)


@pytest.mark.long
def test_a_model_that_ties_its_head_is_in_one_stage_unless_it_is_untied(capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model("model", tie_word_embeddings=True)
    assert main(["plan", "tiny.toml"]) == 2
    said = capsys.readouterr().err
    assert 'nodes "model.embed_tokens" and "lm_head" share the parameter model.embed_tokens.weight' in said
    assert "set partition.stages = 1, " in said
    for change in (ONE_STAGE, "architecture.options.tie=untied", "partition.untie=true"):
        assert torch.equal(logits_of_run(change), logits_of(model))


def test_a_tied_model_trains_as_in_plain_torch() -> None:
    """Each epoch is one micro-batch of all windows, so that no order of samples counts."""
    model = save_model("model", tie_word_embeddings=True).double().train()
    epochs, whole = (
        4,
        ["data.batch=64", "run.epochs=4", "optimizer.options.weight_decay=0.1", "precision.compute=float64"],
    )
    changes = [part for one in (*whole, ONE_STAGE) for part in ("--set", one)]
    assert main(["run", "tiny.toml", *changes]) == 0
    windows = text_tokens(TokensOptions(root="verse.txt", tokenizer="model", context=12, samples=64)).train
    decayed = [one for one in model.parameters() if one.dim() > 1]
    undecayed = [one for one in model.parameters() if one.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.003)
    for epoch in range(epochs):
        samples, targets = windows.fetch(np.arange(64), seed=0, epoch=epoch)
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(samples).logits.transpose(1, 2), targets))
        optimizer.step()
    network = petra_graph.load(latest())
    assert len(list(network.parameters())) == len(list(model.parameters()))
    for name, expected in model.state_dict().items():
        node, _, key = of_node(name).partition("/")
        torch.testing.assert_close(network.block(node).state_dict()[key], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_a_configuration_alone_has_random_weights() -> None:
    text = Path("tiny.toml").read_text()
    config = "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in SIZES.items() if key[0] != "r") + " }"
    before, _, rest = text.replace('{ model = "model" }', f"{{ config = {config} }}").partition("[init]")
    Path("tiny.toml").write_text(before + "[method]" + rest.partition("[method]")[2])
    assert main(["run", "tiny.toml", *STILL]) == 0
    network = petra_graph.load(latest())
    first, second = (
        network.block(f"model.layers.{layer}").state_dict()["layer.mlp.up_proj.weight"] for layer in (0, 1)
    )
    assert 0.01 < float(first.std()) < 0.03, "initializer_range is 0.02"
    assert not torch.equal(first, second)


def test_names_of_tensors_go_there_and_back() -> None:
    for name in tiny().state_dict():
        assert of_transformers(*of_node(name).split("/")) == name


@pytest.mark.long
def test_a_model_of_one_layer_has_the_same_names() -> None:
    from petra_graph.plugins import DataFacts

    facts = DataFacts(shape=(12,), dtype="int64", classes=VOCABULARY, target_shape=(12,))
    nodes = decoder(DecoderOptions(config={**SIZES, "num_hidden_layers": 1}), facts)
    assert [node.name for node in nodes] == ["model.embed_tokens", "model.layers.0", "lm_head"]
