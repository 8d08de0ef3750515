"""The summaries of many plugins, whose modules another process imports: one bad plugin costs its own line.

A plugin's import may do anything: raise KeyboardInterrupt, end the process, hang, leave a thread that does either later. So
one process imports all plugins that are to be listed, and answers with a line for each. Where that process ends early or is
silent for too long, the plugin that it was at is tried in a process of its own, so that no plugin is blamed for
another one's thread, and a further process continues after it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import attrs
from attrs import frozen

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import find_code
from petra_graph.registry.discovery import Entry, read_despite_damage
from petra_graph.registry.registry import Registry

_LIMIT_SECONDS = 10.0
"""The longest that one plugin's import may take."""


@frozen(kw_only=True)
class PluginSummary:
    """One plugin of a list."""

    group: str
    """The kind's name on the command line: "blocks"."""
    name: str
    distribution: str
    kind: str = ""
    """The most that a block can be; "" for other plugins."""
    summary: str = ""
    fault: str = ""
    """Why the plugin cannot be used; "" where it can."""
    remedy: str = ""
    """What to do about the fault, where its message says so; the same as a run says."""
    imports_torch: str = ""
    """The module that imports torch where the declaration is imported; "" where none does."""


def list_groups(
    registry: Registry, groups: Sequence[str], limit_seconds: float = _LIMIT_SECONDS
) -> tuple[PluginSummary, ...]:
    """Return the plugins of groups ("blocks"), in the order of their names; a broken plugin has a fault.

    Args:
        groups: in the order of the list.
        limit_seconds: the longest that one plugin's import may take.
    """
    named = [(group, name) for group in groups for name in dict.fromkeys(registry.names(registry.kind(group)))]
    return tuple(_surveyed(registry, named, limit_seconds))


def _surveyed(registry: Registry, named: Sequence[tuple[str, str]], limit: float) -> list[PluginSummary]:
    found: list[PluginSummary] = []
    while len(found) < len(named):
        answers, _ = _in_a_process(registry, named[len(found) :], limit)
        found += answers
        if len(found) < len(named):
            alone = named[len(found)]
            answers, end = _in_a_process(registry, [alone], limit)
            found += answers or [_summary(registry, *alone, fault=f"its import {end}")]
    return found


def _in_a_process(
    registry: Registry, named: Sequence[tuple[str, str]], limit: float
) -> tuple[list[PluginSummary], str]:
    """Return the summaries of plugins until the process ended, and how it ended."""
    reading, writing = os.pipe()
    request = {"path": sys.path, "entries": [attrs.asdict(entry) for entry in registry.entries], "named": named}
    # A session of its own: what a plugin starts ends with it, and a Ctrl-C reaches this process alone.
    process = subprocess.Popen(  # noqa: S603  the command is ours
        [sys.executable, "-P", "-m", "petra_graph.registry.survey_of_plugins", str(writing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[writing],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    os.close(writing)
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        answers, in_time = _answers(reading, len(named), limit)
        if not in_time:
            return answers, f"takes more than {limit:g} s"
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit)
        return answers, f"ends the process{_how(process.returncode)}"
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(reading: int, count: int, limit: float) -> tuple[list[PluginSummary], bool]:
    """Read a line for each plugin; return them, and whether each came, or the end did, within the limit."""
    content, end = b"", time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while (lines := content.count(b"\n")) < count:
            if not selector.select(max(0.0, end - time.monotonic())):
                break
            part = os.read(reading, 2**16)
            if not part:
                break
            content += part
            if content.count(b"\n") > lines:
                end = time.monotonic() + limit
    whole = content.split(b"\n")[:-1]
    return [PluginSummary(**json.loads(line)) for line in whole], time.monotonic() < end


def _how(code: int | None) -> str:
    if code is None:
        return ""
    return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"


def _summary(registry: Registry, group: str, name: str, fault: str = "") -> PluginSummary:
    """Import a plugin, unless its fault is known; return its line."""
    of_kind, distribution, kind, summary = registry.kind(group), "", "", ""
    importer = remedy = ""
    try:
        distribution = registry.find(of_kind, name).distribution
        if not fault:
            plugin, importer = registry.resolve_and_watch(of_kind, name)
            declaration = plugin.declaration
            kind = declaration.kind if isinstance(declaration, BlockDeclaration) else ""
            summary = " ".join(declaration.summary.split())
            find_code(plugin)
    except PetraGraphError as error:
        fault = "; ".join(problem.message for problem in error.problems)
        remedy = "; ".join(dict.fromkeys(problem.hint for problem in error.problems if problem.hint))
    except BaseException as error:  # noqa: BLE001  nobody interrupts this process, so the plugin raised it
        fault = f"its import raises {type(error).__name__}"
    return PluginSummary(
        group=group,
        name=name,
        distribution=distribution,
        kind=kind,
        summary=summary,
        fault=fault,
        remedy=remedy,
        imports_torch=importer,
    )


def _be_the_process(writing: int) -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    read_despite_damage(lambda _: None)
    registry = Registry(entries=tuple(Entry(**entry) for entry in request["entries"]))
    for group, name in request["named"]:
        answer = attrs.asdict(_summary(registry, group, name))
        os.write(writing, f"{json.dumps(answer)}\n".encode())
    os._exit(0)  # A plugin's threads do not keep the process alive.


if __name__ == "__main__":
    _be_the_process(int(sys.argv[1]))
