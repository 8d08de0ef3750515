"""A tiny model as transformers saves it, with random weights, and the same as a GGUF file as llama.cpp would write it; a tokenizer, a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

VERSE = "the cat sat on the mat and the dog sat on the log\n"
VOCABULARY = 277
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
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
reader = "petra_graph_hf.weights:read"

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
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, "initializer_range": 0.3, **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def save_model(folder: str, *, shards: str = "5GB", **changes: Any) -> Any:
    """Save a tiny model with its tokenizer, and return it."""
    model = tiny(**changes)
    model.save_pretrained(folder, max_shard_size=shards)
    tokenizer().save(f"{folder}/tokenizer.json")
    return model


def tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of the verse, with one special token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([VERSE * 4], trainer)
    return made


def write_gguf(path: Path, model: Any, kind: Any = gguf.GGMLQuantizationType.F32, **changes: Any) -> None:
    """Write a model as llama.cpp's converter does: Llama's q and k with rows of a head interleaved."""
    config = model.config
    family = config.model_type
    writer = gguf.GGUFWriter(path, changes.pop("architecture", family))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    of_json = json.loads(tokenizer().to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.pop("pre", "gpt-2"))
    vocabulary = sorted(of_json["model"]["vocab"], key=of_json["model"]["vocab"].__getitem__)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token == "<|end|>" else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in of_json["model"]["merges"]])
    if family == "qwen3":
        writer.add_key_length(config.head_dim)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    heads = permuted if family == "llama" else {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if count := heads.get(name.split(".")[-2]):
            values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        module, _, part = name.rpartition(".")
        quantised = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(
            f"{names.get_name(module)}.{part}",
            gguf.quantize(np.ascontiguousarray(values), quantised),
            raw_dtype=quantised,
        )
    for key, value in changes.items():
        writer.add_float32(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def latest() -> Path:
    return max(Path("runs").iterdir())
