"""A first signal asks, a second one insists."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from threading import Thread

import pytest

from petra_graph.errors import Interrupted
from petra_graph.training.signals import stop_requests


def test_nobody_asked():
    with stop_requests() as stop:
        stop.obey()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_taken_between_two_operations(number):
    with stop_requests() as stop:
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted) as caught:
            stop.obey()
    assert caught.value.signal_name == number.name


def test_a_second_signal_does_not_wait():
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.ask(signal.SIGINT)


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with suppress(ZeroDivisionError), stop_requests():
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
        1 / 0  # noqa: B018  whatever happens inside
    assert {number: signal.getsignal(number) for number in before} == before


def test_outside_the_main_thread_nothing_is_installed():
    found = []

    def inside():
        with stop_requests() as stop:
            stop.obey()
            found.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
