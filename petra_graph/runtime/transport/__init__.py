"""Channels between stages: in a queue, in shared memory, or through a process group."""
