"""Runs with a probe: what is recorded, when, and that it is the run without one."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.kinds.listener import Listener
from petra_graph.record.recorded_run import quantity_and_stage
from petra_graph.training.prepared_run import prepare
from petra_graph.training.training_run import run
from tests.support.runs import MICRO_BATCHES, SPEC, events, only_run, weights_bytes

OFF = """
from petra_graph.blocks import Reversible
from petra_graph.catalog.blocks.residual import RevMlp

class Off(RevMlp):
    def inverse(self, *outputs):
        return tuple(5 + stream for stream in super().inverse(*outputs))

    reverse_steps = Reversible.reverse_steps
"""
INVERTED_WRONGLY = "warning: the probe sees gradients at inputs that were reconstructed wrongly: that of stage "


def probes(directory):
    return [event for event in events(directory) if event["name"].startswith("probe/")]


def test_a_probe_changes_nothing_and_records_what_it_saw(write):
    spec = write("small.toml", SPEC)
    run(spec, ["run.directory=plain"], Listener())
    run(spec, ["run.directory=probed", "probe.per_epoch=2"], Listener())
    plain, probed = only_run("plain"), only_run("probed")
    assert weights_bytes(plain) == weights_bytes(probed)
    untimed = [
        [(e["epoch"], e["step"], e["name"], e["value"]) for e in events(directory) if e["name"] != "samples_per_second"]
        for directory in (plain, probed)
    ]
    assert [event for event in untimed[1] if not event[2].startswith("probe/")] == untimed[0]
    assert probes(plain) == []

    seen = probes(probed)
    assert {(e["epoch"], e["step"]) for e in seen} == {
        (epoch, (epoch - 1) * MICRO_BATCHES + m + 1) for epoch in (1, 2) for m in (2, 8)
    }
    found = {quantity_and_stage(e["name"]) for e in seen}
    pairs = ("to_delayed", "to_end_to_end")
    names = [f"{kind}_{pair}" for kind in ("cosine", "ratio") for pair in pairs]
    names += ["delayed_cosine_to_end_to_end", "delayed_ratio_to_end_to_end"]
    assert found == {(name, stage) for name in names for stage in (1, 2, 3, 4)} | {
        ("reconstruction_error", stage) for stage in (2, 3)
    }


def test_the_resolved_spec_has_the_probe(write):
    run(write("small.toml", SPEC), ["probe.per_epoch=1", "run.epochs=1"], Listener())
    assert "[probe]\nper_epoch = 1\n" in (only_run() / "resolved.toml").read_text()


def test_no_more_probes_than_micro_batches(write):
    spec = write("small.toml", SPEC + "\n[probe]\nper_epoch = 12\n")
    with pytest.raises(SpecError) as raised:
        prepare(spec)
    assert str(raised.value) == (
        "small.toml:36: an epoch has 11 micro-batches, and 12 are to be probed\n"
        "    per_epoch = 12\n"
        "    help: make it 11 or less"
    )
    prepare(spec, ["probe.per_epoch=11"])


def test_an_inverse_that_undoes_nothing_is_named_once(write, capsys):
    write("off_blocks.py", OFF)
    words = ("--set", "run.epochs=1", "--set", "probe.per_epoch=2")
    for block, times in (("off_blocks:Off", 1), ("rev-mlp", 0)):
        assert main(["run", write("small.toml", SPEC.replace("rev-mlp", block)), *words]) == 0
        assert (said := capsys.readouterr().err).count(INVERTED_WRONGLY) == times
        assert said.count("Either an inverse does not undo its forward") == times
