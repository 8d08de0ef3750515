"""What a run is, in values that another run is compared with: its resolved specification, the versions, and what it computes.

The same options may build another network for the same weights, since code has changed, or reads a file. So a run keeps its fingerprint, which
whoever takes it up later computes again, as every process of a run does before it trains.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from attrs import asdict, evolve, frozen

from petra_graph.blocks.randomness import random_key
from petra_graph.errors import SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.author_code import FIRST_PARTY
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import seeded
from petra_graph.plugins.loss_and_metric import mean_loss, target_weight
from petra_graph.plugins.tensor_trees import Tree, leaves, named_leaves
from petra_graph.record.run_directory import damaged, sha256_of, write_whole
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.model import GraphSpec, NodeSpec, Spec
from petra_graph.spec.strict_values import flat, keys_with
from petra_graph.training.data import OpenedData
from petra_graph.training.trained_network import Network

if TYPE_CHECKING:
    from petra_graph.runtime.world import World
    from petra_graph.training.prepare import Prepared

FILE = "fingerprint.pt"
_SAMPLES = 8
_MOST_VALUES = 2**12  # of the outputs that are kept, spread over all of them
_MOST_PARAMETERS = 2**27  # larger networks are compared by their samples alone: they would compute for minutes on a CPU
_BOUNDS = {"float32": 1e-3, "float64": 1e-9, "bfloat16": 5e-2}  # processors and versions of libraries round otherwise


def resolved(prepared: Prepared) -> Spec:
    """Return the specification with nodes written out, stages cut, devices named and every option's value."""
    spec, checked, placement = prepared.spec, prepared.checked, prepared.placement
    devices = tuple(program.device for program in prepared.programs)

    def with_options(table: Any, plugin: Plugin) -> Any:
        return evolve(table, options=_options(plugin.options))

    kept = spec.method.keep if placement.kept is None else placement.kept
    return evolve(
        with_nodes(spec, prepared.network.graph),
        method=evolve(spec.method, schedule=placement.schedule, keep=kept),
        partition=evolve(
            spec.partition,
            stages=tuple(program.nodes for program in prepared.programs),
            devices=devices,  # one for each stage, so that nothing is left to be spread
            device_type=None,  # of the devices of the plan
            memory=None,
            profile=_absolute(spec.partition.profile),
        ),
        init=evolve(spec.init, weights=_absolute(spec.init.weights)),
        optimizer=with_options(spec.optimizer, checked.optimizer),
        lr_schedule=with_options(spec.lr_schedule, checked.lr_schedule),
        loss=with_options(spec.loss, checked.loss),
        data=with_options(spec.data, checked.data),
        metric=spec.metric and tuple(map(with_options, spec.metric, checked.metrics)),
        callback=spec.callback and tuple(map(with_options, spec.callback, checked.callbacks)),
    )


def with_nodes(spec: Spec, graph: NodeGraph) -> Spec:
    """Return a specification with its architecture written out as nodes, and nothing else decided."""
    nodes = (
        NodeSpec(name=one.name, block=one.block, kind=one.kind, inputs=one.inputs, options=_options(one.options))
        for one in graph.nodes.values()
    )
    return evolve(spec, architecture=None, graph=GraphSpec(node=tuple(nodes)))


def _options(options: Any) -> dict[str, Any]:
    """Return options as a table; None is left out, since it is the default."""
    named = keys_with(Path, type(options))
    values = {key: _absolute(value) if key in named else value for key, value in asdict(options).items()}
    return {key: value for key, value in values.items() if value is not None}


def _absolute(name: str | None) -> str | None:
    """Return a file's name as one that means the same in a file of any folder; one that begins with ~ or a variable does."""
    return name if name is None or name.startswith(("~", "$")) else os.path.abspath(name)  # noqa: PTH100  no links resolved


def values_of(prepared: Prepared) -> dict[str, str]:
    """Return what the bits depend on, as text by name: versions of libraries and plugins, and the resolved specification, wherever results go."""
    packages = {one.distribution for one in prepared.checked.plugins} - {"", FIRST_PARTY}
    versions = {f"{name}'s version": version(name) for name in (FIRST_PARTY, "torch", "numpy", *sorted(packages))}
    return versions | {key: value for key, value in flat(toml_values(resolved(prepared))) if key != "run.directory"}


def list_changes(then: Mapping[str, str], now: Mapping[str, str], when: tuple[str, str] = ("then", "now")) -> list[str]:
    """Return what is not as it was, with words for the one and the other."""
    both = [(name, then.get(name, "unset"), now.get(name, "unset")) for name in dict.fromkeys([*then, *now])]
    return [f"{name}: {one} {when[0]}, {other} {when[1]}" for name, one, other in both if one != other]


