"""A program in ONNX: written with names, and opened again.

It names its input (images, tokens or samples; several as the data set does), its output (logits where the loss reads them as such, else outputs) and their axes, and says in its metadata:

    input_axes, output_axes    names of all axes, as a JSON list; those of any size are named in the program itself, too; of several inputs
                               an object of lists by their names, as is the normalisation
    class_names                a JSON list, where the data set has names
    normalisation              what the program does to images of uint8: {"divided_by": 255, "mean": [...], "std": [...]}, a number a channel
    opset, petra_graph_version
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.inference.saved_run import SavedRun
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.tensor_trees import Tree, inputs_of
from petra_graph.version import __version__
from petra_graph_export.predict_samples import classes_are_probable, gives_classes

_OPSET = 18
_IMAGE = ["channels", "height", "width"]


def save_onnx(run: SavedRun, program: torch.export.ExportedProgram, path: Path) -> None:
    from torch.onnx import export as export_onnx

    facts = run.facts
    by_input = {
        name: _axes(shape, "position" if facts.of_tokens else "features") for name, (shape, _) in facts.inputs.items()
    }
    axes = by_input if facts.several_inputs else by_input[""]
    name = "tokens" if facts.of_tokens else "images" if len(axes) == 1 + len(_IMAGE) else "samples"
    dynamic = {key: {0: "batch"} for key in by_input} if facts.several_inputs else dict(enumerate(axes))
    made = export_onnx(
        program,
        dynamo=True,
        opset_version=_OPSET,
        input_names=list(by_input) if facts.several_inputs else [name],
        output_names=["logits" if classes_are_probable(run) else "outputs"],
        dynamic_shapes={"samples": dynamic},
        verbose=False,
    )
    assert made is not None
    made.model.model_version = 1  # without one, onnxruntime reports 2**63 - 1
    made.model.metadata_props.update(
        {
            "input_axes": json.dumps(axes),
            "output_axes": json.dumps(_output_axes(run)),
            **({} if facts.class_names is None else {"class_names": json.dumps(facts.class_names)}),
            **({"normalisation": json.dumps(normalisation)} if (normalisation := _normalisation(facts)) else {}),
            "opset": str(_OPSET),
            "petra_graph_version": __version__,
        }
    )
    made.save(path, external_data=False)


def _axes(shape: Sequence[int], one: str) -> list[str]:
    """Return the names of a batch's axes, where each of its members has this shape; `one` is that of a single axis."""
    named = {1: [one], 2: _IMAGE[1:], 3: _IMAGE}
    return ["batch", *named.get(len(shape), [f"axis_{number}" for number in range(1, 1 + len(shape))])]


def _output_axes(run: SavedRun) -> list[str]:
    facts = run.facts
    if gives_classes(run):
        batch, *others = _axes(facts.target_shape, "position")
        return [batch, "classes", *others]
    return _axes(run.network.shapes[run.network.graph.head].outputs[0], "values")


def _normalisation(facts: DataFacts) -> dict[str, Any]:
    if facts.several_inputs:
        return {name: {"divided_by": 255} for name, (_, dtype) in facts.inputs.items() if dtype == "uint8"}
    if facts.dtype != "uint8":
        return {}
    return {"divided_by": 255, **({} if facts.mean is None else {"mean": facts.mean, "std": facts.std})}


def need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(f"ONNX needs {missing[0]}, which is not installed", "pip install 'petra-graph-export[onnx]'")


def open_onnx(file: Path) -> Callable[[Tree], Tensor] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(samples: Tree) -> Tensor:
        arrays = [np.ascontiguousarray(one.numpy()) for one in inputs_of(samples)]
        return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run
