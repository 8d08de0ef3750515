"""The configuration of a model, from a folder's config.json or from a GGUF file's metadata, without torch.

Nothing in a folder is executed: `auto_map`, which names code of the folder, is not read, and only the families of `FAMILIES` are
built, from transformers' own classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from attrs import frozen

from petra_graph.plugins import Problem, SpecError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose decoders have the modules and arguments of Llama's."""
CONFIG = "config.json"
GGUF = ".gguf"
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""What every configuration must say: transformers' own defaults are those of a model of seven billion parameters."""
_MOST_LAYERS = 10_000
_MODEL = ("model",)
_NOT_KEPT = ("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache")
_FROM_GGUF: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
_TOKENS = "tokenizer.ggml.tokens"
_TOKENS_FROM_GGUF = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}


def refused(message: str, hint: str, path: tuple[str, ...] = _MODEL) -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=path))


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == GGUF


def configuration_of(model: str) -> Mapping[str, Any]:
    """Return the configuration of a model.

    Args:
        model: a folder, or a GGUF file.

    Raises:
        SpecError: it does not exist, cannot be read, or is of another family; paths count from the option `model`.
    """
    path = Path(model).expanduser()
    if is_gguf(path):
        return _of_gguf(path)
    if not path.is_dir():
        raise refused(f"there is no folder {path}", "give a folder with config.json and safetensors, or a .gguf file")
    return _of_folder(path / CONFIG)


def problems_of(values: Mapping[str, Any], file: str, path: tuple[str, ...]) -> list[Problem]:
    """Return what is wrong with a configuration, as far as no class of transformers is needed to tell."""
    found = []
    family = values.get("model_type")
    if family not in FAMILIES:
        came = "no model_type" if family is None else f"model_type = {json.dumps(family)}"
        hint = f"known families: {', '.join(FAMILIES)}"
        found.append(Problem(message=f"{file} has {came}", hint=hint, path=path))
    for key in SIZES:
        value = values.get(key)
        most = _MOST_LAYERS if key == "num_hidden_layers" else None
        if type(value) is not int or value < 1 or (most is not None and value > most):
            of = "a positive integer" if most is None else f"an integer from 1 to {most:,}"
            came = f"no {key}" if key not in values else f"{key} = {json.dumps(value, default=str)}, not {of}"
            hint = "give the configuration of a whole model"
            found.append(Problem(message=f"{file} has {came}", hint=hint, path=path))
    if values.get("quantization_config"):
        hint = "use the model's folder with weights in float32, float16 or bfloat16, or a GGUF file"
        found.append(Problem(message=f"{file} is of quantised weights (quantization_config)", hint=hint, path=path))
    return found


def _of_folder(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise refused(f"there is no file {file}", "give a folder that transformers' save_pretrained has written")
    try:
        values = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refused(f"{file} cannot be read as JSON: {error}", "restore it from the model's source") from None
    if not isinstance(values, dict):
        raise refused(f"{file} holds {type(values).__name__}, not an object", "restore it from the model's source")
    return {key: value for key, value in values.items() if key not in _NOT_KEPT}


@frozen
class GgufFile:
    """An open GGUF file."""

    path: Path
    reader: Any
    """A `gguf.GGUFReader`, which maps the file into memory."""

    def value(self, key: str) -> Any:
        """Return a value of the metadata, None if it is missing.

        Raises:
            SpecError: it is damaged.
        """
        field = self.reader.fields.get(key)
        try:
            return None if field is None else field.contents()
        except (IndexError, ValueError) as error:
            raise refused(f"{self.path}: {key} cannot be read: {error}", "download it again") from None


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file; one that was opened before, and has not changed, is still open.

    Raises:
        SpecError: there is no such file, or it is damaged.
    """
    if not path.is_file():
        raise refused(f"there is no file {path}", "give a .gguf file")
    facts = path.stat()
    return _opened(path, (facts.st_size, facts.st_mtime_ns))


@lru_cache(maxsize=1)  # reading a vocabulary takes seconds
def _opened(path: Path, _version: tuple[int, int]) -> GgufFile:
    from gguf import GGUFReader

    try:
        return GgufFile(path, GGUFReader(path))
    except Exception as error:  # noqa: BLE001  it reads lengths from the file, and a wrong one may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise refused(f"{path} is no whole GGUF file: {reason}", "download it again") from None


def _of_gguf(path: Path) -> Mapping[str, Any]:
    opened = open_gguf(path)
    fields, names = opened.reader.fields, {tensor.name for tensor in opened.reader.tensors}
    family = opened.value("general.architecture")
    scaled = [key for key in fields if key.startswith(f"{family}.rope.scaling.")]
    if "rope_freqs.weight" in names or scaled:
        found = ", ".join([*scaled, *["rope_freqs.weight"] * ("rope_freqs.weight" in names)])
        raise refused(
            f"{path} scales its rotary positions ({found})", "use the model's folder with config.json instead"
        )
    keys = {f"{family}.{key}": ours for key, ours in _FROM_GGUF.items()} | _TOKENS_FROM_GGUF
    values = {ours: opened.value(key) for key, ours in keys.items() if key in fields}
    if "vocab_size" not in values and _TOKENS in fields:
        values["vocab_size"] = len(fields[_TOKENS].data)
    return {"model_type": family, **values, "tie_word_embeddings": "output.weight" not in names}
