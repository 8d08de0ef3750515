"""The command line's entry point: find the verb, run it, and return an exit code. Verbs import torch, and whatever else takes time, when they run."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from petra_graph.runtime import system
from petra_graph.version import __version__

if TYPE_CHECKING:
    from petra_graph.plugins.registry import Entry


class VerbElsewhere(click.Command):
    """A verb of another distribution, which is imported when it is used."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, short_help=f"A verb of {entry.distribution}.")
        self.entry = entry

    def load(self) -> click.Command:
        from petra_graph.plugins.author_code import author_code, find_code

        of = f"{self.entry.distribution}: the verb {self.name!r} ({self.entry.target})"
        with author_code(f"{of} cannot be imported"):
            loaded: click.Command = find_code(self.entry.target)
        return loaded

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        return self.load().make_context(*given, **more)


def command_line() -> click.Group:
    """Return the group of all verbs that are installed; they are imported here, when signals are heard."""
    from petra_graph.cli import plugin_verbs, run_verbs, spec_verbs
    from petra_graph.plugins import registry

    ours = [
        *(spec_verbs.run, spec_verbs.plan, spec_verbs.validate, spec_verbs.profile),
        *(run_verbs.runs, run_verbs.report, run_verbs.evaluate, run_verbs.predict, run_verbs.export),
        *(plugin_verbs.list_plugins, plugin_verbs.check, plugin_verbs.new),
    ]

    @click.group(subcommand_metavar="VERB [ARGUMENTS]...", commands=ours)
    @click.version_option(__version__, message="%(prog)s %(version)s")
    def cli() -> None:
        """Train reversible networks stage by stage with PETRA, from a TOML spec.

        Exit codes: 0 done, 1 run failed, 2 bad usage or spec, 3 no feasible plan, 4 plugin problem, 130 interrupted.
        """

    for entry in registry.discover().entries:
        if entry.group == registry.VERBS and entry.name not in cli.commands:
            cli.add_command(VerbElsewhere(entry))
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code; `arguments` are without the program's name, None: the process's own."""
    if arguments is not None:
        return _run(list(arguments))
    streams = [one for one in (sys.stdout, sys.stderr) if isinstance(one, io.TextIOWrapper)]  # None is a closed one
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")  # of a character that an encoding lacks, as the line below heads
    system.end_at_signals()
    from petra_graph.errors import Interrupted

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
    if code and ("RANK" in os.environ or code == Interrupted.exit_code):
        # Threads of this process may wait in torch for other ranks, or write; Python's own end would stop them there, which aborts it.
        system.hard_exit(code)
    return code


def _run(arguments: list[str] | None) -> int:
    """Run a verb; of errors, those that a user can mend are printed to stderr, and any other is raised."""
    from petra_graph.cli.options_and_output import print_problems
    from petra_graph.errors import FailedOnAnotherProcess, Interrupted, PetraGraphError

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
