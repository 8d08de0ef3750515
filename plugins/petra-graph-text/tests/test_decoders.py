"""Pretrained decoders: transformers' own logits, gradients and trainings to the bit; adapters, couplings, the way back; wrong files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from petra_graph_text.decoders import FAMILIES
from petra_graph_text.export import to_transformers
from petra_graph_text.text import TextTokens
from safetensors import safe_open
from tiny_models import SPEC, VERSE, VOCABULARY, latest, opened_by_transformers, save_model

import petra_graph
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.training.data import order
from tests.support.kit import opened

ONE_STAGE = "partition.stages=1"
TOKENS = torch.arange(48).view(4, 12) % VOCABULARY
LORA = 'architecture.options.lora={ on = ["*q_proj", "*.1.mlp.up_proj"], rank = 3, alpha = 6.0 }'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with a text, a specification, and the folder `model`."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    Path("verse.txt").write_text(VERSE * 40)
    Path("tiny.toml").write_text(SPEC)
    save_model("model")


def run(*changes: str) -> int:
    return main(["run", "tiny.toml", *[part for change in changes for part in ("--set", change)]])


def logits_of_run(*changes: str) -> torch.Tensor:
    """Return the logits of a run that begins with a model's weights and does not move them."""
    assert run("optimizer.options.lr=0", "run.micro_batches=2", *changes) == 0
    with torch.no_grad():
        found: torch.Tensor = petra_graph.load(latest())(TOKENS)
    return found.transpose(1, 2)


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(TOKENS).logits
    return found


def model_states(directory: Path) -> dict[str, torch.Tensor]:
    """Return a run's tensors by transformers' names."""
    nodes = petra_graph.load(directory).nodes.values()
    return {name: one for node in nodes for name, one in node.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES[2:])  # the others are Llama's
def test_a_folder_has_the_logits_of_transformers(family: str) -> None:
    model = save_model("model", family=family, shards="20KB")
    Path("model/model.safetensors").unlink()
    assert torch.equal(logits_of_run(), logits_of(model))


def test_a_model_that_ties_its_head_is_in_one_stage_unless_it_is_untied(capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model("model", tie_word_embeddings=True)
    assert main(["plan", "tiny.toml"]) == 2
    said = capsys.readouterr().err
    assert 'nodes "model.embed_tokens" and "lm_head" share the parameter model.embed_tokens.weight' in said
    assert torch.equal(logits_of_run("partition.untie=true"), logits_of(model))


def test_a_model_by_its_parts_trains_as_the_model_itself() -> None:
    """Updates of a micro-batch of all windows each have the same bits; the head is the embedding."""
    model = save_model("model", tie_word_embeddings=True).train()
    changes = ["data.batch=64", "run.epochs=10", "optimizer.name=sgd", "optimizer.options.lr=0.02", ONE_STAGE]
    assert run(*changes, "optimizer.options.nesterov=false", "lr_schedule.name=constant") == 0
    windows = opened(TextTokens, root="verse.txt", tokenizer="model", context=12, samples=64).train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(10):
        samples, targets = windows.fetch(order(64, 0, epoch), seed=0, epoch=epoch)
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(samples).logits.transpose(1, 2), targets))
        optimizer.step()
    found = model_states(latest())
    for name, expected in model.state_dict().items():
        assert torch.equal(found[name], expected), name


@pytest.mark.parametrize("change", [ONE_STAGE, 'precision.compute="bfloat16"'])
def test_a_trained_network_is_opened_by_transformers(change: str) -> None:
    tied = change == ONE_STAGE
    save_model("model", tie_word_embeddings="compute" not in change)
    assert run(change) == 0
    to_transformers("latest", "out")  # which compares the logits
    model = opened_by_transformers("out")
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    if tied:
        assert torch.equal(logits_of(model), petra_graph.load(latest())(TOKENS).transpose(1, 2))
    assert Path("out/tokenizer.json").read_bytes() == Path("model/tokenizer.json").read_bytes()
    with pytest.raises(SpecError, match="out is there already"):
        to_transformers("latest", "out")


def test_adapters_alone_are_trained_and_merged_or_written_as_peft_does() -> None:
    model = save_model("model")
    assert run(LORA, "optimizer.options.lr=0.1") == 0
    trained = model_states(latest())
    assert all(torch.equal(trained[name], one) for name, one in model.state_dict().items())
    names = [
        f"model.layers.{one}"
        for one in ("0.self_attn.q_proj", "1.mlp.up_proj", "1.self_attn.q_proj", "2.self_attn.q_proj")
    ]
    adapters = {f"{name}.{one}.weight" for name in names for one in ("lora_A", "lora_B")}
    assert {name for name in trained if "lora" in name} == adapters
    to_transformers("latest", "out")
    expected = petra_graph.load(latest())(TOKENS).transpose(1, 2)
    found = logits_of(opened_by_transformers("out"))
    assert (found - expected).abs().max() < 1e-4 * (logits_of(model) - expected).abs().max()
    to_transformers("latest", "adapter", adapter=True)
    config = json.loads(Path("adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (3, 6.0, names)
    with safe_open("adapter/adapter_model.safetensors", "pt") as opened:
        assert set(opened.keys()) == {f"base_model.model.{name}" for name in adapters}


def test_layers_made_reversible_have_the_gradients_of_plain_autograd() -> None:
    """Reconstruction in float64, with and without anchors, with adapters beside; the weights go back into a plain model."""
    states = []
    options = 'architecture.options={ model = "model", coupling = "dual-residual", beta = 0.4'
    for method, more in (("backprop", ""), ("reversible-backprop", ""), ("petra", ", anchors = 2")):
        assert (
            run(
                f"{options}{more} }}",
                f"method.name={method}",
                "precision.compute=float64",
                "run.micro_batches=5",
                ONE_STAGE,
            )
            == 0
        )
        states.append(model_states(latest()))
    for other in states[1:]:
        assert other.keys() == states[0].keys()
        assert all(torch.allclose(other[name], one, rtol=1e-9, atol=1e-9) for name, one in states[0].items())
    to_transformers("latest", "out")
    written = opened_by_transformers("out").state_dict()
    assert torch.equal(written["model.layers.1.mlp.up_proj.weight"], states[2]["model.layers.1.mlp.up_proj.weight"])


CONFIG, WEIGHTS = Path("model/config.json"), Path("model/model.safetensors")


def change(**values: Any) -> None:
    CONFIG.write_text(json.dumps(json.loads(CONFIG.read_text()) | values))


CASES: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "another family": (
        lambda: change(model_type="mine", auto_map={"AutoConfig": "evil.Config"}),
        [],
        'model_type = "mine"',
    ),
    "quantised": (lambda: change(quantization_config={"bits": 4}), [], "is of quantised weights"),
    "other sizes": (lambda: change(intermediate_size=48), [], "gate_proj.weight [64, 32] in the file"),
    "a longer window": (lambda: None, ["data.options.context=70"], "max_position_embeddings = 64"),
    "a padded vocabulary": (lambda: change(vocab_size=320), [], "set data.options.vocabulary = 320"),
    "no weights": (WEIGHTS.unlink, [], "model has neither weights.safetensors nor model.safetensors nor"),
    "adapters of nothing": (lambda: None, [LORA.replace("q_proj", "query")], "'*query' names no linear layer"),
    "a sliding window": (
        lambda: save_model("model", family="mistral", sliding_window=8),
        [],
        "sliding_window = 8 is shorter",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, changes, message = CASES[case]
    damage()
    capsys.readouterr()
    assert run(*changes) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
