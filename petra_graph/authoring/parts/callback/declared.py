from attrs import frozen
from petra_graph.plugins import CallbackDeclaration, GreaterThan, option


@frozen(kw_only=True)
class TimeLimitOptions:
    """The time."""

    seconds: float = option(
        "longest time of a training, with what it took before an interruption",
        default=3600.0,
        unit="seconds",
        validator=GreaterThan(0),
    )


TIME_LIMIT = CallbackDeclaration(
    summary="Ends the training after the epoch in which its time is over.",
    options=TimeLimitOptions,
    build="petra_graph_examples.callback:TimeLimit",
    changes="length",
    api=1,
)
