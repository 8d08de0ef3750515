"""How long the stages' own orders of operations take, before anything runs."""
