"""A trial for a plugin of which only its declaration is known: `petra-graph check` tries what is likely to fit.

Required options get small values that their validators accept. A block is given images, rows, tokens or sequences, a
loss classes or values: the first that its code takes. A plugin that takes none of them is not tried, unless what it raises shows
that its code would fail on any others, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from petra_graph.errors import PetraGraphError, PluginError, SpecError
from petra_graph.kinds.author_code import raised_at
from petra_graph.kinds.data_set import DATA_SET
from petra_graph.kinds.generators import seeded
from petra_graph.kinds.plugin import Plugin
from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.options_in_words import small_options
from petra_graph_conformance.plugin_trial import AnyTrial, read_given


class NoGuessFits(SpecError):
    """A plugin takes none of the likely trials, so that its user must say what it takes."""


_OF_CODE = (NameError, AttributeError, ImportError, TypeError, NotImplementedError)
"""What code raises on any input, if it raises the same on all that are guessed."""


def likely_trial(plugin: Plugin, options: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> AnyTrial:
    """Return the first trial that fits; one that shows the mistake of code that fits none.

    Args:
        plugin: of any kind.
        options: others that are required get likely values.
        given: settings of the trial, by the names of its kind's `settings`; others are likely ones.

    Raises:
        NoGuessFits: it takes none of the likely inputs.
        SpecError: it needs options, files or a package that only its user knows.
        PluginError: it cannot be loaded.
    """
    checks = checks_of(plugin.kind)
    small = small_options(plugin)
    guessed = [f"--set {name}=VALUE" for name in small if name not in options]
    read = read_given(plugin, {**small, **options})
    try:
        trials: Sequence[AnyTrial] = checks.trials_of(plugin, read, given)
    except SpecError as error:  # the files of a data set may not be here, which does not break a promise
        if plugin.kind is not DATA_SET or not guessed:
            raise
        names = " and ".join(name for name in small if name not in options)
        raise SpecError(f"it cannot be opened without its own values of {names}", " ".join(guessed)) from error
    if len(trials) == 1:
        return trials[0]
    faults = []
    for trial in trials:
        fault = _attempt(trial)
        if fault is None:
            return trial
        faults.append(fault)
    for trial, fault in zip(trials, faults, strict=True):
        if _is_of_code(fault, faults):
            return trial
    raise _no_guess_fits(trials[0], faults, guessed, checks.settings)


def _attempt(trial: AnyTrial) -> BaseException | None:
    try:
        with seeded(0):
            trial.attempt()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  it is the author's code
        return error
    return None


def _is_of_code(fault: BaseException, faults: Sequence[BaseException]) -> bool:
    """Whether code has failed whatever its input: after it had taken the input, or in the same way on all."""
    alike = {(type(one), str(one)) for one in faults} == {(type(fault), str(fault))}
    return isinstance(fault, PluginError) or not isinstance(fault, Exception) or (alike and isinstance(fault, _OF_CODE))


def _no_guess_fits(
    first: AnyTrial, faults: Sequence[BaseException], guessed: Sequence[str], settings: Mapping[str, str]
) -> NoGuessFits:
    at, text = raised_at(faults[0]), str(faults[0]).strip().partition("\n")[0]
    examples = " or ".join([*(f"--{name} {example}" for name, example in settings.items()), *guessed])
    raised = f"{type(faults[0]).__name__}{at and f' at {at}'}{text and f': {text}'}"
    found = f"it takes none of {len(faults)} guessed inputs; with {first.about} it raised {raised}"
    return NoGuessFits(found, f"say what it takes, as in {examples}")


def in_words(error: PetraGraphError) -> str:
    """Return why a plugin cannot be tried, in one line."""
    return "; ".join(f"{one.message} ({one.hint})" if one.hint else one.message for one in error.problems)
