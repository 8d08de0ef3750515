"""A saved run's network in formats that other programs open.

    safetensors    parameters and buffers by node, or as in the `state_dict` of the user's own network; the facts of the samples
                   and the resolved spec in the file's metadata
    torch-export   a program: `torch.export.load(FILE).module()(samples)`, without petra-graph
    onnx           a program for onnxruntime and others; class names and the normalisation in its metadata

Programs read samples as the data set has them (images as uint8), and normalise them inside; the batch may be of any size, and a window
of tokens shorter, where the network's code does not fix its length. They compute in the type of the network's parameters, without
autocast; parametrized weights are computed once.

What is written is run again on the samples of the run's fingerprint, and compared with the network: a program, or the class of the user's
own network, with the tensors. Outputs may differ in the last bits, as other kernels add in another order: a sum of n terms has an error of up to n eps. The
tolerance is `_TERMS` times the eps of the outputs' type, of their largest magnitude; where the run computes in bfloat16, 8 times the eps of that.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import asdict, frozen
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from petra_graph.blocks import Streams
from petra_graph.blocks.dual_residual import COEFFICIENTS
from petra_graph.errors import RunFailed, SpecError
from petra_graph.graph.node_graph import INPUT
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.tensor_trees import Tree, inputs_of, main, mapped
from petra_graph.record.run_directory import make_folder_of, write_whole
from petra_graph.spec.load_spec import dump
from petra_graph.training.trained_network import Network
from petra_graph.version import __version__

Format = Literal["safetensors", "torch-export", "onnx"]
_SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
_HINTS = {
    "torch-export": "a block does what torch.export cannot follow: https://docs.pytorch.org/docs/stable/export.html",
    "onnx": "write what the network does in other operations, or export it as torch-export",
}
_INSTEAD = "torch-export and onnx write what was trained, and weights.safetensors in the run's directory has the tensors by node"
_TERMS, _MIXED_TERMS = 128, 8
_TRACED = 2
"""Samples of the batch with which a program is traced: torch takes a batch of one for a constant."""
_OPSET = 18
_IMAGE = 3
"""The dimensions of one image."""


@frozen(kw_only=True)
class Exported:
    """What was written, and how it compares with the network."""

    file: Path
    samples: int = 0
    """With which it was compared; 0: tensors by node, which are the network's own."""
    difference: float = 0.0
    """The largest of any output, absolute."""
    tolerance: float = 0.0

    def __str__(self) -> str:
        if not self.samples:
            return str(self.file)
        by = f"at most {self.difference:.2g} on {self.samples:,} samples (tolerance {self.tolerance:.2g})"
        return f"{self.file}\noutputs differ from the network's by {by}"


class Portable(nn.Module):
    """A network in plain operations on tensors: its samples normalised, its nodes, the head's output."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.normalises = bool(network.numerics.mean_and_std)
        for name, values in zip(("mean", "std"), network.numerics.mean_and_std, strict=False):
            self.register_buffer(name, values, persistent=False)

    def forward(self, samples: Tree) -> Tensor:
        """Return the head's output for samples [n, *shape] in the data set's type; several inputs are in a dictionary."""
        network = self.network
        streams: dict[str, Streams] = {INPUT: tuple(map(self._prepare, inputs_of(samples)))}
        for name in network.graph.order:
            streams[name] = tuple(map(self._typed, network.block(name)(*network.inputs_of(name, streams))))
        return streams[network.graph.head][0]

    def _typed(self, stream: Tensor) -> Tensor:
        return stream.to(self.network.numerics.dtype) if stream.is_floating_point() else stream

    def _prepare(self, samples: Tensor) -> Tensor:
        if samples.dtype != torch.uint8:
            return self._typed(samples)
        scaled = samples.to(self.network.numerics.dtype) / 255
        if not self.normalises:
            return scaled
        per_channel = (1, -1, *(1,) * (samples.dim() - 2))
        return (scaled - self.get_buffer("mean").view(per_channel)) / self.get_buffer("std").view(per_channel)


def export_network(run: SavedRun, network: Network, form: Format, file: Path | None = None) -> Exported:
    """Write a run's network, in evaluation mode on the CPU, and compare what was written with it.

    The file, None: `network` in the run's directory, is whole or as it was.

    Raises SpecError: the form needs a package that is not installed; RunFailed: the network cannot be exported, the file cannot be written, or its outputs are others.
    """
    file, facts = file or run.directory / f"network{_SUFFIXES[form]}", run.facts
    make_folder_of(file)
    if run.trained is None:
        raise SpecError(f"{run.directory} has no fingerprint, with whose samples an export is compared")
    chosen = run.trained.samples
    if form == "safetensors":
        return _export_tensors(run, network, chosen, file)
    for name in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
        if importlib.util.find_spec(name) is None:
            raise SpecError(f"ONNX needs {name}, which is not installed", "pip install 'petra-graph[export]'")
    portable = Portable(copy.deepcopy(network)).eval()
    # ONNX lacks some of the operations that compute parametrized weights, as orthogonal ones: they become plain parameters.
    modules: list[Any] = list(filter(is_parametrized, portable.modules()))
    try:
        for module in modules:
            values = {name: getattr(module, name) for name in module.parametrizations}
            module.__class__ = type_before_parametrizations(module)  # torch would change the class of all copies
            del module.parametrizations
            for name, value in values.items():
                module.register_parameter(name, nn.Parameter(value))
        with _quiet(), torch.no_grad():
            dimensions = {0: torch.export.Dim("batch"), **({1: torch.export.Dim.AUTO} if facts.of_tokens else {})}
            dynamic = dict.fromkeys(facts.inputs, dimensions) if facts.several_inputs else dimensions
            traced = mapped(lambda one: torch.cat([one] * _TRACED)[:_TRACED], chosen)
            program = torch.export.export(portable, (traced,), dynamic_shapes={"samples": dynamic})
            write_whole(file, partial(_save_onnx if form == "onnx" else _save_program, run, program))
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        raise RunFailed(f"the network cannot be written as {form}: {_reason(error)}", _HINTS[form]) from error
    written = _open_onnx(file) if form == "onnx" else torch.export.load(file).module()
    return _compared(network, written, chosen, file, done=f"{file} is written", hint="please report it, with the spec")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters report about themselves from the user's terminal."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _reason(error: BaseException) -> str:
    """Return what an exporter could not do: the first line of the error behind all others, which names the operation."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0] or type(error).__name__


