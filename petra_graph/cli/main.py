"""The command line's entry point: import the verb's module, run it, return an exit code.

Decision: a verb's module is imported when the verb is used, so that `--help` takes no longer than click; the table
below holds the line that the help shows. Verbs of other distributions are entry points; the help imports their modules.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click

from petra_graph.cli.standard_streams import prepare_streams
from petra_graph.runtime.stop_signals import (
    PARENT,
    end_at_signals,
    end_with_parent,
    hard_exit,
    ignore_signals,
    stop_with_parent,
)
from petra_graph.version import __version__

VERBS = {
    "run": "Train a spec.",
    "plan": "Show stages, memory, staleness and speed before anything runs.",
    "validate": "Check specs: keys, types, plugins, options, graph, shapes.",
    "report": "Write a page about a run, or compare several.",
    "runs": "List runs: status, best metric, age.",
    "profile": "Time a spec's nodes on the real device, for plans.",
    "check": "Check that plugins keep what training relies on.",
    "list": "List the installed plugins; of one, its options.",
    "new": "Start a package of plugins.",
    "evaluate": "Evaluate a run's network on data.",
    "predict": "Print a run's predictions for files.",
    "export": "Write a run's network for other programs.",
}
"""The verbs with their lines in the help. Each has a module of its name, with its command of that name."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used; those of other distributions are entry points of `petra_graph.verbs`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from petra_graph.plugins import registry

        others = {entry.name for entry in registry.scan()[0] if entry.group == registry.VERBS}
        return [*VERBS, *sorted(others - VERBS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            command: click.Command = getattr(importlib.import_module(f"petra_graph.cli.{cmd_name}"), cmd_name)
            return command
        from petra_graph.errors import PluginError, kind_of
        from petra_graph.plugins import registry
        from petra_graph.plugins.author_code import author_code

        entries = [one for one in registry.scan()[0] if (one.group, one.name) == (registry.VERBS, cmd_name)]
        if len(entries) > 1:
            owners = ", ".join(sorted(entry.distribution for entry in entries))
            raise PluginError(
                f"the verb {cmd_name!r} is in {len(entries)} distributions: {owners}", "remove one of them"
            )
        for entry in entries:
            verb = f"{entry.distribution}: the verb {cmd_name!r} ({entry.target})"
            with author_code(f"{verb} cannot be imported"):
                loaded = entry.load()
            if not isinstance(loaded, click.Command):
                raise PluginError(f"{verb} must be a click command, and is {kind_of(loaded)}")
            return loaded
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or suggest the likeliest one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-") and name not in (verbs := self.list_commands(ctx)):
            close = get_close_matches(name, verbs, n=1)
            meant = f"Did you mean {close[0]!r}?" if close else f"Verbs: {', '.join(verbs)}."
            ctx.fail(f"No such verb {name!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs' one-line helps; the modules of ours are not imported, and a verb that cannot be used says why."""
        from petra_graph.errors import PetraGraphError

        def line(name: str) -> str:
            try:
                command = self.get_command(ctx, name)
            except PetraGraphError as error:
                return error.problems[0].message
            return "" if command is None else command.get_short_help_str(limit=70)

        others = [name for name in self.list_commands(ctx) if name not in VERBS]
        with formatter.section("Verbs"):
            formatter.write_dl([*VERBS.items(), *((name, line(name)) for name in others)])


@click.group(cls=LazyGroup, subcommand_metavar="VERB [ARGUMENTS]...")
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Train reversible networks stage by stage with PETRA, from a TOML spec.

    Exit codes: 0 done, 1 run failed, 2 bad usage or spec, 3 no feasible plan, 4 plugin problem, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None: the process's own.

    Returns:
        the exit code.
    """
    if arguments is not None:
        return _run(list(arguments))
    prepare_streams()
    end_at_signals()
    if "RANK" in os.environ:
        end_with_parent()
    elif PARENT in os.environ:
        stop_with_parent()
    try:
        code = _run(None)
    finally:
        ignore_signals()
    if code and "RANK" in os.environ:
        # Threads of this process may wait in torch for other ranks; Python's own end would stop them there, which aborts it.
        hard_exit(code)
    return code


def _run(arguments: list[str] | None) -> int:
    """Run a verb; of errors, those that a user can mend are printed to stderr, and any other is raised."""
    from petra_graph.errors import FailedOnAnotherProcess, Interrupted, PetraGraphError, printable

    try:
        code = cli.main(args=arguments, prog_name="petra-graph", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        sys.stderr.write(printable(text.getvalue()))
        return error.exit_code
    except click.Abort:
        return 130
    except (Interrupted, FailedOnAnotherProcess) as error:
        return error.exit_code
    except PetraGraphError as error:
        from petra_graph.cli.options_and_output import print_problems

        print_problems(error.problems)
        return error.exit_code
    return code if isinstance(code, int) else 0
