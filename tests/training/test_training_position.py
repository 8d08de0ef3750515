"""Where a training is, as a checkpoint keeps it."""

from __future__ import annotations

import json

import attrs
import pytest

from petra_graph.plugins.callback import EpochEnded
from petra_graph.training.trainer import TrainingPosition


@pytest.mark.parametrize(
    ("epoch", "evaluates", "micro_batches", "goes_on_within", "trained"),
    [
        (1, False, 0, None, 0),
        (1, False, 3, 3, 0),
        (1, True, 8, None, 1),
        (2, False, 8, None, 1),
        (2, False, 9, 9, 1),
        (3, False, 16, None, 2),
    ],
)
def test_an_epoch_goes_on_where_it_has_begun(epoch, evaluates, micro_batches, goes_on_within, trained):
    position = TrainingPosition(
        micro_batches_per_epoch=8, epoch=epoch, evaluates=evaluates, micro_batches=micro_batches
    )
    assert (position.goes_on_within, position.trained_epochs) == (goes_on_within, trained)


def test_a_position_is_the_same_after_a_manifest_has_held_it():
    ended = EpochEnded(epoch=1, train={"loss": 1.0}, test=None, samples_per_second=2.0, learning_rate=0.1)
    position = TrainingPosition(
        micro_batches_per_epoch=8, epoch=2, epoch_began=(1.5, 8), resumed_from=(3,), epochs=[ended], callbacks={"a": 1}
    )
    assert TrainingPosition(**json.loads(json.dumps(attrs.asdict(position)))) == position


@pytest.mark.parametrize(
    ("first", "rate"),
    [((0, 0.0), 10.0), ((20, 4.0), 80 / 6.0), ((51, 9.0), 10.0)],
    ids=["not noted", "behind the first", "most are first"],
)
def test_a_rate_leaves_out_the_start_of_libraries(first, rate):
    """A GPU's libraries took a second to start, of the two that 60 micro-batches took, and so a true plan seemed 1.4 times too fast."""
    position = TrainingPosition(micro_batches_per_epoch=50, micro_batches=100, seconds=10.0)
    assert position.micro_batches_per_second(first) == pytest.approx(rate)
