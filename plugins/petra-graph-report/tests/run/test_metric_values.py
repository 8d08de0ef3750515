"""Metrics of any loss: their order, and which are percentages."""

import pytest
from petra_graph_report.run.metric_values import final_metrics, is_share, metric_text


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


def test_a_validation_comes_before_the_test():
    recorded = ["test/loss", "validation/iou", "validation/loss", "train/loss"]
    assert final_metrics(recorded) == ["validation/loss", "test/loss", "validation/iou", "train/loss"]
