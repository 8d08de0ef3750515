"""`petra-graph validate`: check specs, and that their networks can be built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from petra_graph.cli.options_and_output import (
    echo,
    import_torch,
    json_option,
    print_json,
    print_problems,
    problem_record,
    set_option,
)
from petra_graph.errors import PetraGraphError, SpecError, Where
from petra_graph.units import plural

if TYPE_CHECKING:
    from petra_graph.planning.network import MeasuredNetwork


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@set_option
@json_option
@click.pass_context
def validate(ctx: click.Context, specs: Sequence[str], overrides: Sequence[str], as_json: bool) -> None:
    """Check specs: keys, types, plugins, their options, the graph, and the shapes of its nodes.

    SPEC is a TOML file, or "-" for the standard input. Devices and data files need not be here.
    """
    import_torch()
    from petra_graph.planning.check.check_spec import check_spec
    from petra_graph.planning.network import check_network
    from petra_graph.plugins.registry import discover

    registry = discover()
    results: dict[str, MeasuredNetwork | PetraGraphError] = {}
    for spec in specs:
        try:
            results[spec] = check_network(check_spec(spec, overrides, registry=registry))
        except PetraGraphError as error:
            results[spec] = error
    failed = [result for result in results.values() if isinstance(result, PetraGraphError)]
    if as_json:
        print_json([_record(spec, result) for spec, result in results.items()])
    else:
        for spec, result in results.items():
            if not isinstance(result, PetraGraphError):
                nodes = plural(len(result.graph.nodes), "node")
                echo(f"{Where(file=spec)}: ok ({nodes}, {plural(result.parameters, 'parameter')})")
        print_problems([problem for error in failed for problem in error.problems])
    if failed:
        # The exit code blames plugins only where every spec is right.
        wrong = [error for error in failed if isinstance(error, SpecError)]
        ctx.exit((wrong or failed)[0].exit_code)


def _record(spec: str, result: MeasuredNetwork | PetraGraphError) -> dict[str, object]:
    if isinstance(result, PetraGraphError):
        return {"spec": spec, "ok": False, "problems": [problem_record(problem) for problem in result.problems]}
    return {
        "spec": spec,
        "ok": True,
        "nodes": len(result.graph.nodes),
        "parameters": result.parameters,
        "problems": [],
    }
