"""The memory model: what every stage holds, found by executing the program with byte counts for tensors."""
