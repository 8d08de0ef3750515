"""A saved run's network as a program that others run.

    torch-export   `torch.export.load(FILE).module()(samples)`, without petra-graph
    onnx           for onnxruntime and others

Programs read samples as the data set has them, and normalise them; the batch may be of any size, and a window of tokens shorter, where the
network's code does not fix its length. They compute in the type of the network's parameters, without autocast. What is written is run again
on the samples of the run's fingerprint, and compared: as other kernels add in another order, a sum of n terms has an error of up to n eps.
"""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from petra_graph.errors import RunFailed, SpecError, suggestion
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import Tree, inputs_of, main, mapped
from petra_graph.record.run_directory import write_whole, writing
from petra_graph.training.trained_network import Network

Format = Literal["torch-export", "onnx"]
_SUFFIXES = {"torch-export": ".pt2", "onnx": ".onnx"}
_TERMS, _MIXED_TERMS = 128, 8
_TRACED = 2  # samples of the batch with which a program is traced: torch takes a batch of one for a constant
_OPSET = 18


@frozen(kw_only=True)
class Exported:
    """What was written, and how it compares with the network."""

    file: Path
    samples: int  # with which it was compared
    difference: float  # the largest of any output, absolute
    tolerance: float

    def __str__(self) -> str:
        by = f"at most {self.difference:.2g} on {self.samples:,} samples (tolerance {self.tolerance:.2g})"
        return f"{self.file}\noutputs differ from the network's by {by}"


class _Main(nn.Module):
    """A network's main output, without autocast and memory formats."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        plain = evolve(network.numerics.precision, memory_format="contiguous")
        if plain.compute == "bfloat16":
            plain = evolve(plain, compute="float32")
        self.network.numerics = evolve(network.numerics, precision=plain)

    def forward(self, samples: Tree) -> Tensor:
        return self.network.streams(samples)[self.network.graph.head][0]


@torch.no_grad()
def export_network(run: SavedRun, network: Network, form: Format, file: Path | None = None) -> Exported:
    """Write a run's network, in evaluation mode on the CPU, by default into the run's directory; RunFailed: it cannot be written, or what is written gives other outputs."""
    if form not in _SUFFIXES:
        raise SpecError(f"an export has no form {form!r}", suggestion(form, _SUFFIXES))
    file, facts = file or run.directory / f"network{_SUFFIXES[form]}", run.facts
    with writing(file, "choose another path"):
        file.parent.mkdir(parents=True, exist_ok=True)
    if run.trained is None:
        raise SpecError(f"{run.directory} has no fingerprint, with whose samples an export is compared")
    samples, program_of = run.trained.samples, _Main(network).eval()
    of_batch: dict[int, Any] = {0: torch.export.Dim("batch"), **({1: torch.export.Dim.AUTO} if facts.of_tokens else {})}
    dynamic = {"samples": dict.fromkeys(facts.inputs, of_batch) if facts.several_inputs else of_batch}
    traced = mapped(lambda one: torch.cat([one] * _TRACED)[:_TRACED], samples)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(program_of, (traced,), dynamic_shapes=dynamic)
            write_whole(file, partial(_save, program, form, facts))
        found = _run_onnx(file, samples) if form == "onnx" else torch.export.load(file).module()(samples)
    except ModuleNotFoundError as error:
        raise SpecError(f"{form} needs {error.name}", "pip install 'petra-graph[export]'") from None
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        cause: BaseException = error  # the error behind all others names the operation
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
        raise RunFailed(f"the network cannot be written as {form}: {reason}") from error
    expected = main(network(samples))
    difference = float((found - expected).abs().max())
    mixed = network.numerics.precision.compute == "bfloat16"
    relative = _MIXED_TERMS * torch.finfo(torch.bfloat16).eps if mixed else _TERMS * torch.finfo(expected.dtype).eps
    tolerance = relative * max(1.0, float(expected.abs().max()))
    if not difference <= tolerance:  # nor is it nan
        by = f"{difference:.3g}, and {tolerance:.3g} is the tolerance"
        raise RunFailed(f"{file} is written, but its outputs differ from the network's by {by}", "please report it")
    return Exported(file=file, samples=len(expected), difference=difference, tolerance=tolerance)


def _save(program: torch.export.ExportedProgram, form: Format, facts: DataFacts, path: Path) -> None:
    if form == "torch-export":
        with path.open("wb") as file:  # torch asks for a suffix in a name
            torch.export.save(program, file)
        return
    names: Any = {"input_names": [name or "samples" for name in facts.inputs], "output_names": ["outputs"]}
    made = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, verbose=False, **names)
    assert made is not None
    made.save(path, external_data=False)


def _run_onnx(file: Path, samples: Tree) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    arrays = [one.contiguous().numpy() for one in inputs_of(samples)]
    names = [one.name for one in session.get_inputs()]
    return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])
