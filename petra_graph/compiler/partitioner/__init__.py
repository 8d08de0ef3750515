"""The partitioner: cuts a table of costs into stages on devices, without torch or a specification (see README.md)."""
