"""The weights of a model as `init.reader` wants them: by the names of the network's nodes, from a folder or a GGUF file.

    folder    model.safetensors, or the shards that model.safetensors.index.json lists
    GGUF      dequantised to float32 by `gguf`, one tensor at a time

Pickles are not read. A model that ties embedding and head has one tensor for both: each node gets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petra_graph.plugins import SpecError
from petra_graph.record.weights import UnreadableWeights, WeightFile, open_weights
from petra_graph_hf.blocks import model_of
from petra_graph_hf.configuration import configuration_of, is_gguf, open_gguf, problems_of
from petra_graph_hf.names import EMBEDDING_WEIGHT, HEAD_WEIGHT, of_node

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_RESTORE = "restore the file from the model's source"
_DERIVED = "rotary_emb.inv_freq"
"""A buffer that older folders hold: it follows from the configuration."""


def read(path: Path) -> WeightFile:
    """Open the weights of a folder or a GGUF file; `init.reader = "petra_graph_hf.weights:read"` names this function.

    Raises:
        SpecError: a file is missing or damaged, or holds no weights of a decoder.
    """
    readers = _of_gguf(path) if is_gguf(path) else _of_folder(path)
    found = {of_node(name): reader for name, reader in readers.items() if not name.endswith(_DERIVED)}
    if HEAD_WEIGHT not in readers and EMBEDDING_WEIGHT in readers:
        found[of_node(HEAD_WEIGHT)] = readers[EMBEDDING_WEIGHT]
    return WeightFile({name: shape for name, (shape, _) in found.items()}, lambda name: found[name][1]())


_Readers = Mapping[str, tuple[tuple[int, ...], Callable[[], Tensor]]]
"""By transformers' name: the shape, and what reads the tensor."""


def _of_folder(folder: Path) -> _Readers:
    if folder.is_file():
        return dict(_of_file(folder))
    index = folder / INDEX
    if not index.is_file():
        if not (folder / WEIGHTS).is_file():
            pickles = sorted(file.name for file in folder.glob("*.bin"))
            hint = (
                f"save it with transformers as safetensors; {pickles[0]} is a pickle, which may run code"
                if pickles
                else ""
            )
            raise SpecError(f"{folder} has neither {WEIGHTS} nor {INDEX}", hint or "give the folder of a model")
        return dict(_of_file(folder / WEIGHTS))
    shards = _shards(index)
    missing = sorted({name for name in shards.values() if not (folder / name).is_file()})
    if missing:
        message = f"{folder} lacks {', '.join(missing)}, which {INDEX} lists"
        raise SpecError(message, "copy all shards of the model into the folder")
    found = {name: one for shard in sorted(set(shards.values())) for name, one in _of_file(folder / shard)}
    if absent := sorted(shards.keys() - found.keys()):
        raise SpecError(f"{index} lists {', '.join(absent[:3])}, which {shards[absent[0]]} does not hold", _RESTORE)
    return found


def _shards(index: Path) -> Mapping[str, str]:
    try:
        shards = json.loads(index.read_text("utf-8"))["weight_map"]
        wrong = [name for name in shards.values() if Path(name).name != name or not name.endswith(".safetensors")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SpecError(f"{index} is no index of shards: {type(error).__name__}: {error}", _RESTORE) from None
    if wrong:
        raise SpecError(f"{index} lists {wrong[0]!r}, which is no safetensors file of its folder", _RESTORE)
    return dict(shards)


def _of_file(file: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], Callable[[], Tensor]]]]:
    """Yield the tensors of a safetensors file, which is opened again for each."""
    try:
        with open_weights(file) as opened:
            shapes = opened.shapes
    except UnreadableWeights as error:
        raise SpecError(str(error), _RESTORE) from None
    for name, shape in shapes.items():
        yield name, (shape, partial(_read_one, file, name))


def _read_one(file: Path, name: str) -> Tensor:
    with open_weights(file) as opened:
        return opened.read(name)


def _of_gguf(path: Path) -> _Readers:
    """Return the tensors of a GGUF file; what transformers has no name for keeps that of the file."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    config = configuration_of(str(path))
    if problems := problems_of(config, str(path), ()):
        raise SpecError(problems)
    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == config["model_type"])
    known = get_tensor_name_map(arch, config["num_hidden_layers"])
    theirs = {}
    for name in _names(config):
        module, _, kind = name.rpartition(".")
        theirs[f"{known.get_name(module)}.{kind}"] = name
    found = {}
    for tensor in open_gguf(path).reader.tensors:
        name = theirs.get(tensor.name, tensor.name)
        heads = _permuted_heads(config, name)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        found[name] = shape, partial(_dequantised, path, tensor, shape, heads)
    return found


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tensors of a model in transformers."""
    for name in model_of(json.dumps({**config, "tie_word_embeddings": False})).state_dict():
        if ".layers.0." in name:
            yield from (name.replace(".0.", f".{layer}.", 1) for layer in range(config["num_hidden_layers"]))
        else:
            yield name


def _permuted_heads(config: Mapping[str, Any], name: str) -> int | None:
    """Return the heads of a query or key whose rows llama.cpp has in another order; None: the rows are in order."""
    if config["model_type"] != "llama":
        return None
    queries: int = config["num_attention_heads"]
    return {"q_proj": queries, "k_proj": config.get("num_key_value_heads", queries)}.get(name.split(".")[-2])


def _dequantised(path: Path, tensor: Any, shape: tuple[int, ...], heads: int | None) -> Tensor:
    from gguf import dequantize

    try:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
    except (NotImplementedError, ValueError) as error:
        raise SpecError(
            f"{path}: {tensor.name} of type {tensor.tensor_type.name} cannot be read: {error}", _RESTORE
        ) from None
    if heads is not None:
        # llama.cpp rotates neighbouring rows of a head, transformers those half a head apart
        values = values.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(values))
