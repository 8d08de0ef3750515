"""The learning rate by delay: a factor below 1 for stages whose gradients are late, which rises to 1 over the first T updates.

    factor(u) = max(1, D(u)) ** -(1 - min(u / T, 1)),    u = 0, 1, ...

D(u) is the stage's mean delay in updates at its update u. At u = 0 the rate is divided by D, as the stability of descent with late
gradients asks for; from u = T on the factor is 1. A stage whose gradients are at most one update late has 1 throughout.

Source: technique T1 of PipeMare (Yang et al. 2021, arXiv:1910.05124). It counts updates from 0, as here; the code of Ajanthan et al.
2025, which has T1 as a baseline, counts from 1.

Decision: a factor beside warm-up and the schedule's own, so that it composes with any of them, and with any optimizer.
"""

from __future__ import annotations


def delay_factor(u: int, delay: float, annealed: int) -> float:
    """Return the factor of the learning rate at a stage's update u.

    Args:
        u: counted from 0.
        delay: of the gradients of that update, in updates; at least 0.
        annealed: T, in updates; 0 for none.
    """
    if u >= annealed:
        return 1.0
    return float(max(1.0, delay) ** (u / annealed - 1))
