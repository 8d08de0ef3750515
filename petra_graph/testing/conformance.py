"""All promises of a block at once.

Decision: the promises on which others rest (declaration, shapes) are checked first, and alone if one is broken; all
others are checked even where some are broken, so that an author sees the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Unpack

from petra_graph.blocks import AdditiveCoupling, Block, Reversible, TwoFunctionCoupling
from petra_graph.measure.shapes import listing
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.testing.backward import check_autocast, check_gradients, check_inverse, check_one_evaluation
from petra_graph.testing.broken_promise import BrokenPromise, author_line
from petra_graph.testing.declarations import check_declaration
from petra_graph.testing.evaluation import check_evaluation_mode, check_randomness, check_recomputation
from petra_graph.testing.state import check_state_dict, check_statistics
from petra_graph.testing.streams import check_meta_device, check_shapes, check_streams_untouched
from petra_graph.testing.trial import Settings, Trial

_FOUNDATIONS = ("declaration", "shapes")
PROMISES: Mapping[str, Callable[[Trial], None]] = MappingProxyType(
    {
        "declaration": check_declaration,
        "shapes": check_shapes,
        "streams untouched": check_streams_untouched,
        "inverse": check_inverse,
        "one evaluation": check_one_evaluation,
        "gradients": check_gradients,
        "recomputation": check_recomputation,
        "statistics": check_statistics,
        "randomness": check_randomness,
        "autocast": check_autocast,
        "evaluation mode": check_evaluation_mode,
        "state dictionary": check_state_dict,
        "meta device": check_meta_device,
    }
)
"""The check of every promise, by the name that messages use."""


def promises_of(block_class: type[Block]) -> tuple[str, ...]:
    """Return the names of the promises that apply to a class: only reversible blocks have an inverse."""
    bases = {"inverse": Reversible, "one evaluation": AdditiveCoupling | TwoFunctionCoupling}
    return tuple(name for name in PROMISES if issubclass(block_class, bases.get(name, Block)))


def check_block(
    block: type[Block] | BlockDeclaration,
    inputs: Sequence[Sequence[int]],
    options: Mapping[str, Any] | object = None,
    *,
    leave_out: Collection[str] = (),
    **settings: Unpack[Settings],
) -> None:
    """Check all that training relies on.

    Args:
        block: as in `Trial.of`, with `inputs`, `options` and the other settings.
        inputs: shapes of the streams that it reads, without the batch dimension.
        options: its `options` table; None: no keys.
        leave_out: names of promises that the block does not make, as in `PROMISES`.
        settings: `batch`, `draw` or `seed` of the trial.

    Raises:
        AssertionError: the promises that are broken, by how much, and what to do.
        SpecError: the block's options class refuses the options.
        ValueError: `leave_out` names no promise.
    """
    unknown = set(leave_out) - set(PROMISES)
    if unknown:
        raise ValueError(f"no promise is called {', '.join(sorted(unknown))}; there are {', '.join(PROMISES)}")
    trial = Trial.of(block, inputs, options, **settings)
    checked = [name for name in promises_of(trial.block_class) if name not in leave_out]
    for first in (True, False):
        _check_all(trial, [name for name in checked if (name in _FOUNDATIONS) == first])


def _check_all(trial: Trial, names: Sequence[str]) -> None:
    broken = list(filter(None, (_fault(trial, name) for name in names)))
    if broken:
        count = f"{len(broken)} promises" if len(broken) > 1 else "a promise"
        head = f"{trial.name} ({listing(trial.inputs)}; {trial.options}) breaks {count}"
        raise AssertionError("\n".join([head, *broken]))


def _fault(trial: Trial, name: str) -> str:
    try:
        PROMISES[name](trial)
    except BrokenPromise as broken:
        return str(broken)
    except Exception as error:  # noqa: BLE001  any error of the block's code is a finding
        return f"{name}: it raised {type(error).__name__} at {author_line(error)}: {error}"
    return ""