@torch.no_grad()
def _compared(
    network: Network, program: Callable[[Tree], Tensor], samples: Tree, file: Path, *, done: str, hint: str
) -> Exported:
    """Compare a program with the network on samples.

    Raises RunFailed: outputs differ by more than the tolerance, or the program cannot be run; the message begins with what is done.
    """
    try:
        expected, found = main(network(samples)), program(samples)
    except Exception as error:
        raise RunFailed(f"{done}, but cannot be run: {_reason(error)}", hint) from error
    difference = float((found - expected).abs().max())
    mixed = network.numerics.precision.compute == "bfloat16"
    relative = _MIXED_TERMS * torch.finfo(torch.bfloat16).eps if mixed else _TERMS * torch.finfo(expected.dtype).eps
    tolerance = relative * max(1.0, float(expected.abs().max()))
    if not difference <= tolerance:  # nor is it nan
        by = f"{difference:.3g}, and {tolerance:.3g} is the tolerance"
        raise RunFailed(f"{done}, but its outputs differ from the network's by {by}", hint)
    return Exported(file=file, samples=len(main(samples)), difference=difference, tolerance=tolerance)


def _export_tensors(run: SavedRun, network: Network, chosen: Tree, file: Path) -> Exported:
    """Write the tensors; where they are those of the user's own network, its class must load them, and compute the same."""
    blocks = [(name, network.block(name)) for name in network.graph.nodes]
    tensors = {
        key if block.of_network is not None and key not in COEFFICIENTS else f"{name}.{key}": value.contiguous().clone()
        for name, block in blocks
        for key, value in block.state_dict().items()
    }
    made, makes = Exported(file=file), {block.of_network for _, block in blocks}
    if len(makes) == 1 and (make := makes.pop()) is not None:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            own = make().to(network.numerics.dtype).eval()
        done = "nothing is written: the network's own class"
        try:
            own.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunFailed(f"{done} does not load the tensors: {' '.join(str(error).split())}", _INSTEAD) from None

        def compute(samples: Tree) -> Any:
            return own(*map(network.numerics.prepare, inputs_of(samples)))

        made = _compared(network, compute, chosen, file, done=f"{done} loads the tensors", hint=_INSTEAD)
    metadata = {"format": "pt", "spec": dump(run.spec), "samples": json.dumps(asdict(run.facts))}
    write_whole(file, lambda path: save_file(tensors, path, metadata))
    return made


def _save_program(_: SavedRun, program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as file:  # torch asks for a suffix in a name
        torch.export.save(program, file)


def _save_onnx(run: SavedRun, program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a program in ONNX, whose inputs have the names of the data set's, or else are images, tokens or samples.

    The output is logits where the loss reads it as such, else outputs. In the metadata, as JSON, where there are any:

        class_names      a list
        normalisation    of images of uint8: {"divided_by": 255, "mean": [...], "std": [...]}, a number a channel; of several inputs by their names
    """
    facts = run.facts
    of_one = "tokens" if facts.of_tokens else "images" if len(facts.shape) == _IMAGE else "samples"
    axes = {0: "batch", **({1: "position"} if facts.of_tokens else {})}
    divided = {"divided_by": 255, **({} if facts.mean is None else {"mean": facts.mean, "std": facts.std})}
    normalisation = {name: divided for name, (_, dtype) in facts.inputs.items() if dtype == "uint8"}
    made = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=_OPSET,
        input_names=[name or of_one for name in facts.inputs],
        output_names=["logits" if run.gives_logits else "outputs"],
        dynamic_shapes={"samples": dict.fromkeys(facts.inputs, axes) if facts.several_inputs else axes},
        verbose=False,
    )
    assert made is not None
    made.model.model_version = 1  # without one, onnxruntime reports 2**63 - 1
    said = {"class_names": facts.class_names, "normalisation": normalisation.get("", normalisation)}
    texts = {key: json.dumps(value) for key, value in said.items() if value}
    made.model.metadata_props.update({**texts, "petra_graph_version": __version__})
    made.save(path, external_data=False)


def _open_onnx(file: Path) -> Callable[[Tree], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(samples: Tree) -> Tensor:
        arrays = [np.ascontiguousarray(one.numpy()) for one in inputs_of(samples)]
        return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run
