"""Running statistics follow each micro-batch once, in the evaluation whose graph is differentiated.

A training forward without a graph normalises with batch statistics, as always, but must leave the running ones alone;
otherwise each micro-batch would count twice (once more in the recomputation).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@contextmanager
def frozen_statistics(*modules: nn.Module) -> Iterator[None]:
    """Run `modules` without updating their running statistics.

    The context reaches every submodule with torch's own switch, `track_running_stats`: with the switch off in training mode,
    batch normalisation uses the same batch statistics and writes nothing. A block with statistics of its own gives
    the submodule that holds them this attribute, and updates them only while it is true.

    Instance normalisation writes to its buffers whatever the switch says; in training mode, where it does not read
    them, the context takes them away instead.
    """
    tracking = [part for module in modules for part in module.modules() if getattr(part, "track_running_stats", False)]
    switched = [part for part in tracking if not isinstance(part, _INSTANCE_NORMS)]
    hidden = [
        (part, part.running_mean, part.running_var)
        for part in tracking
        if isinstance(part, _INSTANCE_NORMS) and part.training
    ]
    for part in switched:
        part.track_running_stats = False  # type: ignore[assignment]
    for norm, _, _ in hidden:
        norm.running_mean = norm.running_var = None
    try:
        yield
    finally:
        for part in switched:
            part.track_running_stats = True  # type: ignore[assignment]
        for norm, mean, var in hidden:
            norm.running_mean, norm.running_var = mean, var
