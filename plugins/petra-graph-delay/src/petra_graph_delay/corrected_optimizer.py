"""The optimizer of a stage with the corrections of a table `[optimizer.delay]`."""

from __future__ import annotations

import torch

from petra_graph.plugins import Problem, SpecError
from petra_graph_delay.declared import DelayOptions
from petra_graph_delay.discrepancy_correction import EarlierWeights
from petra_graph_delay.error_feedback import ErrorFeedback
from petra_graph_delay.known_optimizers import is_adam, is_sgd, looks_ahead
from petra_graph_delay.spike_compensation import Spike
from petra_graph_delay.weight_prediction import Predicted


def corrected(optimizer: torch.optim.Optimizer, options: DelayOptions) -> torch.optim.Optimizer:
    """Return an optimizer with the corrections around another one.

    Raises:
        SpecError: the spike or the prediction is asked for and the momentum of the optimizer is not known, or is 0.
    """
    plain = optimizer
    if options.correction == "spike":
        _expect_momentum(plain, "correction", 'correction = "spike"', ahead=True)
        optimizer = Spike(optimizer)
    elif options.correction == "error-feedback":
        optimizer = ErrorFeedback(optimizer)
    if options.predict:
        _expect_momentum(plain, "predict", "predict = true", ahead=False)
        return Predicted(optimizer)
    return EarlierWeights(optimizer) if options.correct_discrepancy else optimizer


def _expect_momentum(optimizer: torch.optim.Optimizer, key: str, wants: str, *, ahead: bool) -> None:
    looks = ahead and looks_ahead(optimizer)
    if not (looks or is_sgd(optimizer) or is_adam(optimizer)):
        known = "torch's SGD, Adam or AdamW, which sgd, adam and adamw are"
        raise SpecError(
            [
                Problem(
                    message=f"{wants} needs an optimizer whose momentum it knows: {known}{', or muon' if ahead else ''} "
                    f"(got {type(optimizer).__name__})",
                    hint='leave it out; correction = "error-feedback" and correct_discrepancy = true are for any optimizer',
                    path=(key,),
                )
            ]
        )
    first = optimizer.param_groups[0]
    if not (first["betas"][0] if is_adam(optimizer) else first["momentum"]):
        name = "a first beta" if is_adam(optimizer) else "a momentum"
        message = f"{wants} needs {name} above 0 (got 0), whose steps to come it counts on"
        raise SpecError([Problem(message=message, hint="leave it out", path=(key,))])
