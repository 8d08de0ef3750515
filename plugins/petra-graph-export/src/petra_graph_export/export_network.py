"""A saved run's network in formats that other programs open: safetensors, torch.export, ONNX.

    safetensors    parameters and buffers by node, or as in the `state_dict` of a network that was cut into nodes; the samples' normalisation
                   and the resolved spec in the file's metadata
    torch-export   a program: `torch.export.load(FILE).module()(samples)`, without petra-graph
    onnx           a program for onnxruntime and others (`onnx_program`)

Programs read samples as the data set has them (images as uint8), and normalise them inside; the batch may be of any
size, and a window of tokens shorter, where the network's code does not fix its length.

They compute in the type of the network's parameters, without autocast. Parametrized weights are computed once. Low-rank
adapters are merged into the weights of their layers, so that names and cost are those of the network that was fine-tuned; a run's
`weights.safetensors` has the adapters by themselves.

What is written is run again on real samples, and compared with the network: a program, or the class of a network that was cut, with the tensors.
Outputs may differ in the last bits, as other kernels add in another order: a sum of n terms has an error of up to n eps. The tolerance is `_TERMS` times the eps
of the outputs' type, of their largest magnitude; where the run computes in bfloat16, 8 times the eps of that.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import asdict, frozen
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from petra_graph.blocks import Streams
from petra_graph.errors import PetraGraphError, RunFailed
from petra_graph.executor.numerics import Normalisation
from petra_graph.graph.node_graph import INPUT
from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network
from petra_graph.kinds.tensor_trees import Tree, inputs_of, main, mapped
from petra_graph.record.run_directory import make_folder_of, write_whole
from petra_graph.spec.load_spec import dump
from petra_graph_export.evaluate_run import open_data
from petra_graph_export.exported_tensors import INSTEAD, collect_tensors
from petra_graph_export.onnx_program import need_onnx, open_onnx, save_onnx

Format = Literal["safetensors", "torch-export", "onnx"]
SUFFIXES: Mapping[Format, str] = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
_HINTS = {
    "torch-export": "a block does what torch.export cannot follow: https://docs.pytorch.org/docs/stable/export.html",
    "onnx": "write what the network does in other operations, or export it as torch-export",
}
_TERMS, _MIXED_TERMS = 128, 8
_COMPARED = 1000
"""Test samples with which programs are compared."""
_TRACED = 2
"""Samples of the batch with which a program is traced: torch takes a batch of one for a constant."""


@frozen(kw_only=True)
class Exported:
    """What was written, and how it compares with the network."""

    file: Path
    samples: int
    """With which it was compared; 0: it was not."""
    difference: float | None = None
    """The largest of any output, absolute; None: it was not compared."""
    tolerance: float | None = None
    note: str = ""


class Portable(nn.Module):
    """A network in plain operations on tensors: its samples normalised, its nodes, the head's output."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        normalisation: Normalisation | None = network.numerics.normalisation
        if normalisation is not None:
            for name in ("mean", "std"):
                values = torch.tensor(getattr(normalisation, name), dtype=network.numerics.dtype)
                self.register_buffer(name, values, persistent=False)
        self.normalises = normalisation is not None

    def forward(self, samples: Tree) -> Tensor:
        """Return the head's output for samples [n, *shape] in the data set's type; several inputs are in a dictionary."""
        network = self.network
        dtype = network.numerics.dtype
        streams: dict[str, Streams] = {INPUT: tuple(map(self._prepare, inputs_of(samples)))}
        for name in network.graph.order:
            outputs = network.block(name)(*network.inputs_of(name, streams))
            streams[name] = tuple(one.to(dtype) if one.is_floating_point() else one for one in outputs)
        return streams[network.graph.head][0]

    def _prepare(self, samples: Tensor) -> Tensor:
        dtype = self.network.numerics.dtype
        if samples.dtype != torch.uint8:
            return samples.to(dtype) if samples.is_floating_point() else samples
        scaled = samples.to(dtype) / 255
        if not self.normalises:
            return scaled
        per_channel = (1, -1, *(1,) * (samples.dim() - 2))
        return (scaled - self.get_buffer("mean").view(per_channel)) / self.get_buffer("std").view(per_channel)


