"""What a run came to, for people."""

from __future__ import annotations

from petra_graph.report.progress import summary_lines

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
    interrupted = SUMMARY | {"status": "interrupted", "epochs": 0, "test": None, "checkpoint": None}
    assert summary_lines(interrupted) == [
        "quickstart: interrupted (epochs: 0, micro-batches: 4,400)",
        "results: runs/x",
    ]


def test_the_best_checkpoint():
    best = {"metric": "test/mean-iou", "value": 0.5514, "epoch": 1}
    scales = {"mean-iou": {"better": "higher", "share": True}}
    lines = summary_lines(SUMMARY | {"best": best, "metrics": scales})
    assert lines[2] == "best: mean-iou 55.14 %, after epoch 1 (evaluate or export with `--weights best`)"
    assert summary_lines(SUMMARY | {"best": None}) == summary_lines(SUMMARY)


def test_how_an_interrupted_run_goes_on():
    lines = summary_lines(SUMMARY | {"status": "interrupted", "checkpoint": 4400, "directory": "my runs/x"})
    assert "continue with: petra-graph run --resume 'my runs/x'" in lines


def test_predicted_beside_measured():
    predicted = {"samples_per_second": 1000.0, "memory_bytes": 5, "from": "profile"}
    lines = summary_lines(SUMMARY | {"samples_per_second": 900.0, "predicted": predicted})
    assert lines[2] == "900.0 samples/s; the plan said 1,000.0, from a profile"
