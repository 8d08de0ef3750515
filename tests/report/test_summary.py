"""What a run came to, for people."""

from __future__ import annotations

from petra_graph.report.summary import summary_lines

SUMMARY = {
    "name": "quickstart",
    "status": "done",
    "epochs": 10,
    "micro_batches": 4400,
    "test": {"loss": 0.1, "top1": 0.97},
    "directory": "runs/x",
}


def test_a_summary():
    assert summary_lines(SUMMARY) == [
        "quickstart: done (epochs: 10, micro-batches: 4,400)",
        "test loss 0.1000 top1 97.00 %",
        "results: runs/x",
    ]


def test_a_summary_of_a_run_without_an_evaluation():
    assert summary_lines(SUMMARY | {"status": "interrupted", "epochs": 0, "test": None}) == [
        "quickstart: interrupted (epochs: 0, micro-batches: 4,400)",
        "results: runs/x",
    ]
