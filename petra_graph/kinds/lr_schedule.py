"""A learning-rate schedule: a pure, cheap function from an update's number to a finite factor of at least 0."""

from __future__ import annotations

from attrs import frozen

from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin_kind import PluginKind, called


@frozen(kw_only=True)
class Horizon:
    """The length of a run in updates, for learning-rate schedules.

    Attributes:
        updates: of the whole run; the schedule is asked for u = 0 .. updates - 1.
        updates_per_epoch: of one epoch.
        warmup_updates: at the run's start, over which the rate rises; counted in `updates`.
    """

    updates: int
    updates_per_epoch: int
    warmup_updates: int


@frozen(kw_only=True)
class LrScheduleDeclaration(Declaration):
    """A learning-rate schedule; `build` names a torch-free function (options, Horizon) -> factor(u).

    `factor(u)` multiplies the base learning rate at the stage's update u = 0, 1, ...; warm-up is applied outside. A function
    (options, Horizon, stage) is given the `StageFacts` of a stage, and builds the factor of that stage alone.
    """


LR_SCHEDULE = PluginKind(
    noun="learning-rate schedule",
    group="petra_graph.lr_schedules",
    table="lr_schedule",
    declaration=LrScheduleDeclaration,
    form=called("options, horizon", "factor(u)", stage=True),
    used=lambda _, __, factor: lambda u: float(factor(u)),
)
