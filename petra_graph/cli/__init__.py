"""The command line: verbs about specifications, about runs, and about plugins."""
