"""The command line's entry point: find the verb, import it only then, so that `--help` takes no longer than click, and return an exit code."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

import click

from petra_graph.cli.options_and_output import print_problems
from petra_graph.errors import FailedOnAnotherProcess, Interrupted, PetraGraphError
from petra_graph.plugins import registry
from petra_graph.plugins.author_code import author_code, find_code
from petra_graph.runtime import system
from petra_graph.version import __version__

VERBS = {
    "run": ("spec_verbs", "Train a spec."),
    "plan": ("spec_verbs", "Show stages, memory, staleness and speed before anything runs."),
    "validate": ("spec_verbs", "Check specs: keys, types, plugins, options, graph, shapes."),
    "profile": ("spec_verbs", "Time a spec's nodes on the real device, for plans."),
    "runs": ("run_verbs", "List runs: status, best metric, age."),
    "report": ("run_verbs", "Write a page about a run, or compare several."),
    "evaluate": ("run_verbs", "Evaluate a run's network on data."),
    "predict": ("run_verbs", "Print a run's predictions for files."),
    "export": ("run_verbs", "Write a run's network for other programs."),
    "list": ("plugin_verbs", "List the installed plugins; of one, its options."),
    "check": ("plugin_verbs", "Check that plugins keep what training relies on."),
    "new": ("plugin_verbs", "Start a package of plugins."),
}
"""The module of each verb, and its line in the help."""


class Verbs(click.Group):
    """A group that knows its verbs by their lines, and imports one when it is used."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_verb(name) if name else None, rest


def load_verb(name: str) -> click.Command:
    """Import a verb: one of ours, or of a distribution."""
    if name in VERBS:
        imported = vars(importlib.import_module(f"petra_graph.cli.{VERBS[name][0]}")).values()
        return next(one for one in imported if isinstance(one, click.Command) and one.name == name)
    entry = next(one for one in registry.discover().entries if (one.group, one.name) == (registry.VERBS, name))
    with author_code(f"{entry.distribution}: the verb {name!r} ({entry.target}) cannot be imported"):
        loaded: click.Command = find_code(entry.target)
    return loaded


def command_line() -> click.Group:
    """Return the group of all verbs that are installed, as their lines."""

    @click.group(cls=Verbs, subcommand_metavar="VERB [ARGUMENTS]...")
    @click.version_option(__version__, message="%(prog)s %(version)s")
    def cli() -> None:
        """Train reversible networks stage by stage with PETRA, from a TOML spec.

        Exit codes: 0 done, 1 run failed, 2 bad usage or spec, 3 no feasible plan, 4 plugin problem, 130 interrupted.
        """

    lines = {name: line for name, (_, line) in VERBS.items()}
    for one in registry.discover().entries:
        if one.group == registry.VERBS:
            lines.setdefault(one.name, f"A verb of {one.distribution}.")
    for name, line in lines.items():
        cli.add_command(click.Command(name, short_help=line))
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code; `arguments` are without the program's name, None: the process's own."""
    if arguments is not None:
        return _run(list(arguments))
    streams = [one for one in (sys.stdout, sys.stderr) if isinstance(one, io.TextIOWrapper)]  # None is a closed one
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")  # of a character that an encoding lacks, as the line below heads
    system.end_at_signals()
    for variable in {system.LAUNCHER, system.PARENT} & os.environ.keys():
        system.stop_with_parent(variable)
    if "RANK" in os.environ:  # of another launcher, as torchrun
        system.at_end_of_parent(signal.SIGTERM)
    try:
        code = _run(None)
    finally:
        system.ignore_signals()
        for stream in streams:
            try:
                stream.flush()
            except BrokenPipeError:  # whoever read it has gone; Python would try again at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code and "RANK" in os.environ:
        # Threads of this process may wait in torch for other ranks; Python's own end would stop them there, which aborts it.
        system.hard_exit(code)
    return code


def _run(arguments: list[str] | None) -> int:
    """Run a verb; of errors, those that a user can mend are printed to stderr, and any other is raised."""
    try:
        code = command_line().main(args=arguments, prog_name="petra-graph", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return Interrupted.exit_code
    except (Interrupted, FailedOnAnotherProcess) as error:
        return error.exit_code
    except PetraGraphError as error:
        print_problems(error.problems)
        return error.exit_code
    return code if isinstance(code, int) else 0
