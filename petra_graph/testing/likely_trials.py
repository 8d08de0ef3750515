"""A trial for a plugin of which only its declaration is known: `petra-graph check` tries what is likely to fit.

Required options get small values that their validators accept. A block is given images, rows, tokens or sequences, a
loss classes or values: the first that its code takes. A block that takes none of them is tried with the first, and so says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from petra_graph.errors import PetraGraphError, SpecError
from petra_graph.kinds.data_set import DATA_SET
from petra_graph.kinds.generators import seeded
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_trial import AnyTrial, read_given
from petra_graph.registry.options_in_words import small_options


def likely_trial(plugin: Plugin, given: Mapping[str, Any], inputs: Sequence[tuple[int, ...]] = ()) -> AnyTrial:
    """Return the first trial that fits; the very first where no trial does.

    Args:
        plugin: of any kind.
        given: options; others that are required get likely values.
        inputs: of a block, shapes of the streams; (): likely ones.

    Raises:
        SpecError: it needs options, files or a package that only its user knows.
        PluginError: it cannot be loaded.
    """
    small = small_options(plugin)
    options = read_given(plugin, {**small, **given})
    trials: Sequence[AnyTrial]
    try:
        trials = plugin.kind.trials_of(plugin, options, inputs)
    except SpecError as error:  # the files of a data set may not be here, which does not break a promise
        guessed = [name for name in small if name not in given]
        if plugin.kind is not DATA_SET or not guessed:
            raise
        names = " and ".join(guessed)
        hint = " ".join(f"--set {name}=VALUE" for name in guessed)
        raise SpecError(f"it cannot be opened without its own values of {names}", hint) from error
    for trial in trials if len(trials) > 1 else ():
        with seeded(0), suppress(Exception):
            trial.attempt()
            return trial
    return trials[0]


def in_words(error: PetraGraphError) -> str:
    """Return why a plugin cannot be tried, in one line."""
    return "; ".join(f"{one.message} ({one.hint})" if one.hint else one.message for one in error.problems)
