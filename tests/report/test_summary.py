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
    assert lines[2] == (
        "best: mean-iou 55.14 %, after epoch 1 (chosen on the test set, so new samples will do worse: set data.validation; evaluate or export with `--weights best`)"
    )
    assert summary_lines(SUMMARY | {"best": None}) == summary_lines(SUMMARY)


def test_a_run_that_was_validated_says_which_weights_were_tested():
    held = {"validation": {"loss": 0.2, "top1": 0.95}, "validated": "64 of 143 samples"}
    best = {"metric": "validation/top1", "value": 0.96, "epoch": 7}
    lines = summary_lines(SUMMARY | held | {"best": best, "test_weights": {"weights": "best", "epoch": 7}})
    assert lines[1:4] == [
        "validation loss 0.2000 top1 95.00 % (64 of 143 samples), with the last weights",
        "test loss 0.1000 top1 97.00 %, with the best weights, of epoch 7",
        "best: validation top1 96.00 %, after epoch 7 (evaluate or export with `--weights best`)",
    ]


def test_an_early_stop_that_the_test_data_chose_is_said():
    reason = "after epoch 5: early-stopping: {}/loss is not better than 0.1, of epoch 2"
    lines = summary_lines(SUMMARY | {"stopped_early": reason.format("test")})
    assert (
        lines[1]
        == f"stopped early {reason.format('test')} (chosen on the test set, so new samples will do worse: set data.validation)"
    )
    lines = summary_lines(SUMMARY | {"stopped_early": reason.format("validation")})
    assert lines[1] == f"stopped early {reason.format('validation')}"


def test_how_an_interrupted_run_goes_on():
    lines = summary_lines(SUMMARY | {"status": "interrupted", "checkpoint": 4400, "directory": "my runs/x"})
    assert "continue with: petra-graph run --resume 'my runs/x'" in lines


def test_a_plan_by_a_profile_is_held_against_the_run_and_one_by_a_data_sheet_is_not():
    """Every small run ended with what a data sheet had said of it: 8,725 for 521 samples/s."""
    planned = {"samples_per_second": 1000.0, "expected_samples_per_second": [1000 / 1.2, 1000 / 0.9], "from": "profile"}
    made = SUMMARY | {"samples_per_second": 900.0, "predicted": planned}
    said = "900 samples/s; the plan said 1,000 samples/s, by a profile: usually within 17 %, on a quiet machine"
    assert summary_lines(made)[2] == said
    for other in ({"predicted": planned | {"from": "data sheet"}}, {"trial": {"micro_batches": 2}}):
        assert summary_lines(made | other) == summary_lines(SUMMARY)