def agree(world: World, prepared: Prepared) -> None:
    """Refuse a run whose specification, data, or versions of libraries or plugins are not those of rank 0: the bits depend on them."""
    here = {"the process of each stage": str(prepared.ranks), **values_of(prepared)}
    if prepared.initial is not None:  # from a file, or the files of a folder
        file = prepared.initial.file
        files = sorted(path for path in file.iterdir() if path.is_file()) if file.is_dir() else [file]
        here["the weights to begin with"] = sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    if world.rank == 0:
        world.store.set("run", [here, *prepared.fingerprint.found])
        return
    first, *found = world.wait("run")
    if differences := [*list_changes(first, here, ("on rank 0", "here")), *prepared.fingerprint.changes(*found)]:
        message = f"rank {world.rank} and rank 0 run different things: {differences[0]}"
        raise SpecError(message, "start the same specification, overrides and versions on every machine")


@frozen(kw_only=True, eq=False)
class Fingerprint:
    """A few samples of a run's data, the SHA-256 of them with targets and classes, and what network and loss make of them, if it is known."""

    samples: Tree
    data: str
    outputs: Sequence[float] | None
    loss: float | None = None
    bound: float

    @classmethod
    def of(cls, network: MeasuredNetwork, data: OpenedData) -> Fingerprint:
        """Return the fingerprint of a run, from samples of its training data, or of its test data where that is a stream."""
        split, bound = data.by_index, _BOUNDS[network.spec.precision.compute]
        rows = np.unique(np.linspace(0, len(split) - 1, _SAMPLES).astype(int))
        samples, targets = split.fetch(rows, seed=0, epoch=0)
        digest = sha256(repr(tuple(data.facts.class_names or ())).encode())
        for path, one in named_leaves([samples, targets]):
            digest.update(f"{path} {one.dtype} {list(one.shape)}".encode())
            digest.update(one.contiguous().view(torch.uint8).numpy().tobytes() if one.numel() else b"")
        outputs, loss = outputs_of(network, data.facts, samples, targets)
        return cls(samples=samples, data=digest.hexdigest(), outputs=outputs, loss=loss, bound=bound)

    @property
    def found(self) -> tuple[str, Sequence[float] | None, float | None]:
        """What is compared with another one."""
        return self.data, self.outputs, self.loss

    def changes(self, data: str, outputs: Sequence[float] | None, loss: float | None = None) -> list[str]:
        """Return in words whether data, outputs or loss of another fingerprint are not these."""
        if data != self.data:
            return ["the data: its samples, its targets or the names of its classes are others"]
        if self.outputs is None or outputs is None:
            return []
        cause = "the code, a file that it reads, or a version changed"
        own, other = (torch.tensor(one, dtype=torch.float64).nan_to_num() for one in (self.outputs, outputs))
        apart = math.inf
        if own.shape == other.shape:
            apart = float((own - other).norm() / own.norm().clamp(min=1e-300))
        told = f"the network: for the same samples and weights its outputs differ by {apart:.1e}"
        if apart > self.bound:
            return [f"{told}; {cause}"]
        if self.loss is None or loss is None or math.isclose(self.loss, loss, rel_tol=self.bound, abs_tol=self.bound):
            return []
        return [f"the loss: of the same outputs it was {self.loss:.6g}, and is {loss:.6g}; {cause}"]

    def write(self, directory: Path) -> None:
        """Write it into a run's directory; raise RunFailed if the disk refuses."""
        content = BytesIO()  # torch's own writer of files would not say that a disk is full
        torch.save(asdict(self, recurse=False), content)
        write_whole(directory / FILE, lambda temporary: temporary.write_bytes(content.getbuffer()))

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the fingerprint of a run, None where it has none."""
        path = directory / FILE
        try:
            return cls(**torch.load(path, weights_only=True)) if path.exists() else None
        except Exception:  # noqa: BLE001  whatever a damaged pickle leads torch to; its own text advises to run the file's code
            raise damaged(path, ValueError("it holds no fingerprint")) from None


def outputs_of(
    network: MeasuredNetwork, facts: DataFacts, samples: Tree, targets: Tree | None = None
) -> tuple[list[float] | None, float | None]:
    """Return what a network makes of samples, on the CPU and in the run's precision, and its loss; None: it is large, or does not run there."""
    chosen, value = None, None
    if network.count_parameters()[0] > _MOST_PARAMETERS:
        return None, None
    # Kernels of another device, say, are not here; a run that fails says so by itself.
    with suppress(Exception), uncompiled(), torch.no_grad(), seeded(network.spec.run.seed):
        built = Network(network, facts).eval()
        # Parameters drawn by their names are known before the training and afterwards, and show what initial zeros would hide.
        for name in built.graph.order:
            for key, one in built.block(name).named_parameters():
                drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(random_key(name, key)))
                # As large as usual initial values are; scales and shifts stay near 1.
                inputs = one[0].numel() if one.ndim > 1 else 0
                one.copy_(drawn / math.sqrt(inputs) if inputs else 1 + drawn / 10)
        output = built(samples)
        found = torch.cat([one.flatten().double() for one in leaves(output)])
        chosen = found[torch.linspace(0, len(found) - 1, min(len(found), _MOST_VALUES)).long()].tolist()
        if targets is not None:
            loss = network.checked.loss.build()
            with built.numerics.arithmetic():
                value = float(mean_loss(loss, output, targets, target_weight(loss, targets)))
    return chosen, value if value is not None and math.isfinite(value) else None
