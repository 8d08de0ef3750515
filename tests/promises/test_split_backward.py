"""A split backward changes when messages leave, and no bit: depths alone decide what is computed.

That processes change none either, and that a run resumed at any cut goes on to the bit, is in `test_same_bits_on_processes.py` and
`test_resumed_pipelines.py`, through the same cases.
"""

from __future__ import annotations

from functools import cache

import pytest
from attrs import evolve

from tests.promises.test_resumed_pipelines import EPOCH, resumed
from tests.support.same_bits_cases import CASES, MICRO_BATCHES, Case, in_one_process

SPLIT = {case.computation: case for case in CASES.values() if "words" in case.settings}


@cache
def whole(name: str) -> dict[str, str]:
    """What the same depths hold with whole backwards."""
    case = SPLIT[name]
    return in_one_process(evolve(case, settings={key: one for key, one in case.settings.items() if key != "words"}))


@pytest.mark.parametrize("name", SPLIT)
def test_the_bits_are_those_of_whole_backwards(name):
    assert in_one_process(SPLIT[name]) == whole(name)


def mixed(name: str) -> Case:
    """A case whose cut finds stages with whole backwards behind them, after R, and after R and I."""
    return next(case for computation, case in SPLIT.items() if name in computation)


@pytest.mark.parametrize("at", range(EPOCH * MICRO_BATCHES, (EPOCH + 1) * MICRO_BATCHES))
@pytest.mark.parametrize("name", ["stages=cuts", "int8", "dsp", "predict"])
def test_a_run_resumed_at_any_cut_goes_on_to_the_bit(name, at):
    uninterrupted, again = resumed(mixed(name), at)
    assert again == uninterrupted
