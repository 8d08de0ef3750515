"""`petra-graph check`: whether plugins keep what training relies on, without pytest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from petra_graph.cli.list import named_plugin
from petra_graph.cli.options_and_output import echo, import_torch, json_option, print_json, set_option
from petra_graph.errors import PluginError, SpecError

if TYPE_CHECKING:
    from petra_graph.plugins.contract import Plugin
    from petra_graph.plugins.registry import Registry
    from petra_graph.testing import AnyTrial, Outcome

_SIDE = (8, 6, 6)
"""The shape of each stream of a block, where none is given."""
Cases = Iterator[tuple[str, "AnyTrial | None", str]]
"""The label of each plugin, its trial (None where it cannot be tried), and why it cannot."""


class _Shapes(click.ParamType[list[tuple[int, ...]]]):
    name = "shapes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, ...]]:
        if not re.fullmatch(r"\d+(x\d+)*(,\d+(x\d+)*)*", value):
            self.fail(f"{value!r} is not a list of shapes, as in 8x6x6,8x6x6", param, ctx)
        return [tuple(int(size) for size in shape.split("x")) for shape in value.split(",")]


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="PLUGIN|SPEC...")
@set_option
@click.option(
    "--inputs", type=_Shapes(), metavar="SHAPES", help="Of the streams that a block reads, as in 8x6x6,8x6x6."
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    names: Sequence[str],
    overrides: Sequence[str],
    inputs: list[tuple[int, ...]] | None,
    as_json: bool,
) -> None:
    """Check that blocks, optimizers, losses and data sets keep what training relies on, on the CPU.

    SPEC is a file: its blocks are checked at the shapes that they have there, and its optimizer, loss and data set. PLUGIN is one of
    `petra-graph list`, as in blocks/rev-basic or rev-basic, or KIND/module:attribute; a distribution means all of its plugins. --set is
    then one of its options, as in --set hidden=8. Exit code 4: a promise is broken.
    """
    import_torch()
    import torch
    from attrs import asdict

    from petra_graph.plugins.registry import discover
    from petra_graph.testing import examine

    torch.set_num_threads(1)
    results: list[tuple[str, str, list[Outcome]]] = []
    for name in names:
        of_spec = name.endswith(".toml")
        cases = _of_spec(name, overrides) if of_spec else _of_plugins(discover(), name, overrides, inputs)
        for label, trial, reason in cases:
            results.append((label, reason, [] if trial is None else examine(trial)))
    if as_json:
        print_json(
            [{"plugin": label, "reason": why, "checks": list(map(asdict, made))} for label, why, made in results]
        )
    else:
        for label, reason, outcomes in results:
            echo(f"{label}: not tried: {reason}" if reason else _text(label, outcomes))
    if any(outcome.status == "broken" for _, _, outcomes in results for outcome in outcomes):
        ctx.exit(PluginError.exit_code)


def _text(label: str, outcomes: Sequence[Outcome]) -> str:
    counts = {status: sum(one.status == status for one in outcomes) for status in ("kept", "broken", "not tried")}
    head = f"{label}: {', '.join(f'{count} {status}' for status, count in counts.items() if count)}"
    return "\n".join([head, *(f"  {one.check} {one.status}: {one.found}" for one in outcomes if one.found)])


def _of_plugins(
    registry: Registry,
    name: str,
    overrides: Sequence[str],
    inputs: list[tuple[int, ...]] | None,
) -> Cases:
    """Yield the plugins of a name or a distribution."""
    from petra_graph.plugins.contract import read_options
    from petra_graph.spec.layers import parse_override

    given = {one.keys[0]: one.value for one in map(parse_override, overrides)}
    for plugin in _named(registry, name):
        options, problems = read_options(plugin, given, ("options",))
        if problems and given:
            raise SpecError(problems)
        trial, reason = (None, problems[0].message) if problems else _trial(plugin, options, inputs)
        yield plugin.label, trial, reason


def _named(registry: Registry, name: str) -> list[Plugin]:
    entries = registry.only([name]).entries
    of_distribution = [(kind, one.name) for kind in registry.kinds for one in entries if one.group == kind.group]
    return [registry.resolve(*one) for one in of_distribution] or [named_plugin(registry, name)]


def _trial(plugin: Plugin, options: Any, inputs: list[tuple[int, ...]] | None) -> tuple[AnyTrial | None, str]:
    from petra_graph import testing
    from petra_graph.blocks.couplings import WrongResult
    from petra_graph.testing.other_checks import OTHERS

    if plugin.kind.short != "blocks":
        of_kind = OTHERS.get(plugin.kind.short)
        return (
            (None, f"nothing is checked of {plugin.kind.nouns}")
            if of_kind is None
            else (of_kind.of(plugin, options), "")
        )
    shapes = inputs or [_SIDE] * (getattr(plugin.code, "streams", None) or 1)
    trial = testing.Trial.of(plugin, shapes, options)
    try:
        if inputs is None:
            testing.block_trial.Harness(trial).peek(0, trial.streams(trial.numerics("float64"), 0))
    except WrongResult:
        pass  # whatever the shapes are: a check says it
    except Exception as error:  # noqa: BLE001  it may raise anything
        return (
            None,
            f"it does not read {trial.inputs} ({error}); give --inputs, or a specification that has it",
        )
    return trial, ""


def _of_spec(file: str, overrides: Sequence[str]) -> Cases:
    """Yield the plugins of a specification, as a run would have them."""
    from petra_graph.plugins.data_set import zero_targets
    from petra_graph.plugins.tensor_trees import Tree
    from petra_graph.testing import DataSetTrial, LossTrial, OptimizerTrial
    from petra_graph.training.prepare import prepare
    from petra_graph.training.trials import block_trials

    prepared = prepare(file, overrides)
    checked, network, facts = prepared.checked, prepared.network, prepared.facts
    for node, trial in block_trials(network, prepared.opened.data):
        yield f'node "{node.name}", {trial.plugin}', trial, ""

    def batch() -> tuple[Tree, Tree]:
        import torch

        targets = zero_targets(facts, 6)
        if facts.classes is not None:
            targets = torch.randint(facts.classes, targets.shape)
        elif not facts.several_targets and targets.is_floating_point():
            targets = torch.randn(targets.shape)
        return torch.randn(6, *network.shapes[network.graph.head].outputs[0]), targets

    loss, several = checked.loss, facts.several_targets or network.shapes[network.graph.head].several
    yield str(checked.optimizer.plugin), OptimizerTrial.of(checked.optimizer.plugin, checked.optimizer.options), ""
    if several:
        yield str(loss.plugin), None, "the network has several outputs or targets"
    else:
        yield str(loss.plugin), LossTrial.of(loss.plugin, loss.options, batch=batch), ""
    yield str(checked.data.plugin), DataSetTrial.of(checked.data.plugin, checked.data.options), ""
