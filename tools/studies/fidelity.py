"""The paper's Figures 5 and 6: how like PETRA's gradients are to delayed and to end-to-end ones, as a network trains.

    python tools/studies/fidelity.py specs/revnet18_cifar10.toml --output fidelity --epochs 300 \
        --set data.options.root=~/data

is the paper's own size: accumulation 1, two drops of the learning rate, 15 looks an epoch. Twelve epochs of 150
micro-batches of 32 with eight looks each, at `--set architecture.options.width=0.125`, took 275 seconds of training on a
shared core (results/cifar10-fidelity.json, 1f1b). One JSON file of means by epoch, and for each schedule two pictures.
Schedules that a former invocation with the same arguments finished are not run again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from petra_graph_report.fidelity_figures import report_fidelity

from petra_graph.record.run_directory import environment
from petra_graph.report.progress import progress
from petra_graph.training.training_run import run


@click.command()
@click.argument("spec")
@click.option("--epochs", default=300, show_default=True)
@click.option("--per-epoch", default=15, show_default=True, help="Micro-batches of an epoch to look at.")
@click.option(
    "--drops",
    default="0.5,0.75",
    show_default=True,
    help="Shares of the epochs after which the learning rate drops to a tenth.",
)
@click.option("--schedule", "schedules", multiple=True, default=("lockstep",), show_default=True)
@click.option("--set", "overrides", multiple=True, help="An override of the specification; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Path of all files, without ending.")
def main(
    spec: str,
    epochs: int,
    per_epoch: int,
    drops: str,
    schedules: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path,
) -> None:
    milestones = [round(float(share) * epochs) for share in drops.split(",")]
    recipe = [
        "method.name=petra",
        "method.accumulation=1",
        "lr_schedule.name=step",
        f"lr_schedule.options.milestones={milestones}",
        "lr_schedule.options.gamma=0.1",
        f"run.epochs={epochs}",
        f"probe.per_epoch={per_epoch}",
        *overrides,
    ]
    path = output.with_name(f"{output.name}.json")
    done = _started(path, {"spec": spec, "overrides": _told(recipe)})
    for schedule in schedules:
        if schedule in done["runs"]:
            continue
        ended = run(spec, [*recipe, f"method.schedule={schedule}"], progress())
        if ended.interrupted is not None:
            raise ended.interrupted
        assert ended.summary is not None
        facts = report_fidelity(Path(ended.summary["directory"]), output.with_name(f"{output.name}-{schedule}"))
        done["runs"][schedule] = _result(ended.summary, facts)
        done["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        done["environment"] = {key: value for key, value in environment().items() if key != "command"}
        path.write_text(json.dumps(done, indent=1) + "\n")
    for schedule in schedules:
        share = done["runs"][schedule]["PETRA closer to end-to-end than delayed, %"]
        click.echo(f"{schedule}: PETRA is closer to the end-to-end gradient than the delayed one in {share} % of means")


def _started(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else asked | {"runs": {}}
    for key, value in asked.items():
        if done.get(key) != value:
            message = f"{path} holds results with {key} = {done.get(key)!r} (asked for: {value!r})"
            raise click.ClickException(f"{message}; name another --output, or remove the file")
    return done


def _told(overrides: list[str]) -> list[str]:
    """Leave out where the data lies: it decides nothing."""
    return [override for override in overrides if not override.startswith(("data.options.root=", "run.directory="))]


def _result(summary: Any, facts: Any) -> dict[str, Any]:
    means = facts["means by epoch"]
    return {
        **{key: summary[key] for key in ("stages", "parameters", "micro_batches", "test")},
        "training, seconds": summary["seconds"]["training"],
        "PETRA closer to end-to-end than delayed, %": _closer(means),
        "learning rate": facts["learning rate"],
        "means by epoch": {
            quantity: {stage: [_rounded(value) for value in values] for stage, values in of_quantity.items()}
            for quantity, of_quantity in means.items()
        },
    }


def _closer(means: Any) -> float:
    """Return in what share of stages and epochs PETRA's cosine to the end-to-end gradient is the greater."""
    own, delayed = means["cosine_to_end_to_end"], means["delayed_cosine_to_end_to_end"]
    pairs = [
        (one, other)
        for stage in own
        for one, other in zip(own[stage], delayed[stage], strict=True)
        if None not in (one, other) and abs(one - other) > 1e-6  # the last stage has no delay: both are one gradient
    ]
    return float(round(100 * sum(one > other for one, other in pairs) / len(pairs), 1))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


if __name__ == "__main__":
    main()
