"""A tiny model as transformers saves it, with random weights; a tokenizer, a text, a specification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VERSE = "the cat sat on the mat and the dog sat on the log\n"
VOCABULARY = 277
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
SPEC = """
name = "tiny"

[architecture]
name = "hf-decoder"
options = { model = "model" }

[init]
weights = "model"

[method]
name = "backprop"
schedule = "sequential"

[optimizer]
name = "adamw"
options = { lr = 0.003 }

[data]
name = "text-tokens"
batch = 4
options = { root = "verse.txt", tokenizer = "model", context = 12, samples = 64 }

[[metric]]
name = "bits-per-byte"
options = { tokenizer = "model" }

[run]
epochs = 1
"""


def tiny(family: str = "llama", **changes: Any) -> Any:
    """Return a model of transformers with random weights, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM  # which every process that collects tests would import

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, "initializer_range": 0.3, **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def save_model(folder: str, *, shards: str = "5GB", **changes: Any) -> Any:
    """Save a tiny model with its tokenizer, and return it."""
    model = tiny(**changes)
    model.save_pretrained(folder, max_shard_size=shards)
    save_tokenizer(Path(folder) / "tokenizer.json", VERSE * 4)
    return model


def opened_by_transformers(folder: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def save_tokenizer(file: Path, text: str) -> None:
    """Save a byte-level tokenizer of a text, with one special token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text], trainer)
    made.save(str(file))


def latest() -> Path:
    return max(Path("runs").iterdir())
