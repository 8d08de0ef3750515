"""What a run is, in values that another run is compared with: its resolved specification, the versions, and what it computes.

The resolved specification has every decision of a preparation written down, so that running it repeats the run.

Code, options and versions can be compared, and yet a constructor may draw, or read a file, or keep something outside its tensors, and build
another network with the same weights. So a run keeps its fingerprint: eight samples of its data, and what its network and its loss make of
them. Whoever takes the run up later (a resume, `evaluate`, `predict`, `export`, `pg.load`) computes it again, as every process of a run does
before it trains.

Decision: parameters are drawn anew, by their names. Then the fingerprint is known before the training, is the same in a resumed run as in
one that has ended, and shows what initial zeros would hide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from attrs import asdict, evolve, frozen
from torch import Tensor

from petra_graph.blocks.randomness import random_key
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.author_code import FIRST_PARTY
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import fork_generators, seeded
from petra_graph.plugins.loss_and_metric import mean_loss, target_weight
from petra_graph.plugins.tensor_trees import Tree, leaves, named_leaves
from petra_graph.record.run_directory import damaged, sha256_of, write_whole
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.model import GraphSpec, NodeSpec, PluginSpec, Spec
from petra_graph.spec.strict_values import flat, keys_with
from petra_graph.training.data import OpenedData
from petra_graph.training.trained_network import Network

if TYPE_CHECKING:
    from petra_graph.runtime.world import World
    from petra_graph.training.prepare import Prepared

FILE = "fingerprint.pt"
_PLACES = 4
"""From which two samples each are taken."""
_MOST_VALUES = 2**12
"""Of the outputs that are kept, spread over all of them."""
_MOST_PARAMETERS = 2**27
"""Larger networks are compared by their samples alone: they would compute for minutes on a CPU."""
_BOUNDS = {"float32": 1e-3, "float64": 1e-9, "bfloat16": 5e-2}
"""Largest difference over the norm, as processors and versions of libraries round otherwise."""


def resolved(prepared: Prepared) -> Spec:
    """Return the specification with nodes written out, stages cut, devices named and every option's value."""
    spec, checked, placement = _with_absolute_paths(prepared.spec), prepared.checked, prepared.placement
    devices = tuple(program.device for program in prepared.programs)
    planned = [device.name for device in placement.devices]
    hosts = dict.fromkeys(stage.device for stage in placement.stages)

    def in_pipeline_order(given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        """Return the values of single devices in the order in which the pipeline goes through these."""
        if device_count(spec.partition) != len(set(devices)):
            return None  # The run has another number of devices.
        return tuple(given[planned.index(host)] for host in hosts) if isinstance(given, tuple) else given

    def with_options(table: Any, plugin: Plugin) -> Any:
        return evolve(table, options=_options(plugin.options))

    def all_with_options(tables: Sequence[PluginSpec] | None, plugins: Sequence[Plugin]) -> Any:
        return None if tables is None else tuple(map(with_options, tables, plugins))

    kept = spec.method.keep if placement.kept is None else placement.kept
    return evolve(
        spec,
        architecture=None,
        graph=_graph_spec(prepared.network.graph),
        method=evolve(spec.method, schedule=placement.schedule, keep=kept),
        partition=evolve(
            spec.partition,
            stages=tuple(program.nodes for program in prepared.programs),
            devices=devices,  # one for each stage, so that nothing is left to be spread
            device_type=in_pipeline_order(spec.partition.device_type),
            memory=in_pipeline_order(spec.partition.memory),
        ),
        optimizer=with_options(spec.optimizer, checked.optimizer),
        lr_schedule=with_options(spec.lr_schedule, checked.lr_schedule),
        loss=with_options(spec.loss, checked.loss),
        data=with_options(spec.data, checked.data),
        metric=all_with_options(spec.metric, checked.metrics),
        callback=all_with_options(spec.callback, checked.callbacks),
    )


def _graph_spec(graph: NodeGraph) -> GraphSpec:
    nodes = (
        NodeSpec(name=one.name, block=one.block, kind=one.kind, inputs=one.inputs, options=_options(one.options))
        for one in graph.nodes.values()
    )
    return GraphSpec(node=tuple(nodes))


def _options(options: Any) -> dict[str, Any]:
    """Return options as a table; None is left out, since it is the default."""
    named = keys_with(Path, type(options))
    values = {key: _absolute(value) if key in named else value for key, value in asdict(options).items()}
    return {key: value for key, value in values.items() if value is not None}


def _with_absolute_paths(spec: Spec) -> Spec:
    partition = evolve(spec.partition, profile=_absolute(spec.partition.profile))
    return evolve(spec, partition=partition, init=evolve(spec.init, weights=_absolute(spec.init.weights)))


def _absolute(name: str | None) -> str | None:
    """Return a file's name as one that means the same in a file of any folder; one that begins with ~ or a variable does."""
    return name if name is None or name.startswith(("~", "$")) else os.path.abspath(name)  # noqa: PTH100  no links resolved


# --- what is compared with another process, or with an earlier time -----------------------------------------------------


def resolved_values(prepared: Prepared) -> dict[str, str]:
    """Return the resolved specification's values as text, by key; the folder of the results may be another one in each process."""
    return {key: value for key, value in flat(toml_values(resolved(prepared))) if key != "run.directory"}


def versions_of(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of the libraries on which the bits depend, and of these packages."""
    return {name: version(name) for name in ("petra-graph", "torch", "numpy", *packages)}


def list_changes(then: Mapping[str, str], now: Mapping[str, str], when: tuple[str, str] = ("then", "now")) -> list[str]:
    """Return what is not as it was, with words for the one and the other."""
    return [
        f"{name}: {then.get(name, 'unset')} {when[0]}, {now.get(name, 'unset')} {when[1]}"
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name)
    ]


def agree(world: World, prepared: Prepared) -> None:
    """Refuse a run whose specification, data, or versions of libraries or plugins are not those of rank 0: the bits depend on them."""
    packages = sorted({one.distribution for one in prepared.checked.plugins} - {"", FIRST_PARTY})
    here = {f"{name}'s version": found for name, found in versions_of(packages).items()}
    if prepared.initial is not None:  # from a file, or the files of a folder
        file = prepared.initial.file
        files = sorted(path for path in file.iterdir() if path.is_file()) if file.is_dir() else [file]
        here["the weights to begin with"] = sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    here |= {"the process of each stage": str(prepared.ranks), **resolved_values(prepared)}
    if world.rank == 0:
        world.store.set("run", [here, prepared.fingerprint.values])
        return
    first, computed = world.wait("run")
    differences = [*list_changes(first, here, ("on rank 0", "here")), *prepared.fingerprint.changes(computed)]
    message = f"rank {world.rank} and rank 0 run different things: "
    hint = "start the same specification, overrides and versions on every machine"
    if differences:
        raise SpecError([Problem(message=message + difference, hint=hint) for difference in differences[:3]])


# --- what it computes ---------------------------------------------------------------------------------------------------


@frozen(kw_only=True, eq=False)
class Fingerprint:
    samples: Tree
    """As the data set stores them."""
    targets: Tree
    classes: tuple[str, ...]
    """The names of the classes; () where they are not known."""
    outputs: Tensor | None
    """Of the head in evaluation mode, in float64; None: the network is large, or does not run on a CPU."""
    loss: float | None
    bound: float

    @classmethod
    def of(cls, network: MeasuredNetwork, data: OpenedData, *, computes: bool = True) -> Fingerprint:
        """Return the fingerprint of a run, without outputs unless it `computes` them.

        Its samples are the first two of each of four places of the training data, or of the test data where that is a stream.
        """
        split = data.by_index
        places = [len(split) * place // _PLACES for place in range(_PLACES)]
        rows = sorted({row for place in places for row in (place, place + 1) if row < len(split)})
        return cls.of_samples(network, data.facts, *split.fetch(np.array(rows), seed=0, epoch=0), computes=computes)

    @classmethod
    def of_samples(
        cls, network: MeasuredNetwork, facts: DataFacts, samples: Tree, targets: Tree, *, computes: bool = True
    ) -> Fingerprint:
        """Compute what a network makes of samples, on the CPU and in the run's precision."""
        outputs, loss = None, None
        if computes and network.count_parameters()[0] <= _MOST_PARAMETERS:
            with suppress(Exception):  # kernels of another device, say; a run that fails says so by itself
                outputs, loss = _compute(network, facts, samples, targets)
        names, bound = tuple(facts.class_names or ()), _BOUNDS[network.spec.precision.compute]
        return cls(samples=samples, targets=targets, classes=names, outputs=outputs, loss=loss, bound=bound)

    @property
    def values(self) -> dict[str, Any]:
        """What is compared, as JSON: of samples and targets the SHA-256 of their places, shapes, types and bytes."""
        whole = sha256()
        for path, one in named_leaves([self.samples, self.targets]):
            whole.update(f"{path} {one.dtype} {list(one.shape)}".encode())
            whole.update(one.contiguous().view(torch.uint8).numpy().tobytes() if one.numel() else b"")
        outputs = None if self.outputs is None else self.outputs.tolist()
        return {"samples": whole.hexdigest(), "classes": list(self.classes), "outputs": outputs, "loss": self.loss}

    def changes(self, now: Mapping[str, Any]) -> list[str]:
        """Return in words what of this fingerprint is other in the `values` of another one."""
        found, then = list[str](), self.values
        same = now["samples"] == then["samples"]
        if not same:
            found.append(f"the data: its samples were {then['samples'][:12]}, and are {now['samples'][:12]}")
        if now["classes"] != then["classes"]:
            named = next((pair for pair in zip(self.classes, now["classes"], strict=False) if pair[0] != pair[1]), None)
            found.append(f"the classes: {f'{named[0]} is now {named[1]}' if named else 'there are others'}")
        if not same or self.outputs is None or now["outputs"] is None:
            return found
        cause = "the code, a file that it reads, or a version changed"
        own, other = self.outputs, torch.tensor(now["outputs"], dtype=torch.float64)
        if own.shape != other.shape:
            return [*found, f"the network: for the same samples and weights it returns other shapes; {cause}"]
        apart = float((own - other).nan_to_num().norm() / own.nan_to_num().norm().clamp(min=1e-300))
        if apart > self.bound or not torch.equal(own.isnan(), other.isnan()):
            found.append(f"the network: for the same samples and weights its outputs differ by {apart:.1e}; {cause}")
        elif self.loss is not None and not math.isclose(self.loss, now["loss"], rel_tol=self.bound, abs_tol=self.bound):
            found.append(f"the loss: of the same outputs it was {self.loss:.6g}, and is {now['loss']:.6g}; {cause}")
        return found

    def write(self, directory: Path) -> None:
        """Write it into a run's directory; raise RunFailed if the disk refuses."""
        content = BytesIO()  # torch's own writer of files would not say that a disk is full
        torch.save(asdict(self, recurse=False), content)
        write_whole(directory / FILE, lambda temporary: temporary.write_bytes(content.getbuffer()))

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the fingerprint of a run, None where it has none; raise SpecError if its file is damaged."""
        path = directory / FILE
        try:
            return cls(**torch.load(path, weights_only=True))
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  torch's reader raises whatever a damaged pickle leads it to
            raise damaged(path, error) from None


def _compute(network: MeasuredNetwork, facts: DataFacts, samples: Tree, targets: Tree) -> tuple[Tensor, float]:
    built = Network(network, facts).eval()
    with fork_generators():  # as they are: what a constructor draws is to show itself
        loss = network.checked.loss.build()
    with uncompiled(), torch.no_grad(), seeded(network.spec.run.seed):
        for name in built.graph.order:
            for key, one in built.block(name).named_parameters():
                drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(random_key(name, key)))
                # As large as usual initial values are; scales and shifts stay near 1.
                inputs = one[0].numel() if one.ndim > 1 else 0
                one.copy_(drawn / math.sqrt(inputs) if inputs else 1 + drawn / 10)
        output = built(samples)
        with built.numerics.arithmetic():
            value = float(mean_loss(loss, output, targets, target_weight(loss, targets)))
    found = torch.cat([one.flatten().double() for one in leaves(output)])
    return found[torch.linspace(0, len(found) - 1, min(len(found), _MOST_VALUES)).long()], value
