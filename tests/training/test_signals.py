"""A first signal asks, a second one insists."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from threading import Thread

import pytest

from petra_graph.runtime.scheduler.context import SingleProcess
from petra_graph.training.signals import stop_requests


def test_without_a_signal_nothing_is_asked():
    supervisor = SingleProcess()
    with stop_requests(supervisor):
        pass
    assert supervisor.asked is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_taken_between_two_operations(number):
    supervisor = SingleProcess()
    with stop_requests(supervisor):
        os.kill(os.getpid(), number)
    assert supervisor.asked == number.name


def test_a_second_signal_does_not_wait():
    with stop_requests(SingleProcess()):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with suppress(ZeroDivisionError), stop_requests(SingleProcess()):
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
        1 / 0  # noqa: B018  whatever happens inside
    assert {number: signal.getsignal(number) for number in before} == before


def test_outside_the_main_thread_nothing_is_installed():
    found = []

    def inside():
        with stop_requests(SingleProcess()):
            found.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
