"""The table `[optimizer.delay]`, without torch."""

from __future__ import annotations

from typing import Literal

from petra_graph.plugins import CorrectionDeclaration, declares, option


@declares(CorrectionDeclaration, "petra_graph_delay.corrected_optimizer:corrected")
class DelayOptions:
    """Corrections of late gradients, around any optimizer.

    Without delay, each step is the optimizer's own, to the bit.
    """

    correction: Literal["none", "spike", "error-feedback"] = option(
        'what makes up for the delay of gradients: "spike" makes the steps that a late gradient has missed, at once; "error-feedback" adds '
        "the difference from the step before, for a delay of at most 1 update",
        default="none",
    )
    predict: bool = option("compute forwards at the weights that momentum predicts for their backwards", default=False)
    correct_discrepancy: bool = option(
        "compute backwards at an estimate of the weights that their forwards had", default=False
    )

    def __attrs_post_init__(self) -> None:
        if self.predict and self.correction == "error-feedback":
            raise ValueError(
                'predict = true expects steps without correction = "error-feedback"; set predict = false, or correction = "spike"'
            )
        if self.predict and self.correct_discrepancy:
            raise ValueError(
                "predict = true computes forwards at the weights of their backwards, and correct_discrepancy = true backwards at the "
                "weights of their forwards; set one of them to false"
            )
