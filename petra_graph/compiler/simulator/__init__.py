"""The time model: the speed of a pipeline from its stages' own orders of operations (see README.md)."""
