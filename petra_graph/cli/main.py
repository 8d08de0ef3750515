"""The command line's entry point: import the verb's module, run it, return an exit code.

Decision: a verb's module is imported when the verb is used, so that `--help` takes no longer than click; the table
below holds the line that the help shows. Verbs of other distributions are entry points; the help imports their modules.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from petra_graph.cli import plugin_verbs
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

if TYPE_CHECKING:
    from petra_graph.errors import PetraGraphError

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
_MEANT = {"train": "run", "fit": "run", "test": "evaluate", "eval": "evaluate"}
"""Verbs of other programs, and ours for them."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *plugin_verbs.names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return plugin_verbs.command(cmd_name)
        command: click.Command = getattr(importlib.import_module(f"petra_graph.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or suggest the likeliest one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-") and name not in (verbs := self.list_commands(ctx)):
            from difflib import get_close_matches

            close = [_MEANT[name]] if name in _MEANT else get_close_matches(name, verbs, n=1)
            meant = f"Did you mean {close[0]!r}?" if close else f"Verbs: {', '.join(verbs)}."
            ctx.fail(f"No such verb {name!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs' one-line helps; the modules of ours are not imported."""
        with formatter.section("Verbs"):
            formatter.write_dl([*VERBS.items(), *plugin_verbs.lines_of_help()])


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
    try:
        code = cli.main(args=arguments, prog_name="petra-graph", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _print_usage(error)
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # of a path that the user wrote, wherever it is looked at first
            from petra_graph.errors import SpecError

            return _report_error(SpecError(f"{error.filename} cannot be a file: {error.strerror}"))
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"cannot write the output: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001  only petra-graph's own errors stay here
        return _report_error(error)
    return code if isinstance(code, int) else 0


def _print_usage(error: click.ClickException) -> None:
    """Print a wrong usage to stderr, what was typed included."""
    from petra_graph.errors import printable

    text = io.StringIO()
    error.show(text)
    sys.stderr.write(printable(text.getvalue()))


def _report_error(error: Exception) -> int:
    """Print an error that a user can mend and return its exit code; raise any other error again."""
    from petra_graph.errors import FailedOnAnotherProcess, Interrupted, PetraGraphError

    if isinstance(error, Interrupted | FailedOnAnotherProcess):
        return error.exit_code
    if not isinstance(error, PetraGraphError):
        error = _explain_damage(error)
    from petra_graph.cli.options_and_output import print_problems

    print_problems(error.problems)
    return error.exit_code


def _explain_damage(error: Exception) -> PetraGraphError:
    """Return an error about distributions whose entry points cannot be read, if reading these has failed, or raise it again.

    networkx and torch read all entry points when they are imported.
    """
    import traceback

    from petra_graph.errors import PluginError, Problem
    from petra_graph.plugins.discovery import scan

    frames = [frame.filename.replace("\\", "/") for frame in traceback.extract_tb(error.__traceback__)]
    unreadable = scan()[1] if any("importlib/metadata" in file for file in frames) else ()
    if not unreadable:
        raise error
    return PluginError(
        Problem(message=f"{name}: its entry points cannot be read", hint="reinstall it, or remove it")
        for name in unreadable
    )
