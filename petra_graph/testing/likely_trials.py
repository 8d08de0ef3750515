"""A trial for a plugin of which nothing but its declaration is known: `petra-graph check` tries what is likely to fit.

Required options get small values that their validators accept. A block is given images, rows, tokens or sequences, a
loss classes or values: the first that its code takes. A block that takes none is tried with the first, and so says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from petra_graph.blocks import Shape
from petra_graph.errors import PetraGraphError, SpecError
from petra_graph.registry import contracts
from petra_graph.registry.building import missing_package
from petra_graph.registry.contracts import BlockDeclaration, DataFacts
from petra_graph.registry.listing import small_options
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import AnyTrial, read_given
from petra_graph.testing.architectures import IMAGES, ArchitectureTrial
from petra_graph.testing.data_sets import DataSetTrial
from petra_graph.testing.generators import seeded
from petra_graph.testing.harness import Harness
from petra_graph.testing.losses import LossTrial, classes_of, values_like
from petra_graph.testing.lr_schedules import LrScheduleTrial
from petra_graph.testing.observers import CallbackTrial, LoggerTrial
from petra_graph.testing.optimizers import OptimizerTrial
from petra_graph.testing.trial import Draw, Trial, normal

T = TypeVar("T")
_TOKENS = 8


def tokens(shape: Shape, generator: torch.Generator) -> Tensor:
    """Draw tokens, int64 in 0 .. 7."""
    return torch.randint(_TOKENS, shape, generator=generator)


_STREAMS: Sequence[tuple[Shape, Draw]] = (
    ((8, 6, 6), normal),
    ((12,), normal),
    ((10, 16), normal),
    ((3, 32, 32), normal),
    ((10,), tokens),
)
"""Images, rows, sequences, images of three channels, tokens."""
_COUNTS: Mapping[str, Sequence[int]] = {"reversible": (2, 1), "buffered": (1, 2, 4), "head": (1, 2)}
"""Streams to try with blocks that read any number."""
_SAMPLES = (
    IMAGES,
    DataFacts(shape=(16,), dtype="float32", classes=10),
    DataFacts(shape=(16,), dtype="int64", classes=10),
)


def likely_trial(  # noqa: PLR0911  one case a kind
    plugin: Plugin, given: Mapping[str, Any], inputs: Sequence[Shape] = ()
) -> AnyTrial:
    """Return the trial of a plugin.

    Args:
        plugin: of any kind.
        given: options; others that are required get likely values.
        inputs: of a block, shapes of the streams; (): likely ones.

    Raises:
        SpecError: it needs options, files or a package that only its user knows.
        PluginError: it cannot be loaded.
    """
    options = read_given(plugin, {**small_options(plugin), **given})
    match plugin.group:
        case contracts.BLOCKS:
            return _block(plugin, options, inputs)
        case contracts.ARCHITECTURES:
            return _first([ArchitectureTrial.of(plugin, options, facts=facts) for facts in _SAMPLES], _expands)
        case contracts.LOSSES:
            kinds = [((10,), classes_of), ((10,), values_like), ((1,), values_like), ((10, 6), classes_of)]
            trials = [LossTrial.of(plugin, options, output=output, targets=targets) for output, targets in kinds]
            return _first(trials, lambda trial: trial.loss()(*trial.batch()))
        case contracts.DATASETS:
            return _opened(
                DataSetTrial.of(plugin, options), [name for name in small_options(plugin) if name not in given]
            )
        case contracts.LOGGERS:
            missing = missing_package(plugin)
            if missing is not None:
                raise SpecError(missing)
            return LoggerTrial.of(plugin, options)
        case contracts.OPTIMIZERS:
            return OptimizerTrial.of(plugin, options)
        case contracts.LR_SCHEDULES:
            return LrScheduleTrial.of(plugin, options)
        case _:
            return CallbackTrial.of(plugin, options)


def _opened(trial: DataSetTrial, guessed: Sequence[str]) -> DataSetTrial:
    """Open a data set, whose files may not be here, which is no broken promise."""
    try:
        trial.open()
    except SpecError as error:
        if not guessed:
            raise
        names = " and ".join(guessed)
        hint = " ".join(f"--set {name}=VALUE" for name in guessed)
        raise SpecError(f"it cannot be opened without its own values of {names}", hint) from error
    return trial


def _block(plugin: Plugin, options: Any, inputs: Sequence[Shape]) -> Trial:
    declaration = plugin.declaration
    assert isinstance(declaration, BlockDeclaration)
    if inputs:
        return Trial.of(declaration, inputs, options)
    return _first(list(_block_trials(declaration, options)), _runs)


def _block_trials(declaration: BlockDeclaration, options: Any) -> Iterator[Trial]:
    counts = _COUNTS.get(declaration.kind, (1,)) if declaration.streams is None else (declaration.streams,)
    for count in counts:
        for shape, draw in _STREAMS:
            yield Trial.of(declaration, [shape] * count, options, draw=draw)


def _runs(trial: Trial) -> None:
    harness = Harness(trial)
    with harness.without_graph():
        harness.block(*harness.inputs(0))


def _expands(trial: ArchitectureTrial) -> None:
    trial.nodes()


def _first(trials: Sequence[T], attempt: Callable[[T], object]) -> T:
    """Return the first trial whose attempt raises nothing; the very first where all do."""
    for trial in trials:
        with seeded(0), suppress(Exception):
            attempt(trial)
            return trial
    return trials[0]


def in_words(error: PetraGraphError) -> str:
    """Return why a plugin cannot be tried, in one line."""
    return "; ".join(f"{one.message} ({one.hint})" if one.hint else one.message for one in error.problems)
