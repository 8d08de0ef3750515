"""How long a user waits for `--help` and for `validate`: wall time of whole processes, the best of several.

The promise is 0.3 s and 0.5 s on two quiet cores; `python -c pass` in the same invocation says how quiet they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import click
from network import save

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "--help": [sys.executable, "-m", "petra_graph", "--help"],
    "validate specs/quickstart.toml": [sys.executable, "-m", "petra_graph", "validate", "specs/quickstart.toml"],
    "list": [sys.executable, "-m", "petra_graph", "list"],
}


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, write: bool) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            seconds[name].append(time.perf_counter() - began)
    result = {"rounds": rounds, "best seconds": {name: round(min(taken), 3) for name, taken in seconds.items()}}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('startup', result)}", err=True)


if __name__ == "__main__":
    main()
