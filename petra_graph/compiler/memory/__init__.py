"""The memory model: every stage's bytes, by executing the program with byte counts for tensors (see README.md)."""
