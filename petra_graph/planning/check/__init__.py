"""The check step: everything that a specification says, before its network is built."""
