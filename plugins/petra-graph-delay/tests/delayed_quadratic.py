"""Descent of the scalar c w^2 / 2 by gradients of weights D steps old, in plain Python floats."""

from __future__ import annotations

from math import ceil, floor, sqrt

CURVATURE = 0.7
START = (1.0, -0.4)


def delayed(history, delay, curvature=CURVATURE):
    """Return the gradient at the weights `delay` steps before the last ones; between two steps, the mean of theirs, as of a window."""
    old = [history[max(len(history) - 1 - int(at), 0)] for at in (floor(delay), ceil(delay))]
    share = delay - floor(delay)
    return curvature * ((1 - share) * old[0] + share * old[1])


def catch_up(momentum, delay):
    """Return 1 + m + m^2 + ... of `delay` terms, summed one by one where their number is whole."""
    if delay == int(delay):
        return sum(momentum**i for i in range(int(delay)))
    return (1 - momentum**delay) / (1 - momentum)


def sgd_by_hand(w, delay, steps, *, lr, momentum, weight_decay, nesterov):
    history, v = [w], 0.0
    ahead = delay + (1 if nesterov else 0)
    for _ in range(steps):
        g = delayed(history, delay) + weight_decay * history[-1]
        v = momentum * v + g
        history.append(history[-1] - lr * (momentum**ahead * v + catch_up(momentum, ahead) * g))
    return history


def adam_by_hand(w, delay, steps, *, lr, betas, eps, weight_decay, decoupled):
    beta1, beta2 = betas
    history, first, second = [w], 0.0, 0.0
    for t in range(1, steps + 1):
        w, g = history[-1], delayed(history, delay)
        if decoupled:
            w = w - lr * weight_decay * w
        else:
            g = g + weight_decay * w
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g * g
        mean = beta1**delay * first / (1 - beta1**t) + (1 - beta1**delay) * g
        history.append(w - lr * mean / (sqrt(second / (1 - beta2**t)) + eps))
    return history
