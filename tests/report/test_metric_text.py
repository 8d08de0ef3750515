"""Metrics of any loss: what has chosen a value, and how a line has them all."""

from petra_graph.report.metric_text import chosen_on, numbers


def test_what_has_chosen_a_best_value_is_said():
    assert chosen_on("validation/top1") == "chosen on the validation samples"
    assert chosen_on("train/loss") == "chosen on the training samples"
    assert chosen_on("test/f1").startswith("chosen on the test set, so new samples will do worse")


def test_the_line_of_an_epoch_has_all_of_them():
    assert numbers({"iou": 0.5, "top1": 0.25, "loss": 2.0, "topology": 3.0}) == (
        "loss 2.0000 iou 0.5000 top1 25.00 % topology 3.0000"
    )
