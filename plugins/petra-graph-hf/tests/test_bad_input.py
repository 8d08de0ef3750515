"""Wrong, damaged and hostile files: one message each, with the key and the remedy; no code of a folder is run."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from petra_graph_hf.commands import main as of_plugin
from tiny_models import save_model, tiny, write_gguf

from petra_graph.cli.main import main

CONFIG = Path("model/config.json")
WEIGHTS = Path("model/model.safetensors")


def change(**values: Any) -> None:
    CONFIG.write_text(json.dumps(json.loads(CONFIG.read_text()) | values))


def sharded() -> Path:
    """Replace the model by one in shards, and return its first shard."""
    WEIGHTS.unlink()
    save_model("model", shards="20KB")
    return min(Path("model").glob("model-*.safetensors"))


def of_header(header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = json.dumps(header).encode()
    WEIGHTS.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def missing_shard() -> None:
    sharded().unlink()


def damaged_shard() -> None:
    file = sharded()
    file.write_bytes(file.read_bytes()[:-100])


def index_with(**changes: Any) -> Callable[[], None]:
    def write() -> None:
        file = sharded().with_name("model.safetensors.index.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return write


def cut_gguf(share: float) -> Callable[[], None]:
    def write() -> None:
        write_gguf(Path("tiny.gguf"), tiny())
        content = Path("tiny.gguf").read_bytes()
        Path("tiny.gguf").write_bytes(content[: int(share * len(content))])

    return write


def pickled() -> None:
    WEIGHTS.unlink()
    torch.save({"lm_head.weight": torch.ones(2)}, "model/pytorch_model.bin")


OVERLAPPING = {
    "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
}
OF_GGUF = ["architecture.options.model=tiny.gguf", "init.weights=tiny.gguf"]
CASES: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "no folder": (lambda: None, ["architecture.options.model=nowhere"], "there is no folder nowhere"),
    "no configuration": (CONFIG.unlink, [], "there is no file model/config.json"),
    "no JSON": (lambda: CONFIG.write_text("{"), [], "model/config.json cannot be read as JSON"),
    "no object": (lambda: CONFIG.write_text("[]"), [], "model/config.json holds list"),
    "deep JSON": (lambda: CONFIG.write_text("[" * 100_000), [], "model/config.json cannot be read as JSON"),
    "another family": (lambda: change(model_type="bert"), [], 'model has model_type = "bert"'),
    "no family": (lambda: change(model_type=None), [], "model has no model_type"),
    "code of its own": (
        lambda: change(model_type="mine", auto_map={"AutoConfig": "evil.Config"}),
        [],
        'model has model_type = "mine"',
    ),
    "a size of another type": (lambda: change(hidden_size="32"), [], 'hidden_size = "32", not a positive'),
    "too many layers": (lambda: change(num_hidden_layers=10**12), [], "not an integer from 1 to 10,000"),
    "quantised": (lambda: change(quantization_config={"bits": 4}), [], "model is of quantised weights"),
    "heads that do not divide": (
        lambda: change(num_attention_heads=5),
        [],
        "is not a multiple of the number of",
    ),
    "unknown layers": (lambda: change(layer_types=["mamba"] * 2), [], "layer_types must be"),
    "unknown rotary positions": (
        lambda: change(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        [],
        "rope_type must be one of",
    ),
    "other sizes": (lambda: change(intermediate_size=48), [], "gate_proj.weight is [64, 32] in the file"),
    "a longer window": (lambda: None, ["data.options.context=70"], "max_position_embeddings = 64"),
    "another tokenizer": (lambda: change(vocab_size=100), [], "a tokenizer of another vocabulary"),
    "a padded vocabulary": (lambda: change(vocab_size=320), [], "set data.options.vocabulary = 320"),
    "a smaller vocabulary": (
        lambda: None,
        ["data.options.vocabulary=9"],
        "the data set has 9 tokens, and model has vocab",
    ),
    "no tokenizer": (lambda: None, ["data.options.tokenizer=nowhere"], "there is no file nowhere"),
    "a damaged tokenizer": (
        lambda: Path("broken.json").write_text("{}"),
        ["data.options.tokenizer=broken.json"],
        "broken.json is no tokenizer",
    ),
    "no weights": (WEIGHTS.unlink, [], "model has neither model.safetensors nor model.safetensors.index"),
    "pickles": (pickled, [], "pytorch_model.bin is a pickle, which may run code"),
    "a missing shard": (missing_shard, [], "model lacks model-00001-of-"),
    "a damaged shard": (damaged_shard, [], "cannot be read: "),
    "a shard elsewhere": (
        index_with(weight_map={"lm_head.weight": "../secret.safetensors"}),
        [],
        "'../secret.safetensors', which is no safetensors file of its folder",
    ),
    "no index": (index_with(weight_map=[]), [], "model.safetensors.index.json is no index of shards"),
    "a huge header": (lambda: of_header({}, length=2**62), [], "model.safetensors cannot be read: "),
    "overlapping tensors": (lambda: of_header(OVERLAPPING, bytes(24)), [], "cannot be read: "),
    "a short GGUF file": (cut_gguf(0.5), OF_GGUF, "tiny.gguf is no whole GGUF file"),
    "the beginning of a GGUF file": (cut_gguf(0.01), OF_GGUF, "tiny.gguf is no whole GGUF file"),
    "no GGUF file": (lambda: Path("tiny.gguf").write_text("GGUF or not?"), OF_GGUF, "is no whole GGUF file"),
    "another GGUF family": (
        lambda: write_gguf(Path("tiny.gguf"), tiny(), architecture="falcon"),
        OF_GGUF,
        'tiny.gguf has model_type = "falcon"',
    ),
    "scaled positions in GGUF": (
        lambda: write_gguf(Path("tiny.gguf"), tiny(), llama__rope__scaling__factor=2.0),
        OF_GGUF,
        "scales its rotary positions (llama.rope.scaling.factor)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_a_remedy(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, changes, message = CASES[case]
    damage()
    arguments = [part for one in changes for part in ("--set", one)]
    capsys.readouterr()
    assert main(["run", "tiny.toml", "--dry-run", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("help: ") == 1
    assert "Traceback" not in said
    assert not Path("runs").exists()


def test_a_plan_needs_no_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model/tokenizer.json").unlink()
    assert main(["plan", "tiny.toml"]) == 0
    assert "lm_head" in capsys.readouterr().out


def test_a_sliding_window_is_refused_where_it_would_matter(capsys: pytest.CaptureFixture[str]) -> None:
    save_model("model", family="mistral", sliding_window=8)
    assert main(["run", "tiny.toml", "--dry-run"]) == 2
    assert "sliding_window = 8 is shorter than the context of 12 tokens" in capsys.readouterr().err
    assert main(["run", "tiny.toml", "--dry-run", "--set", "data.options.context=8"]) == 0


def test_samples_that_are_no_tokens_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("tiny.toml").read_text().replace('name = "text-tokens"', 'name = "digits"')
    Path("tiny.toml").write_text(
        text.replace('{ root = "verse.txt", tokenizer = "model", context = 12, samples = 64 }', "{}")
    )
    assert main(["validate", "tiny.toml"]) == 2
    assert "hf-decoder needs samples int64 [tokens] with a target for each token" in capsys.readouterr().err


def test_a_gguf_file_with_another_tokenizer_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(Path("tiny.gguf"), tiny(), pre="tekken")
    assert of_plugin(["tokenizer", "tiny.gguf", "made.json"]) == 2
    said = capsys.readouterr().err
    assert "has a tokenizer of the kind 'gpt2' with the split 'tekken'" in said
    assert "use the tokenizer.json of the model's original folder" in said
    assert of_plugin(["tokenizer", "nowhere.gguf", "made.json"]) == 2
    assert "there is no file nowhere.gguf" in capsys.readouterr().err
    assert not Path("made.json").exists()
