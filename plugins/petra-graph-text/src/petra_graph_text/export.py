"""A run's network as a folder that `AutoModelForCausalLM.from_pretrained` opens, or its adapters as one of `PeftModel.from_pretrained`.

config.json, generation_config.json, model.safetensors    written by transformers itself
adapter_config.json, adapter_model.safetensors            in their place, of the adapters alone
tokenizer.json                                            a copy of that of the run's data set, if it is text of tokens
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from petra_graph.errors import RunFailed, SpecError
from petra_graph.inference.saved_run import SavedRun
from petra_graph.training.trained_network import Network
from petra_graph_text.decoders import EMBEDDING, HEAD, AnyLayer, Layer, Logits
from petra_graph_text.lora import NAMES, adapters
from petra_graph_text.tokenizers_on_disk import FILE, file_of

_PEFT = "base_model.model."
_COMPARED = 64
"""Tokens of the window with which a folder is compared."""


def to_transformers(
    run: str | Path, folder: str | Path, weights: str | None = None, *, adapter: bool = False, changed: bool = False
) -> None:
    """Write a run's network; the folder of a whole network is opened again, and the logits of a window are compared.

    Layers that were made reversible are written as plain ones, with the same weights, which compute another function.

    Args:
        run: its directory, or "latest".
        folder: new, or empty.
        weights: as `petra_graph.load` has it.
        adapter: write the adapters alone, as `peft` saves them; otherwise they are added to the weights that they adapt.
        changed: take a run whose network computes something else than in its training, which is refused otherwise.

    Raises:
        SpecError: there is no such run, it is not of an hf-decoder, it has no adapters, or the folder is not empty.
        RunFailed: the folder opens with other logits.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} is there already", "name a new or an empty folder")
    opened = SavedRun.open(run, changed=changed)
    network, _ = opened.load(weights)
    parts = {name: network.block(name) for name in network.graph.order}
    if not isinstance(parts[network.graph.head], Logits):
        raise SpecError(f"the network of {opened.directory} is no model of transformers", 'export one of "hf-decoder"')
    folder.mkdir(parents=True, exist_ok=True)
    if adapter:
        _write_adapters(parts, folder, opened.spec.init.weights)
    else:
        coupled = any(isinstance(one, AnyLayer) and not isinstance(one, Layer) for one in parts.values())
        _write_model(network, parts, folder, compared=not coupled)
    tokenizer = getattr(opened.network.checked.data.options, "tokenizer", None)
    if tokenizer is not None:
        with suppress(SpecError):  # it may no longer be where it was, and the network can be used without it
            shutil.copyfile(file_of(Path(tokenizer)), folder / FILE)


def _write_model(network: Network, parts: dict[str, Any], folder: Path, *, compared: bool) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = json.loads(parts[network.graph.head].config)
    tensors: dict[str, Tensor] = {}
    for part in parts.values():
        tensors |= {name: one for name, one in part.state_dict().items() if name.startswith(("model.", HEAD))}
    for name, layer in adapters(parts):
        tensors[f"{name}.weight"] = layer.merged()
    tensors = {name: one for name, one in tensors.items() if name.split(".")[-2] not in NAMES}
    tied = torch.equal(
        tensors[f"{EMBEDDING}.weight"], tensors[f"{HEAD}.weight"]
    )  # stages of their own have trained two
    values["tie_word_embeddings"] = bool(values.get("tie_word_embeddings")) and tied
    with torch.device("meta"):
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    if compared:
        again = AutoModelForCausalLM.from_pretrained(
            folder, dtype=network.numerics.dtype, attn_implementation="sdpa", local_files_only=True
        )
        _compare(network, again.eval(), folder, values["vocab_size"])


@torch.no_grad()
def _compare(network: Network, again: Any, folder: Path, vocabulary: int) -> None:
    length = min(_COMPARED, network.facts.shape[0])
    tokens = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    expected: Any = network(tokens)
    with network.numerics.arithmetic():  # of the run: transformers knows no `precision.compute`
        found = again(tokens).logits.transpose(1, 2)
    difference = float((found.to(expected.dtype) - expected).abs().max())
    rounding = 1e-4 * float(expected.abs().max()) if any(adapters(dict(network.nodes.items()))) else 0.0
    if not difference <= rounding:
        raise RunFailed(f"{folder} is written, but its logits differ from the network's by up to {difference:.3g}")


def _write_adapters(parts: Mapping[str, nn.Module], folder: Path, base: str | None) -> None:
    """Source of the format: https://huggingface.co/docs/peft/developer_guides/checkpoint."""
    adapted = dict(adapters(parts))
    lora: Any = getattr(next(iter(parts.values())), "lora", None)
    if lora is None or not adapted:
        raise SpecError(
            "the network has no adapters", "export the whole network; lora = { on = [...] } trains adapters"
        )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base if base is not None and Path(base).is_dir() else None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(adapted),
        "bias": "none",
        "inference_mode": True,
    }
    tensors = {
        f"{_PEFT}{name}.{one}.weight": layer.get_submodule(one).weight.detach().contiguous()  # type: ignore[operator]
        for name, layer in adapted.items()
        for one in NAMES
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
