"""Pages, charts and traces of petra-graph's plans and runs."""
