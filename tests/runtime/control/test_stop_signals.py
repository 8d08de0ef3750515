"""A signal asks, a second SIGINT insists."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from threading import Thread

import pytest

from petra_graph.runtime.control.start_up import REQUESTS
from petra_graph.runtime.control.stop_signals import stop_requests


class Process:
    """Notes requests; insists by an exception."""

    def __init__(self):
        self.requests = []

    def handled(self, **options):
        return stop_requests(self.requests.append, self.insist, **options)

    def insist(self):
        raise KeyboardInterrupt


def test_without_a_signal_nothing_is_requested():
    process = Process()
    with process.handled():
        pass
    assert process.requests == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_is_a_request(number):
    process = Process()
    with process.handled():
        os.kill(os.getpid(), number)
    assert process.requests == [number.name]


def test_a_second_sigint_insists():
    process = Process()
    with process.handled():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert process.requests == ["SIGTERM", "SIGINT", "SIGTERM"]


def test_a_process_that_ends_ignores_further_signals():
    before = {number: signal.getsignal(number) for number in REQUESTS}
    try:
        with Process().handled(ends_process=True):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with suppress(ZeroDivisionError), Process().handled():
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
        1 / 0  # noqa: B018  whatever happens inside
    assert {number: signal.getsignal(number) for number in before} == before


def test_outside_the_main_thread_nothing_is_installed():
    found = []

    def inside():
        with Process().handled():
            found.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
