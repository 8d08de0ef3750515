"""The resolved specification: every decision of a preparation written down, so that running it repeats the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import asdict, evolve

from petra_graph.compiler.spec_checks import device_count
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check_spec import CheckedSpec
from petra_graph.plugins.contract import FIRST_PARTY, Plugin
from petra_graph.record.run_directory import sha256_of
from petra_graph.spec.model import GraphSpec, NodeSpec, PluginSpec, Spec
from petra_graph.spec.strict_values import as_mapping, flat, keys_with
from petra_graph.training.prepare import Prepared


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
        optimizer=_with_options(spec.optimizer, checked.optimizer),
        lr_schedule=_with_options(spec.lr_schedule, checked.lr_schedule),
        loss=_with_options(spec.loss, checked.loss),
        data=_with_options(spec.data, checked.data),
        metric=_all_with_options(spec.metric, checked.metrics),
        callback=_all_with_options(spec.callback, checked.callbacks),
    )


def resolved_values(prepared: Prepared) -> dict[str, str]:
    """Return the resolved specification's values as text, by key; the folder of the results may be another one in each process."""
    return {key: value for key, value in flat(as_mapping(resolved(prepared))) if key != "run.directory"}


def decisive(prepared: Prepared) -> dict[str, str]:
    """Return everything that the bits depend on besides what is computed (`fingerprint`), as text by name."""
    packages = sorted({one.distribution for one in prepared.checked.plugins} - {"", FIRST_PARTY})
    versions = {**library_versions(), **{name: version(name) for name in packages}}
    begun = {}
    if prepared.initial is not None:  # from a file, or the files of a folder
        file = prepared.initial.file
        files = sorted(path for path in file.iterdir() if path.is_file()) if file.is_dir() else [file]
        begun["the weights to begin with"] = sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    return {
        **{f"{name}'s version": found for name, found in versions.items()},
        **begun,
        "the process of each stage": str(prepared.ranks),
        **resolved_values(prepared),
    }


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries on which the bits depend."""
    return {name: version(name) for name in ("petra-graph", "torch", "numpy")}


def list_changes(then: Mapping[str, str], now: Mapping[str, str], when: tuple[str, str] = ("then", "now")) -> list[str]:
    """Return what is not as it was, with words for the one and the other."""
    return [
        f"{name}: {then.get(name, 'unset')} {when[0]}, {now.get(name, 'unset')} {when[1]}"
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name)
    ]


def expand_architecture(checked: CheckedSpec) -> Spec:
    """Return the specification with its architecture written out as nodes, and nothing else decided but the folders of its files."""
    spec, options = _with_absolute_paths(checked.spec), _options(checked.data.options)
    named = {key: options[key] for key in keys_with(Path, type(checked.data.options)) if key in spec.data.options}
    data = evolve(spec.data, options={**spec.data.options, **named})
    return evolve(spec, architecture=None, graph=_graph_spec(checked.graph), data=data)


def _with_absolute_paths(spec: Spec) -> Spec:
    return evolve(
        spec,
        partition=evolve(spec.partition, profile=_absolute(spec.partition.profile)),
        init=evolve(spec.init, weights=_absolute(spec.init.weights)),
    )


def _absolute(name: str | None) -> str | None:
    """Return a file's name as one that means the same in a file of any folder; one that begins with ~ or a variable does."""
    return name if name is None or name.startswith(("~", "$")) else os.path.abspath(name)  # noqa: PTH100  no links resolved


def _graph_spec(graph: NodeGraph) -> GraphSpec:
    nodes = (
        NodeSpec(name=one.name, block=one.block, kind=one.kind, inputs=one.inputs, options=_options(one.options))
        for one in graph.nodes.values()
    )
    return GraphSpec(node=tuple(nodes))


def _with_options(table: Any, plugin: Plugin) -> Any:
    return evolve(table, options=_options(plugin.options))


def _all_with_options(tables: Sequence[PluginSpec] | None, plugins: Sequence[Plugin]) -> Any:
    return None if tables is None else tuple(map(_with_options, tables, plugins))


def _options(options: Any) -> dict[str, Any]:
    """Return options as a table; None is left out, since it is the default."""
    named = keys_with(Path, type(options))
    values = {key: _absolute(value) if key in named else value for key, value in asdict(options).items()}
    return {key: value for key, value in values.items() if value is not None}
