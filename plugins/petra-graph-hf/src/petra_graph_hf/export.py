"""A run's network as a folder that `AutoModelForCausalLM.from_pretrained` opens.

config.json, generation_config.json, model.safetensors    written by transformers itself
tokenizer.json                                            a copy of that of the run's data set, if it is text of tokens
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from attrs import frozen
from transformers import AutoConfig, AutoModelForCausalLM

from petra_graph.errors import RunFailed, SpecError
from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network
from petra_graph_hf.blocks import Logits
from petra_graph_hf.declared import DocumentsOptions, PieceOptions, TokensOptions
from petra_graph_hf.names import EMBEDDING_WEIGHT, HEAD_WEIGHT, of_transformers
from petra_graph_hf.tokenizers_on_disk import FILE, file_of

_COMPARED = 64
"""Tokens of the window with which the folder is compared."""


@frozen(kw_only=True)
class ExportedFolder:
    """What was written."""

    folder: Path
    difference: float
    """The largest of any logit between the network and the folder, opened again."""
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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} is there already", "name a new or an empty folder")
    opened = SavedRun.open(run, ['conversion.coupling="none"'] if unconverted else [])
    network, _ = opened.load(weights)
    network.merge()
    if any(one.plugin.name == "conversion" and one.options.coupling != "none" for one in opened.network.checked.passes):
        message = f"the network of {opened.directory} is converted, and transformers has no such layers"
        hint = "--unconverted writes the network without [conversion], with the same weights; its outputs are others"
        raise SpecError(message, hint)
    tensors = _tensors(network, opened.directory)
    head = network.block(network.graph.head)
    assert isinstance(head.options, PieceOptions)
    values = json.loads(head.options.config)
    # Stages of their own, with `partition.untie`, have trained two.
    values["tie_word_embeddings"] &= torch.equal(tensors[EMBEDDING_WEIGHT], tensors[HEAD_WEIGHT])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    try:
        model.save_pretrained(folder)
        tokenizer = _copy_tokenizer(opened, folder)
    except OSError as error:
        raise RunFailed(f"{folder} cannot be written: {error.strerror or error}", "free space on that disk") from None
    difference = _difference(network, folder, head.options)
    if difference:
        message = f"{folder} is written, but its logits differ from the network's by up to {difference:.3g}"
        raise RunFailed(message, "please report it, with the spec")
    return ExportedFolder(folder=folder, difference=difference, tokenizer=tokenizer)


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
def _difference(network: Network, folder: Path, options: PieceOptions) -> float:
    again = AutoModelForCausalLM.from_pretrained(
        folder, dtype=network.numerics.dtype, attn_implementation="sdpa", local_files_only=True
    ).eval()
    length = min(_COMPARED, network.facts.shape[0])
    vocabulary: int = json.loads(options.config)["vocab_size"]
    tokens = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    expected = network(tokens)
    with network.numerics.arithmetic():  # of the run: transformers knows no `precision.compute`
        found = again(tokens).logits.transpose(1, 2)
    return float((found.to(expected.dtype) - expected).abs().max())