def export_network(run: SavedRun, network: Network, form: Format, file: Path) -> Exported:
    """Write a network, and compare what was written with it: on the run's test samples or, without them, on random ones.

    Args:
        run: which the network is of.
        network: in evaluation mode, on the CPU.
        file: to write; whole, or as it was.

    Raises:
        SpecError: the form needs a package that is not installed.
        RunFailed: the network cannot be exported, the file cannot be written, or its outputs are others.
    """
    make_folder_of(file)
    merged = copy.deepcopy(network)
    merged.merge()
    if form == "safetensors":
        return _export_tensors(run, network, merged, file)
    if form == "onnx":
        need_onnx()
    chosen, note = _samples_to_compare(run)
    portable = Portable(merged).eval()
    try:
        _compute_parametrized(portable)
        with _quiet(), torch.no_grad():
            dimensions = {0: torch.export.Dim("batch"), **({1: torch.export.Dim.AUTO} if run.facts.of_tokens else {})}
            traced = mapped(lambda one: torch.cat([one] * _TRACED)[:_TRACED], chosen)
            dynamic = dict.fromkeys(run.facts.inputs, dimensions) if run.facts.several_inputs else dimensions
            program = torch.export.export(portable, (traced,), dynamic_shapes={"samples": dynamic})
            if form == "torch-export":
                write_whole(file, lambda path: _save_program(program, path))
            else:
                write_whole(file, lambda path: save_onnx(run, program, path))
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        raise RunFailed(f"the network cannot be written as {form}: {_reason(error)}", _HINTS[form]) from error
    compared = [chosen, chosen[:, : (chosen.shape[1] + 1) // 2]] if _reads_shorter_windows(run, program) else [chosen]
    run_program = open_onnx(file) if form == "onnx" else torch.export.load(file).module()
    if run_program is None:
        return Exported(file=file, samples=0, note="not compared: onnxruntime is not installed")
    difference, tolerance = _compare(
        network, run_program, compared, f"{file} is written", "please report it, with the spec"
    )
    return Exported(file=file, samples=len(main(chosen)), difference=difference, tolerance=tolerance, note=note)


@torch.no_grad()
def _compute_parametrized(network: nn.Module) -> None:
    """Give layers with parametrizations, as orthogonal ones, the weights that these compute: programs have fewer operations, and ONNX lacks some."""
    modules: list[Any] = list(network.modules())
    for module in modules:
        if is_parametrized(module):
            values = {name: getattr(module, name) for name in module.parametrizations}
            module.__class__ = type_before_parametrizations(module)  # torch would change the class of all copies
            del module.parametrizations
            for name, value in values.items():
                module.register_parameter(name, nn.Parameter(value))


@torch.no_grad()
def _compare(
    network: Network, program: Callable[[Tree], Tensor], batches: Sequence[Tree], done: str, hint: str
) -> tuple[float, float]:
    """Return the largest difference of any output, and the tolerance.

    Raises:
        RunFailed: it is larger, or the program cannot be run; the message begins with what is done.
    """
    try:
        pairs = [(main(network(samples)), program(samples)) for samples in batches]
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise RunFailed(f"{done}, but cannot be run: {reason}", hint) from error
    difference = max(float((found - expected).abs().max()) for expected, found in pairs)
    tolerance = _tolerance(network, pairs[0][0])
    if not difference <= tolerance:
        raise RunFailed(
            f"{done}, but its outputs differ from the network's by {difference:.3g}, and {tolerance:.3g} is the tolerance",
            hint,
        )
    return difference, tolerance


def _reason(error: BaseException) -> str:
    """Return what an exporter could not do: the first line of its error, or the operation without a form in ONNX, which an error behind it names."""
    behind = error
    while behind.__cause__ is not None:
        behind = behind.__cause__
    if found := re.search(r"No ONNX function found for .*?op='([\w.]+)'", str(behind)):
        return f"ONNX has no operation {found[1]}"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _tolerance(network: Network, expected: Tensor) -> float:
    mixed = network.numerics.precision.compute == "bfloat16"
    relative = _MIXED_TERMS * torch.finfo(torch.bfloat16).eps if mixed else _TERMS * torch.finfo(expected.dtype).eps
    return relative * max(1.0, float(expected.abs().max()))


def _export_tensors(run: SavedRun, network: Network, merged: Network, file: Path) -> Exported:
    tensors, own = collect_tensors(merged)
    made = Exported(file=file, samples=0)
    if own is not None:
        chosen, note = _samples_to_compare(run)
        done = "nothing is written: the network's own class loads the tensors"
        difference, tolerance = _compare(network, own, [chosen], done, INSTEAD)
        made = Exported(file=file, samples=len(main(chosen)), difference=difference, tolerance=tolerance, note=note)
    metadata = {"format": "pt", "spec": dump(run.spec), "samples": json.dumps(asdict(run.facts))}
    write_whole(file, lambda path: save_file(dict(tensors), path, metadata))
    return made


def _save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as opened:
        torch.export.save(program, opened)


def _reads_shorter_windows(run: SavedRun, program: torch.export.ExportedProgram) -> bool:
    """Whether a program reads shorter windows of tokens than the network was trained on."""
    *_, samples = (node for node in program.graph.nodes if node.op == "placeholder")
    return run.facts.of_tokens and run.facts.shape[0] > 1 and not isinstance(samples.meta["val"].shape[1], int)


def _samples_to_compare(run: SavedRun) -> tuple[Tree, str]:
    """Return samples for the comparison, and why they are random if they are."""
    try:
        return first_samples(run, _COMPARED), ""
    except PetraGraphError as error:
        why = error.problems[0].message
        return _random_samples(run), f"compared with random samples, as the run's data cannot be read: {why}"


def first_samples(run: SavedRun, most: int) -> Tree:
    """Return the first test samples of a run's data, [n, *shape].

    Raises:
        SpecError: the data is not here.
        RunFailed: a sample cannot be read.
    """
    split = open_data(run).test
    samples, _ = split.fetch(np.arange(min(most, len(split))), seed=run.spec.run.seed, epoch=0)
    return samples


def _random_samples(run: SavedRun) -> Tree:
    """Return samples of the network's type and shape, the same each time."""
    generator = torch.Generator().manual_seed(0)

    def draw(of_one: tuple[int, ...], dtype: str) -> Tensor:
        shape = (_TRACED * 4, *of_one)
        if dtype == "uint8":
            return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        if dtype == "int64":
            return torch.zeros(shape, dtype=torch.int64)
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))

    drawn = {name: draw(*one) for name, one in run.facts.inputs.items()}
    return drawn if run.facts.several_inputs else drawn[""]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters report about themselves from the user's terminal."""
    names = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")
    before: dict[str, Any] = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
