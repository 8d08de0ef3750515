"""A run's network as a folder that `AutoModelForCausalLM.from_pretrained` opens, or its adapters as one of `PeftModel.from_pretrained`.

config.json, generation_config.json, model.safetensors    written by transformers itself
adapter_config.json, adapter_model.safetensors            in their place, of the adapters alone
tokenizer.json                                            a copy of that of the run's data set, if it is text of tokens
"""

from __future__ import annotations

import json
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from petra_graph.errors import RunFailed, SpecError
from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network
from petra_graph_hf.blocks import Logits
from petra_graph_hf.declared import DocumentsOptions, PieceOptions, TokensOptions
from petra_graph_hf.names import EMBEDDING_WEIGHT, HEAD_WEIGHT, of_transformers
from petra_graph_hf.tokenizers_on_disk import FILE, file_of

_COMPARED = 64
"""Tokens of the window with which the folder is compared."""
_ROUNDING = 1e-4
"""How far the logits of `peft` may be from ours, which adds the same products in an order of its own."""


@frozen(kw_only=True)
class ExportedFolder:
    """What was written."""

    folder: Path
    compared: bool
    """Whether it was opened again, and has the network's logits; adapters are opened where `peft` is installed."""
    tokenizer: bool
    """Whether it has a tokenizer.json."""


def export_folder(
    run: str | Path, folder: Path, weights: str | None = None, *, unconverted: bool = False
) -> ExportedFolder:
    """Write a run's network, open the folder again and compare the logits of a random window.

    Adapters are added to the weights that they adapt.

    Args:
        run: its directory, or "latest".
        folder: new, or empty.
        weights: as `petra_graph.load` has it.
        unconverted: write the network without `[conversion]`, with the same weights; it is another function than the trained one.

    Raises:
        SpecError: there is no such run, it is not of an hf-decoder, it is converted, or the folder is not empty.
        RunFailed: it cannot be written, or opens with other logits.
    """
    _expect_new(folder)
    opened = SavedRun.open(run, ['conversion.coupling="none"'] if unconverted else [])
    network, _ = opened.load(weights)
    network.merge()
    hint = "--unconverted writes the network without [conversion], with the same weights; its outputs are others"
    _expect_unconverted(opened, hint)
    tensors = _tensors(network, opened.directory)
    model = _model(network, tensors, "meta")
    try:
        model.save_pretrained(folder)
        tokenizer = _copy_tokenizer(opened, folder)
    except OSError as error:
        raise _unwritten(folder, error) from None
    again = AutoModelForCausalLM.from_pretrained(
        folder, dtype=network.numerics.dtype, attn_implementation="sdpa", local_files_only=True
    )
    _expect_its_logits(network, again.eval(), folder, 0.0)
    return ExportedFolder(folder=folder, compared=True, tokenizer=tokenizer)


def export_adapter(run: str | Path, folder: Path, weights: str | None = None) -> ExportedFolder:
    """Write the adapters of a run's network as `peft` saves them; where it is installed, open them again and compare the logits.

    Args:
        run: its directory, or "latest".
        folder: new, or empty.
        weights: as `petra_graph.load` has it.

    Raises:
        SpecError: as `export_folder`; or the run began with random weights, has no adapters, or has trained more than them.
        RunFailed: it cannot be written, or `peft` finds other logits.
    """
    _expect_new(folder)
    opened = SavedRun.open(run)
    network, _ = opened.load(weights)
    _expect_unconverted(opened, "train adapters of the network as it is, without [conversion]")
    tensors = _tensors(network, opened.directory)
    base = opened.network.spec.init.weights
    if base is None:
        message = f"the network of {opened.directory} began with random weights, so its adapters belong to no model"
        raise SpecError(message, "export the whole network, or train adapters of a pretrained one, with init.weights")
    try:
        from petra_graph_modules.peft_adapter import CONFIG, WEIGHTS, peft_adapter
    except ImportError:
        raise SpecError(f"the network of {opened.directory} has no adapters", "export the whole network") from None
    adapter = peft_adapter(
        network.graph,
        network.block,
        of_transformers,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base if Path(base).is_dir() else None,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(adapter.config, indent=2) + "\n", "utf-8")
        content = save({name: one.contiguous() for name, one in adapter.tensors.items()}, {"format": "pt"})
        (folder / WEIGHTS).write_bytes(content)
        tokenizer = _copy_tokenizer(opened, folder)
    except OSError as error:
        raise _unwritten(folder, error) from None
    compared = find_spec("peft") is not None
    if compared:
        base_tensors = {name: one for name, one in tensors.items() if ".lora_" not in name}
        _expect_its_logits(network, _adapted(_model(network, base_tensors, "cpu"), folder), folder, _ROUNDING)
    return ExportedFolder(folder=folder, compared=compared, tokenizer=tokenizer)


