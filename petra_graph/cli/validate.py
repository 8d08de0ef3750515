"""`petra-graph validate`: check specs without torch."""

from __future__ import annotations

from collections.abc import Sequence

import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_problems, problem_record, set_option
from petra_graph.errors import PetraGraphError, SpecError, Where
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.plugins.registry import discover
from petra_graph.units import plural


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@set_option
@json_option
@click.pass_context
def validate(ctx: click.Context, specs: Sequence[str], overrides: Sequence[str], as_json: bool) -> None:
    """Check specs: keys, types, plugins, their options, and the graph's rules.

    SPEC is a TOML file, or "-" for the standard input. Shapes need torch, so only `run --dry-run` checks them.
    """
    registry = discover()
    results: dict[str, CheckedSpec | PetraGraphError] = {}
    for spec in specs:
        try:
            results[spec] = check_spec(spec, overrides, registry=registry)
        except PetraGraphError as error:
            results[spec] = error
    failed = [result for result in results.values() if isinstance(result, PetraGraphError)]
    if as_json:
        print_json([_record(spec, result) for spec, result in results.items()])
    else:
        for spec, result in results.items():
            if isinstance(result, CheckedSpec):
                echo(_line(spec, result))
        print_problems([problem for error in failed for problem in error.problems])
    if failed:
        # The exit code blames plugins only where every spec is right.
        wrong = [error for error in failed if isinstance(error, SpecError)]
        ctx.exit((wrong or failed)[0].exit_code)


def _line(spec: str, checked: CheckedSpec) -> str:
    count = len(checked.graph.nodes)
    left = [*(f"block {name} not checked" for name in checked.unchecked_blocks), "shapes not checked"]
    return f"{Where(file=spec)}: ok ({plural(count, 'node')}; {', '.join(left)}, use run --dry-run)"


def _record(spec: str, result: CheckedSpec | PetraGraphError) -> dict[str, object]:
    if isinstance(result, CheckedSpec):
        unchecked = ["shapes", *result.unchecked_blocks]
        return {"spec": spec, "ok": True, "nodes": len(result.graph.nodes), "unchecked": unchecked, "problems": []}
    return {"spec": spec, "ok": False, "problems": [problem_record(problem) for problem in result.problems]}
