"""`petra-graph profile`: time every node on the real device."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import asdict

from petra_graph.cli.options_and_output import (
    echo,
    import_torch,
    json_option,
    output_option,
    print_json,
    print_table,
    set_option,
)


@click.command()
@click.argument("spec", metavar="SPEC")
@set_option
@output_option("Where the profile goes; default: NAME.profile.json, after the spec's name.")
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many micro-batches to time.",
)
@json_option
def profile(spec: str, overrides: tuple[str, ...], output: Path | None, micro_batches: int, as_json: bool) -> None:
    """Time SPEC's nodes on its devices, for `petra-graph plan SPEC --profile FILE`.

    The network trains on a few micro-batches with each way of keeping activations; only the times are saved.
    """
    import_torch()
    from petra_graph.compiler.profile_check import taken_under_load
    from petra_graph.profiling import profile as measure
    from petra_graph.record.profile_files import write_profile
    from petra_graph.record.run_directory import make_folder_of

    if output is not None:
        make_folder_of(output)  # a wrong path is refused before minutes of measuring
    times = measure(spec, overrides, micro_batches)
    path = output or Path(f"{times.name}.profile.json")
    write_profile(path, times)
    if loaded := taken_under_load(times):
        echo(f"warning: {loaded}", err=True)
    if as_json:
        print_json(asdict(times))
        return
    operations = list(dict.fromkeys(name for node in times.nodes.values() for name in node))
    rows = [["node", *(f"{name}, ms" for name in operations)]]
    for node, seconds in times.nodes.items():
        rows.append([node, *(f"{1e3 * seconds[name]:.3f}" if name in seconds else "" for name in operations)])
    print_table(rows)
    echo(f"{times.device}; micro-batches of {times.micro_batch}; {path}")
