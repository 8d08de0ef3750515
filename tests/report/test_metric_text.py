"""Metrics of any loss: their order, and which are percentages."""

import pytest

from petra_graph.kinds.metric import scale_of
from petra_graph.report.metric_text import chosen_on, final_metrics, is_share, metric_text, numbers


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("test/top1", "test/top1 12.50 %"),
        ("top5", "top5 12.50 %"),
        ("test/topology", "test/topology 0.125"),
        ("test/top", "test/top 0.125"),
        ("valid/top1", "valid/top1 0.125"),
        ("validation/top1", "validation/top1 12.50 %"),
        ("test/mean IoU", "test/mean IoU 0.125"),
    ],
)
def test_only_counts_among_the_best_are_shares(metric, text):
    assert metric_text(metric, 0.125) == text
    assert is_share(metric) == text.endswith("%")


def test_final_metrics_are_those_of_the_test_whatever_they_are():
    recorded = ["train/loss", "train/iou", "test/loss", "test/iou", "learning_rate", "test/iou"]
    assert final_metrics(recorded) == ["test/loss", "test/iou", "train/loss"]


def test_the_smallest_loss_is_the_best_on_every_split():
    assert {scale_of(f"{split}/loss", {}).better for split in ("train", "validation", "test")} == {"lower"}


def test_a_validation_comes_before_the_test():
    recorded = ["test/loss", "validation/iou", "validation/loss", "train/loss"]
    assert final_metrics(recorded) == ["validation/loss", "test/loss", "validation/iou", "train/loss"]


def test_what_has_chosen_a_best_value_is_said():
    assert chosen_on("validation/top1") == "chosen on the validation samples"
    assert chosen_on("train/loss") == "chosen on the training samples"
    assert chosen_on("test/f1").startswith("chosen on the test set, so new samples will do worse")


def test_the_line_of_an_epoch_has_all_of_them():
    assert numbers({"iou": 0.5, "top1": 0.25, "loss": 2.0, "topology": 3.0}) == (
        "loss 2.0000 iou 0.5000 top1 25.00 % topology 3.0000"
    )
