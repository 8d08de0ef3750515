"""Plans as pages and traces, from their JSON documents alone."""
