"""What is raised if a network cannot be cut."""

from __future__ import annotations


class CannotCut(Exception):
    """A network cannot be cut; the message says why, and where."""

    def __init__(self, message: str, hint: str = "", *, of_list: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.of_list = of_list
        """Whether the list of modules that are nodes is at fault."""
