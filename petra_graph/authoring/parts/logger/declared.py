from petra_graph.plugins import LoggerDeclaration

TEXT_LINES = LoggerDeclaration(
    summary="Lines of text, for people.",
    build="petra_graph_examples.logger:TextLines",
    api=1,
)
