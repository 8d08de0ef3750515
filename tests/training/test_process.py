"""The end of one process of several, where another one has none."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from petra_graph.runtime.watchdog import Failed, Failure
from petra_graph.training import process as training_process


def test_a_run_that_was_to_stop_is_not_started_again_although_its_end_could_not_be_written(tmp_path, monkeypatch):
    """The process that records is lost before its summary: the run has failed, and its launcher would have it go on."""
    failure, launch = Failure(rank=1, lost=True, problems=(("it has gone", ""),)), dict[str, int]()

    def check():
        raise Failed(failure)

    process = SimpleNamespace(
        world=SimpleNamespace(
            store=SimpleNamespace(get=lambda _: None), launch=SimpleNamespace(set=launch.__setitem__)
        ),
        watchdog=SimpleNamespace(failure=failure, check=check),
        prepared=SimpleNamespace(records=False, ranks=(0, 1)),
        directory=tmp_path,
    )
    # Signals are ignored from its end on.
    monkeypatch.setattr(training_process, "stop_requests", lambda *_, **__: nullcontext())
    with pytest.raises(Failed):
        training_process.OneOfSeveral.leave(process, interrupted=True)
    assert launch == {"final": 130}
