"""The largest stable learning rate of a descent by late gradients, from the roots of its characteristic polynomial.

The loss is w^2 / 2, and the gradient of each step that of the weights D steps before. With shares a and b of velocity and gradient in
a step (`spike_compensation`), momentum m and the learning rate h, a course w_t = z^t needs

    (z - 1) (z^D (z - m) + h c) + h (a z + b (z - m)) = 0

c is how far a predicted forward lies from the weights, in velocities and rates: 0 without prediction, else a (m + ... + m^D). The descent is
stable while all roots are inside the unit circle. For curvature L the rate is h / L.

Without momentum, h = 2 sin(pi / (4 D + 2)) (Yang et al. 2021, PipeMare, lemma 1, arXiv:1910.05124). Without delay, h is 2 (1 + m) for
momentum, and 2 (1 + m) / (1 + 2 m) for Nesterov momentum.

Spike compensation and prediction over the same delay have the same polynomial: on a quadratic they are one correction.

Error feedback of momentum, v + D (v - the velocity before), has the shares a = 1 + D - D / m and b = D / m, as the velocity before is
(v - g) / m. It is for a delay of at most one update. Discrepancy correction changes nothing here, where the gradient that arrives is all.

Limits: a loss of one parameter, where a stage of a pipeline has many and its gradient depends on other stages, which are late as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from attrs import frozen
from petra_graph_delay.spike_compensation import spike_shares

from tools.studies.drawing import COLOURS, figure_of

DELAYS = (0, 1, 2, 3, 5, 7, 10, 20)
_STEPS, _HALVINGS = 1000, 60
_LARGEST = 5.0
"""Learning rates are looked for below this; 4 is the largest, of momentum without delay."""


@frozen(kw_only=True)
class Descent:
    """A way to descend by late gradients.

    Attributes:
        momentum: m, below 1.
        nesterov: whether it is Nesterov momentum.
        spike: whether it compensates the delay.
        predict: whether gradients are taken at predicted weights.
        feedback: whether steps have error feedback, with momentum that is not Nesterov's.
    """

    momentum: float
    nesterov: bool = False
    spike: bool = False
    predict: bool = False
    feedback: bool = False


METHODS = {
    "no momentum": Descent(momentum=0.0),
    "momentum": Descent(momentum=0.9),
    "Nesterov": Descent(momentum=0.9, nesterov=True),
    "momentum, spike": Descent(momentum=0.9, spike=True),
    "Nesterov, spike": Descent(momentum=0.9, nesterov=True, spike=True),
    "momentum, prediction": Descent(momentum=0.9, predict=True),
    "Nesterov, prediction": Descent(momentum=0.9, nesterov=True, predict=True),
    "momentum, both": Descent(momentum=0.9, spike=True, predict=True),
}
FEEDBACK = Descent(momentum=0.9, feedback=True)
"""For delays of at most one update."""
DRAWN = {
    "no momentum": "no momentum",
    "momentum": "momentum",
    "Nesterov": "Nesterov momentum",
    "momentum, spike": "momentum with spike compensation, or with prediction",
    "momentum, both": "momentum with both",
}
"""The figure's lines, and their names."""


def polynomial(descent: Descent, delay: int, rate: float) -> Sequence[float]:
    """Return the coefficients of the characteristic polynomial, of the highest power first."""
    m = descent.momentum
    ahead = (delay if descent.spike else 0) + (1 if descent.nesterov else 0)
    a, b = (1 + delay - delay / m, delay / m) if descent.feedback else spike_shares(m, ahead)
    c = a * sum(m**i for i in range(1, delay + 1)) if descent.predict else 0.0
    course = np.zeros(delay + 2)
    course[0], course[1] = 1.0, -m  # z^D (z - m)
    course[-1] += rate * c
    total = np.polymul([1.0, -1.0], course)
    found: Sequence[float] = np.polyadd(total, [rate * (a + b), -rate * b * m]).tolist()
    return found


def is_stable(descent: Descent, delay: int, rate: float) -> bool:
    """Whether all roots lie inside the unit circle."""
    return bool(np.abs(np.roots(polynomial(descent, delay, rate))).max() < 1)


def largest_stable_rate(descent: Descent, delay: int) -> float:
    """Return the learning rate up to which the descent is stable, for a curvature of 1."""
    rates = np.geomspace(1e-5, _LARGEST, _STEPS)
    unstable = next(index for index, rate in enumerate(rates) if not is_stable(descent, delay, rate))
    low, high = float(rates[unstable - 1]), float(rates[unstable])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(descent, delay, middle) else (low, middle)
    return low


@click.command()
@click.option("--delay", "delays", type=int, multiple=True, default=DELAYS, show_default=True, help="In updates.")
@click.option(
    "--figure", type=click.Path(dir_okay=False, path_type=Path), help="A PNG of the rates up to the largest delay."
)
def main(delays: Sequence[int], figure: Path | None) -> None:
    rows = METHODS | {"momentum, error feedback": FEEDBACK}
    width = max(map(len, rows))
    click.echo(" " * width + "".join(f"{f'D = {delay}':>9}" for delay in delays))
    for name, descent in rows.items():
        within = [delay for delay in delays if delay <= 1 or not descent.feedback]
        click.echo(f"{name:{width}}" + "".join(f"{largest_stable_rate(descent, delay):9.4f}" for delay in within))
    if figure is not None:
        draw(figure, range(max(delays) + 1))


def draw(path: Path, delays: Sequence[int]) -> None:
    """Draw what a gradient moves the weights in the end, at the largest stable rate: the rate over 1 - m."""
    with figure_of(path, title="Largest stable step of late gradients, momentum 0.9, curvature 1") as axis:
        for (name, drawn), colour in zip(DRAWN.items(), (*COLOURS, "#777777"), strict=True):
            descent = METHODS[name]
            rates = [largest_stable_rate(descent, delay) / (1 - descent.momentum) for delay in delays]
            axis.plot(delays, rates, label=drawn, color=colour, marker="o", markersize=3)
        axis.set(xlabel="delay, updates", ylabel="learning rate / (1 - momentum)", yscale="log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
