from petra_graph.plugins import LrScheduleDeclaration

INVERSE_ROOT = LrScheduleDeclaration(
    summary="One over the square root of the updates since the warm-up.",
    build="petra_graph_examples.schedule:inverse_root",
    api=1,
)
