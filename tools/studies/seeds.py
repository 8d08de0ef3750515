"""A specification under several seeds and variants: means and spreads of the test accuracy.

    python tools/studies/seeds.py specs/quickstart.toml --seeds 5 --output seeds.json \
        --variant "" --variant "method.name=backprop"

A variant is a list of KEY=VALUE, separated by blanks. Runs that a former invocation with the same specification and
--set finished are not repeated.
"""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from petra_graph.record.environment import environment
from petra_graph.report.progress import progress
from petra_graph.session.run import run


@click.command()
@click.argument("spec")
@click.option("--seeds", default=5, show_default=True, help="Seeds 0, 1, ... of each variant.")
@click.option("--variant", "variants", multiple=True, required=True, help="Overrides, separated by blanks.")
@click.option("--set", "overrides", multiple=True, help="An override of all variants.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON file of the results.")
def main(spec: str, seeds: int, variants: tuple[str, ...], overrides: tuple[str, ...], output: Path) -> None:
    asked: dict[str, Any] = {"spec": spec, "overrides": list(overrides)}
    done = json.loads(output.read_text()) if output.exists() else asked | {"runs": {}}
    for key, value in asked.items():
        if done.get(key) != value:
            message = f"{output} holds results with {key} = {done.get(key)!r} (asked for: {value!r})"
            raise click.ClickException(f"{message}; name another --output, or remove the file")
    for variant in variants:
        for seed in range(seeds):
            key = f"{variant or 'as it is'}; seed {seed}"
            if key in done["runs"]:
                continue
            ended = run(spec, [*overrides, *variant.split(), f"run.seed={seed}"], progress())
            if ended.interrupted is not None:
                raise ended.interrupted
            done["runs"][key] = dict(ended.summary["test"])
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(done, indent=2))
    done["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    done["environment"] = {key: value for key, value in environment().items() if key != "command"}
    done["test accuracy, %"] = {
        variant or "as it is": _spread(
            [100 * done["runs"][f"{variant or 'as it is'}; seed {seed}"]["top1"] for seed in range(seeds)]
        )
        for variant in variants
    }
    output.write_text(json.dumps(done, indent=2))
    click.echo(json.dumps(done["test accuracy, %"], indent=2))


def _spread(values: list[float]) -> dict[str, object]:
    return {
        "mean": round(statistics.mean(values), 2),
        "standard deviation": round(statistics.stdev(values), 2) if len(values) > 1 else None,
        "each": [round(value, 2) for value in values],
    }


if __name__ == "__main__":
    main()
