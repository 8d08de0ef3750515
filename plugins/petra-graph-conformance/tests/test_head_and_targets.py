"""A run whose loss, metrics and `checkpoint.best` do not fit is refused before it trains; that of the loss is in `mistakes_of_plugins.txt`."""

from __future__ import annotations

from petra_graph.cli.main import main
from tests.support.runs import SPEC


def test_the_best_checkpoint_needs_a_metric_that_is_recorded(write, capsys):
    write("a.toml", SPEC)
    command = ["run", "a.toml", "--dry-run", "--set"]
    assert main([*command, "checkpoint.best='test/f2'"]) == 2
    error = capsys.readouterr().err
    assert 'checkpoint.best = "test/f2" is not a metric of an evaluation of this run' in error
    assert "allowed: test/loss, test/top1, test/top5" in error
    assert main([*command, "checkpoint.best='test/top1'"]) == 0
