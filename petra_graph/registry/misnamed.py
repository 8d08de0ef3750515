"""Methods of a callback that no run calls, by the names that other libraries have for them, or misspelt."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from petra_graph.registry.call_faults import public_methods
from petra_graph.registry.callback import Callback

_ELSEWHERE: Mapping[str, str] = {
    "setup": "started",
    "on_fit_start": "started",
    "on_train_start": "started",
    "on_train_begin": "started",
    "on_batch_end": "trained",
    "on_step_end": "trained",
    "on_train_batch_end": "trained",
    "on_test_begin": "evaluating",
    "on_test_start": "evaluating",
    "on_validation_start": "evaluating",
    "on_validation_epoch_start": "evaluating",
    "on_test_batch_end": "evaluated",
    "on_validation_batch_end": "evaluated",
    "on_evaluate": "epoch_ended",
    "on_epoch_end": "epoch_ended",
    "on_test_end": "epoch_ended",
    "on_train_epoch_end": "epoch_ended",
    "on_validation_end": "epoch_ended",
    "on_validation_epoch_end": "epoch_ended",
    "on_fit_end": "ended",
    "on_train_end": "ended",
    "teardown": "stopped",
    "on_exception": "stopped",
    "state_dict": "state",
    "on_save_checkpoint": "state",
    "load_state_dict": "restore",
    "on_load_checkpoint": "restore",
}
"""The names of Lightning, Keras and transformers, with those that are meant."""
_ALIKE = 0.8


def misnamed(callback: Callback) -> Iterator[tuple[str, str]]:
    """Yield methods that nothing calls, each with the name that is likely meant, or "".

    A method that the class's own code names is a helper, and no mistake.
    """
    known = public_methods(Callback)
    written = [cls for cls in type(callback).__mro__ if cls not in Callback.__mro__]
    functions = {name: value for cls in written for name, value in vars(cls).items() if inspect.isfunction(value)}
    used = {name for function in functions.values() for name in function.__code__.co_names}
    for name in functions:
        if name.startswith("_") or name in known or name in used:
            continue
        meant = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, known, 1, _ALIKE)), "")
        if (meant and meant not in functions) or name.startswith("on_"):
            yield name, meant
