"""The command line: one lazy file a verb."""
