"""What is done with plugins: `petra-graph list`, `check` and `new`."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import click

import petra_graph
from petra_graph.cli.options_and_output import Answer, Option, Sets, echo, import_torch, verb
from petra_graph.errors import PluginError, SpecError, raised_text, shown, suggestion
from petra_graph.plugins.contract import KINDS
from petra_graph.plugins.registry import Registry, discover
from petra_graph.report.tables import aligned
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.strict_values import annotated, describe

if TYPE_CHECKING:
    from petra_graph.plugins.contract import Plugin
    from petra_graph.testing import AnyTrial

_SIDE = (8, 6, 6)  # the shape of each stream of a block, where none is given
Cases = Iterator[tuple[str, "AnyTrial | str"]]  # the label of each plugin, with its trial, or why it cannot be tried


@verb("list")
def list_plugins(what: Annotated[str | None, "[KIND|PLUGIN]"] = None) -> Answer:
    """List the installed plugins; of one, its options. KIND is as in blocks, PLUGIN as in blocks/rev-basic or rev-basic."""
    registry, rows, lines = discover(), list[dict[str, str]](), list[str]()
    if what not in {None, *(kind.short for kind in KINDS)}:
        plugin = named_plugin(registry, str(what))
        text = inspect.cleandoc(plugin.code.__doc__ or "")
        for field in attrs.fields(plugin.schema):
            default = "unset" if field.default is None else "required"
            if field.default not in (None, attrs.NOTHING):
                default = shown(toml_values(field.default, field.name))
            about = {"type": describe(field.type), "default": default, "help": annotated(field.type)[1]}
            rows.append({"name": field.name, **about})
        said = {"kind": plugin.kind.short, "name": plugin.name, "distribution": plugin.distribution}
        lines = [f"{plugin.kind.short}/{plugin.name} ({plugin.distribution or 'in a file'})", "", text, "", "options:"]
        lines += [f"  {line}" for line in aligned(list(row.values()) for row in rows)]
        return Answer({**said, "documentation": text, "options": rows}, "\n".join(lines))
    for kind in (kind for kind in KINDS if what in {None, kind.short}):
        of_kind = list[dict[str, str]]()
        for one in sorted((one for one in registry.entries if one.group == kind.group), key=lambda one: one.name):
            top = one.target.partition(":")[0].partition(".")[0]  # as far as it can be said without an import
            fault = "" if PathFinder.find_spec(top) else f"broken: there is no module {top!r} ({one.target})"
            about = {"name": one.name, "distribution": one.distribution, "fault": fault}
            of_kind.append({"kind": kind.short, **about})
        rows += of_kind
        lines += [kind.short, *(f"  {line}" for line in aligned(list(row.values())[1:] for row in of_kind))]
    for distribution in registry.unreadable:
        echo(f"{distribution}: its entry points cannot be read", err=True)
    return Answer(rows, "\n".join(lines))


def named_plugin(registry: Registry, name: str) -> Plugin:
    """Return the plugin of a name on the command line: "rev-basic", "blocks/rev-basic", or "blocks/module:attribute"; raise SpecError if there is not one."""
    short, slash, plain = name.rpartition("/")
    kinds = [kind for kind in KINDS if (kind.short == short if slash else name in registry.names(kind))]
    if len(kinds) > 1:
        raise SpecError(f"{shown(name)} is {' or '.join(shown(f'{kind.short}/{name}') for kind in kinds)}")
    if not kinds:
        every = [name for kind in KINDS for name in (kind.short, *registry.names(kind))]
        hint = f"of code, say the kind as well: blocks/{name}" if ":" in name else suggestion(name, every)
        raise SpecError(f"there is no kind and no plugin {shown(name)}", hint)
    return registry.resolve(kinds[0], plain)


# --- check ---


@verb()
def check(
    names: Annotated[tuple[str, ...], "PLUGIN|SPEC..."],
    *,
    overrides: Sets = (),
    inputs: Annotated[str | None, Option("Of a block, as in 8x6x6,8x6x6.", "SHAPES")] = None,
) -> Answer:
    """Check that plugins keep what training relies on. They are blocks, optimizers, losses and data sets, on the CPU.

    Of a SPEC, its blocks are checked at their shapes there, and its optimizer, loss and data set. PLUGIN is as in `petra-graph list`, or
    KIND/module:attribute, or a distribution; --set is then an option, as in --set hidden=8. Exit code 4: a promise is broken; 2: nothing was checked.
    """
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in inputs.split(",")] if inputs else []
    except ValueError:
        raise click.UsageError(f"--inputs is {inputs!r}, and no list of shapes, as 8x6x6,8x6x6 is one.") from None
    import_torch()
    import torch

    from petra_graph.testing import examine

    torch.set_num_threads(1)
    results, lines, made = list[dict[str, Any]](), list[str](), set[str]()
    for name in names:
        cases = _of_spec(name, overrides) if name.endswith(".toml") else _of_plugins(name, overrides, shapes)
        for label, trial in cases:
            reason, outcomes = (trial, []) if isinstance(trial, str) else ("", examine(trial))
            results.append({"plugin": label, "reason": reason, "checks": [one._asdict() for one in outcomes]})
            counts = Counter(one.status for one in outcomes)
            lines.append(f"{label}: {reason or ', '.join(f'{many} {status}' for status, many in counts.items())}")
            lines += [f"  {one.check} {one.status}: {one.found}" for one in outcomes if one.found]
            made |= counts.keys()
    code = PluginError.exit_code if "broken" in made else 0 if made else SpecError.exit_code
    return Answer(results, "\n".join(lines), code)


def _of_plugins(name: str, overrides: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Cases:
    """Yield the plugins of a name or a distribution; a block whose shapes nobody gives is tried at usual ones, if it reads them."""
    from petra_graph.blocks.couplings import WrongResult
    from petra_graph.spec.load_spec import parse_override
    from petra_graph.testing import TRIALS, Trial
    from petra_graph.testing.block_checks import Harness

    registry, given = discover(), {one.keys[0]: one.value for one in map(parse_override, overrides)}
    owned = registry.only([name])
    named = [(kind, one) for kind in KINDS for one in owned.names(kind)]
    for resolved in [owned.resolve(*one) for one in named] or [named_plugin(registry, name)]:
        plugin, problems = resolved.read(given, ("options",))
        trial: AnyTrial | str = f"there are no checks of a plugin of this kind, {plugin.kind.noun}"
        if problems:
            trial = f"not tried: {problems[0].message}"
        elif plugin.kind.short == "blocks":
            trial = block = Trial.of(plugin, shapes or [_SIDE] * (getattr(plugin.code, "streams", None) or 1))
            try:
                if not shapes:
                    harness = Harness(block)
                    harness.runner.run_without_graph(0, harness.inputs(0))
            except WrongResult:
                pass  # whatever the shapes are: a check says it
            except Exception as error:  # noqa: BLE001  it may raise anything
                hint = "give --inputs, or a specification that has it"
                trial = f"not tried: it does not read {block.inputs} ({raised_text(error)}); {hint}"
        elif plugin.kind.short in TRIALS:
            trial = TRIALS[plugin.kind.short].of(plugin)
        yield plugin.label, trial


def _of_spec(file: str, overrides: Sequence[str]) -> Cases:
    """Yield the plugins of a specification, as a run would have them."""
    import numpy as np
    import torch

    from petra_graph.plugins.tensor_trees import Tree
    from petra_graph.testing import DataSetTrial, LossTrial, OptimizerTrial
    from petra_graph.training.prepare import prepare
    from petra_graph.training.trials import MOST_SAMPLES, block_trials

    prepared = prepare(file, overrides)
    checked, network, data = prepared.checked, prepared.network, prepared.opened
    head = network.shapes[network.graph.head]

    def batch() -> tuple[Tree, Tree]:
        count = min(MOST_SAMPLES, len(data.train))
        # Spread, as files of one class may come first, which would hide weights of classes; a stream is read from its beginning.
        rows = np.arange(count) * (1 if data.train.in_order else len(data.train) // count)
        return torch.randn(len(rows), *head.outputs[0]), data.train.fetch(rows, seed=0, epoch=0)[1]

    for node, trial in block_trials(network, data):
        yield f'node "{node.name}", {trial.plugin}', trial
    yield str(checked.optimizer), OptimizerTrial.of(checked.optimizer)
    several = prepared.opened.facts.several_targets or head.several
    refused = "not tried: the network has several outputs or targets"
    yield str(checked.loss), refused if several else LossTrial.of(checked.loss, batch=batch)
    yield str(checked.data), DataSetTrial.of(checked.data)


# --- new ---


@verb()
def plugin(name: Annotated[str, "NAME"]) -> Answer:
    """Write a package with a reversible block called NAME, in a new folder NAME: the example petra-graph-convnext under another name."""
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is None:
        raise SpecError(f"{shown(name)} cannot be a name", 'write small letters, digits and hyphens, as in "rev-tanh"')
    module, folder, files = name.replace("-", "_"), Path(name), list[str]()
    if folder.exists():
        raise SpecError(f"{folder} exists already", "give another name")
    root = Path(petra_graph.__file__).parent
    in_wheel, in_source = root / "example_plugin", root.parent / "plugins" / "petra-graph-convnext"
    names = {
        "petra-graph-convnext": name,
        "petra_graph_convnext": module,
        "rev-convnext": name,
        "convnext-digits": f"{name}-digits",
        "RevConvNext": "".join(word.capitalize() for word in name.split("-")),
    }
    folder.mkdir()
    for file in sorted((in_wheel if in_wheel.is_dir() else in_source).iterdir()):
        if file.suffix in {".md", ".py", ".toml"}:
            text = file.read_text(encoding="utf-8")
            for old, now in names.items():
                text = text.replace(old, now)
            files.append(str(folder / file.name.replace("petra_graph_convnext", module)))
            Path(files[-1]).write_text(text, encoding="utf-8")
    following = f"next, in {name}: pip install -e '.[test]', petra-graph check {name}, python -m pytest"
    return Answer(files, "\n".join([*files, "", following]))


new = click.Group("new", commands=[plugin], help="Start a package of plugins.")