def _adapted(model: PreTrainedModel, folder: Path) -> Any:
    """Return a model with the adapters of a folder."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what peft asks of transformers changes with its versions
        return PeftModel.from_pretrained(model, str(folder), local_files_only=True).eval()


def _expect_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} is there already", "name a new or an empty folder")


def _expect_unconverted(opened: SavedRun, hint: str) -> None:
    passes = opened.network.checked.passes
    if any(one.plugin.name == "conversion" and one.options.coupling != "none" for one in passes):
        raise SpecError(f"the network of {opened.directory} is converted, and transformers has no such layers", hint)


def _model(network: Network, tensors: dict[str, torch.Tensor], device: str) -> PreTrainedModel:
    """Return the model of transformers with these tensors; its other buffers are on `device`, and have no values on "meta"."""
    values = json.loads(_options(network).config)
    # Stages of their own, with `partition.untie`, have trained two.
    values["tie_word_embeddings"] &= torch.equal(tensors[EMBEDDING_WEIGHT], tensors[HEAD_WEIGHT])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(values.pop("model_type"), **values), attn_implementation="sdpa"
        )
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    made: PreTrainedModel = model
    return made


def _options(network: Network) -> PieceOptions:
    options = network.block(network.graph.head).options
    assert isinstance(options, PieceOptions)
    return options


def _unwritten(folder: Path, error: OSError) -> RunFailed:
    return RunFailed(f"{folder} cannot be written: {error.strerror or error}", "free space on that disk")


def _tensors(network: Network, directory: Path) -> dict[str, torch.Tensor]:
    others = [name for name in network.graph.nodes if not isinstance(network.block(name).options, PieceOptions)]
    if others or not isinstance(network.block(network.graph.head), Logits):
        message = f"the network of {directory} is no model of transformers: its node {(others or [network.graph.head])[0]!r} is another"
        raise SpecError(message, 'export a run with architecture "hf-decoder"; `petra-graph export` writes any network')
    return {
        of_transformers(name, key): value
        for name in network.graph.nodes
        for key, value in network.block(name).state_dict().items()
    }


def _copy_tokenizer(opened: SavedRun, folder: Path) -> bool:
    options = opened.network.checked.data.options
    if not isinstance(options, TokensOptions | DocumentsOptions):
        return False
    try:
        shutil.copyfile(file_of(options.tokenizer), folder / FILE)
    except SpecError:  # it is no longer where it was, and the network can be used without it
        return False
    return True


@torch.no_grad()
def _expect_its_logits(network: Network, again: Any, folder: Path, rounding: float) -> None:
    """Compare the logits of a random window; `rounding` is the share of the largest one by which they may differ.

    Raises:
        RunFailed: they differ by more.
    """
    length = min(_COMPARED, network.facts.shape[0])
    vocabulary: int = json.loads(_options(network).config)["vocab_size"]
    tokens = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    expected = network(tokens)
    with network.numerics.arithmetic():  # of the run: transformers knows no `precision.compute`
        found = again(tokens).logits.transpose(1, 2)
    difference = float((found.to(expected.dtype) - expected).abs().max())
    if not difference <= rounding * float(expected.abs().max()):
        message = f"{folder} is written, but its logits differ from the network's by up to {difference:.3g}"
        raise RunFailed(message, "please report it, with the spec")
