"""A run's network as a folder that transformers opens, and a text that the network continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from petra_graph_hf.commands import main as of_plugin
from safetensors import safe_open
from tiny_models import VERSE, VOCABULARY, latest, save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import petra_graph
from petra_graph.cli.main import main


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_trained_network_is_opened_by_transformers(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_model("model", family=family)
    assert main(["run", "tiny.toml"]) == 0
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out"]) == 0
    assert capsys.readouterr().out == "out: opened by transformers, it has the network's logits\n"
    network, model = petra_graph.load(latest()), AutoModelForCausalLM.from_pretrained("out").eval()
    assert type(model).__name__.lower().startswith(family)
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits.transpose(1, 2), network(tokens))
        assert not torch.equal(AutoModelForCausalLM.from_pretrained("model")(tokens).logits, model(tokens).logits)
    assert AutoTokenizer.from_pretrained("out").decode(AutoTokenizer.from_pretrained("model")(VERSE).input_ids) == VERSE


def test_a_tied_model_is_exported_tied_with_one_tensor() -> None:
    save_model("model", tie_word_embeddings=True)
    assert main(["run", "tiny.toml", "--set", "partition.stages=1"]) == 0
    assert of_plugin(["export", "latest", "out"]) == 0
    model = AutoModelForCausalLM.from_pretrained("out")
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with safe_open("out/model.safetensors", "pt") as opened:
        assert [name for name in opened.keys() if "embed" in name or "lm_head" in name] == ["model.embed_tokens.weight"]  # noqa: SIM118


@pytest.mark.long
@pytest.mark.parametrize("change", ["architecture.options.tie=untied", "partition.untie=true"])
def test_an_untied_model_is_exported_untied(change: str) -> None:
    save_model("model", tie_word_embeddings=True)
    assert main(["run", "tiny.toml", "--set", change]) == 0
    assert of_plugin(["export", "latest", "out"]) == 0
    model = AutoModelForCausalLM.from_pretrained("out")
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.long
def test_a_folder_begins_a_run_again_as_its_network_was() -> None:
    assert main(["run", "tiny.toml"]) == 0
    first = petra_graph.load(latest()).state_dict()
    assert of_plugin(["export", "latest", "out"]) == 0
    changed = ["architecture.options.model=out", "init.weights=out", "optimizer.options.lr=0", "run.directory=again"]
    assert main(["run", "tiny.toml", *[part for one in changed for part in ("--set", one)]]) == 0
    (again,) = Path("again").iterdir()
    second = petra_graph.load(again).state_dict()
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())


@pytest.mark.long
def test_without_the_model_and_its_text_a_network_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The tokenizer is needed to read a prompt, and nothing else."""
    assert main(["run", "tiny.toml", "--fast-dev-run"]) == 0
    for file in (*Path("model").glob("*.safetensors"), Path("model/config.json"), Path("verse.txt")):
        file.unlink()
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "the cat", "--tokens", "5", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("the cat")
    Path("model/tokenizer.json").unlink()
    assert of_plugin(["export", "latest", "out"]) == 0
    assert "without a tokenizer.json" in capsys.readouterr().out
    assert main(["predict", "latest", "--prompt", "the cat"]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.long
def test_a_model_learns_the_text_and_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny.toml", "--set", "run.epochs=3", "--set", "data.options.samples=128"]) == 0
    losses = [value for _, value in petra_graph.Run(latest()).metrics("test/loss")]
    bits = [value for _, value in petra_graph.Run(latest()).metrics("test/bits-per-byte")]
    assert losses[-1] < losses[0] < 2, "at random: 5.6"
    assert bits[-1] < losses[-1] / 2, "a token has several bytes"
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "the cat sat", "--tokens", "10", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("the cat sat on the mat and the dog")


@pytest.mark.long
def test_a_converted_network_is_exported_as_it_was_with_the_trained_weights(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["conversion.coupling=midpoint", "method.name=reversible-backprop"]
    assert main(["run", "tiny.toml", "--fast-dev-run", *[part for one in changes for part in ("--set", one)]]) == 0
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out"]) == 2
    said = capsys.readouterr().err
    assert "is converted, and transformers has no such layers" in said
    assert "--unconverted" in said
    assert of_plugin(["export", "latest", "out", "--unconverted"]) == 0
    weights = petra_graph.load(latest()).state_dict()
    written = AutoModelForCausalLM.from_pretrained("out").state_dict()
    assert any(torch.equal(weight, written["model.layers.1.mlp.up_proj.weight"]) for weight in weights.values())


@pytest.mark.long
def test_a_network_trained_in_bfloat16_is_compared_in_its_own_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny.toml", "--fast-dev-run", "--set", "precision.compute=bfloat16"]) == 0
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out"]) == 0, capsys.readouterr().err


@pytest.mark.long
def test_adapters_are_added_to_the_weights_that_they_adapt() -> None:
    changes = ['finetune.lora.on=["*q_proj"]', "optimizer.options.lr=0.1"]
    assert main(["run", "tiny.toml", *[part for one in changes for part in ("--set", one)]]) == 0
    assert of_plugin(["export", "latest", "out"]) == 0
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected = petra_graph.load(latest())(tokens)
        found = AutoModelForCausalLM.from_pretrained("out")(tokens).logits.transpose(1, 2)
        before = AutoModelForCausalLM.from_pretrained("model")(tokens).logits.transpose(1, 2)
    assert (found - expected).abs().max() < 1e-4 * (before - expected).abs().max()


@pytest.mark.long
def test_what_cannot_be_exported_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_plugin(["export", "latest", "out"]) == 2
    assert main(["run", "tiny.toml", "--fast-dev-run"]) == 0
    Path("out").mkdir()
    Path("out/config.json").write_text("{}")
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out"]) == 2
    said = capsys.readouterr()
    assert said.err == "out is there already\n    help: name a new or an empty folder\n"
    assert Path("out/config.json").read_text() == "{}"
    Path("gpt.toml").write_text(
        Path("tiny.toml")
        .read_text()
        .replace('"hf-decoder"', '"gpt"')
        .replace('model = "model"', f"layers = 1, heads = 1, width = 8, vocabulary = {VOCABULARY}")
        .replace('weights = "model"\nreader = "petra_graph_hf.weights:read"', "")
    )
    assert main(["run", "gpt.toml", "--fast-dev-run"]) == 0
    capsys.readouterr()
    assert of_plugin(["export", "latest", "other"]) == 2
    assert "is no model of transformers: its node 'embedding' is another" in capsys.readouterr().err


TUNED = '\n[finetune]\nlora = { on = ["*q_proj", "*layers.1/*up_proj"], rank = 3, alpha = 6, dropout = 0.1 }\n'


def tune(*changes: str, table: str = TUNED) -> None:
    Path("tuned.toml").write_text(Path("tiny.toml").read_text() + table)
    assert main(["run", "tuned.toml", *[part for one in changes for part in ("--set", one)]]) == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what peft asks of transformers
@pytest.mark.parametrize("tied", [False, True])
def test_adapters_are_opened_by_peft_with_the_logits_of_the_network(
    tied: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peft = pytest.importorskip("peft")
    save_model("model", tie_word_embeddings=tied)
    tune("partition.stages=1")
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out", "--adapter"]) == 0
    assert capsys.readouterr().out == "out: opened by peft, it has the network's logits\n"
    base = AutoModelForCausalLM.from_pretrained("model").eval()
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        plain = base(tokens).logits
        adapted = peft.PeftModel.from_pretrained(base, "out").eval()(tokens).logits
        expected = petra_graph.load(latest())(tokens)
    torch.testing.assert_close(adapted.transpose(1, 2), expected)
    assert (adapted - plain).abs().max() > 0.01
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # it would look for a tokenizer there
    reopened = peft.AutoPeftModelForCausalLM.from_pretrained("out").eval()  # by the name of the base
    with torch.no_grad():
        assert torch.equal(reopened(tokens).logits, adapted)


def test_files_of_adapters_are_those_of_peft(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("petra_graph_hf.export.find_spec", lambda _: None)
    tune()
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out", "--adapter"]) == 0
    assert capsys.readouterr().out == "out: not opened again, since peft is not installed\n"
    config = json.loads(Path("out/adapter_config.json").read_text())
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 6,
        "lora_dropout": 0.1,
        "bias": "none",
    }
    assert expected.items() <= config.items()
    assert config["target_modules"] == ["model.layers.1.mlp.up_proj", "q_proj"]
    assert Path(config["base_model_name_or_path"]) == Path("model").resolve()
    names = [
        f"base_model.model.model.layers.{one}" for one in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj")
    ]
    with safe_open("out/adapter_model.safetensors", "pt") as opened:
        keys = set(opened.keys())
        shape = opened.get_tensor(f"{names[2]}.lora_B.weight").shape
    assert keys == {f"{name}.{one}.weight" for name in names for one in ("lora_A", "lora_B")}
    assert (tuple(shape), Path("out/tokenizer.json").is_file()) == ((64, 3), True)


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("", [], "the network has no adapters"),
        (
            TUNED.replace("lora", 'trained = ["*norm*"]\nlora'),
            [],
            "the run has trained model.layers.0/layer.input_layernorm",
        ),
        (TUNED + '[conversion]\ncoupling = "dual-residual"\n', [], "is converted, and transformers has no such layers"),
        (TUNED, ["init.weights", "init.reader"], "began with random weights, so its adapters belong to no model"),
    ],
    ids=["no adapters", "more than adapters", "converted", "of random weights"],
)
def test_adapters_that_fit_no_model_are_refused(
    table: str, changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changes:
        text = Path("tiny.toml").read_text()
        Path("tiny.toml").write_text(text.partition("[init]")[0] + text[text.index("[method]") :])
    tune("run.micro_batches=2", table=table)
    capsys.readouterr()
    assert of_plugin(["export", "latest", "out", "--adapter"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()
