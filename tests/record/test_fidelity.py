"""The names of a probe's metrics: what is written is what is read."""

from __future__ import annotations

from petra_graph.record.fidelity import Fidelity, Similarity, StageFidelity, quantity_and_stage


def test_names():
    one = StageFidelity(
        stage=3,
        to_delayed=Similarity(cosine=0.9, ratio=1.1),
        to_end_to_end=Similarity(cosine=0.8, ratio=1.2),
        delayed_to_end_to_end=Similarity(cosine=0.7, ratio=1.3),
        reconstruction_error=0.01,
    )
    nothing = StageFidelity(
        stage=12, to_delayed=None, to_end_to_end=None, delayed_to_end_to_end=None, reconstruction_error=None
    )
    values = Fidelity(micro_batch=0, stages=(one, nothing)).values()
    assert values == {
        "probe/cosine_to_delayed/stage-03": 0.9,
        "probe/ratio_to_delayed/stage-03": 1.1,
        "probe/cosine_to_end_to_end/stage-03": 0.8,
        "probe/ratio_to_end_to_end/stage-03": 1.2,
        "probe/delayed_cosine_to_end_to_end/stage-03": 0.7,
        "probe/delayed_ratio_to_end_to_end/stage-03": 1.3,
        "probe/reconstruction_error/stage-03": 0.01,
    }
    assert [quantity_and_stage(name) for name in values][-1] == ("reconstruction_error", 3)


def test_other_metrics_are_not_a_probes():
    assert quantity_and_stage("test/top1") is None
    assert quantity_and_stage("probe/cosine_to_delayed/stage-03/x") is None
    assert quantity_and_stage("probe/cosine_to_delayed/stage-103") == ("cosine_to_delayed", 103)
