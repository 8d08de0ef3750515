"""A store of small JSON values by name, which all processes of a run share; bulk goes through channels."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from petra_graph.errors import RunFailed


class RunStore:
    """JSON values by name."""

    def __init__(self, store: Store) -> None:
        self._torch_store = store

    def within(self, name: str) -> RunStore:
        """Return a part of the store whose names are apart from all others."""
        return RunStore(PrefixStore(name, self._torch_store))

    def set(self, name: str, value: Any) -> None:
        """Set a value."""
        self._torch_store.set(name, json.dumps(value))

    def set_default(self, name: str, value: Any) -> Any:
        """Set a value unless one is there; return the one that holds."""
        return json.loads(self._torch_store.compare_set(name, "", json.dumps(value)))

    def get(self, name: str) -> Any | None:
        """Return a value, None where there is none."""
        return json.loads(self._torch_store.get(name)) if self._torch_store.check([name]) else None

    def wait(self, name: str, seconds: float, otherwise: str) -> Any:
        """Wait for a value.

        Raises:
            RunFailed: `otherwise`, since no process has set the value in time.
        """
        try:
            self._torch_store.wait([name], timedelta(seconds=seconds))
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            message = f"{otherwise} within {seconds:g} s"
            raise RunFailed(message, hint="see whether all processes were started, and what they say") from error
        return json.loads(self._torch_store.get(name))

    def add(self, name: str) -> int:
        """Add one to a counter, which begins at 0, and return it."""
        return int(self._torch_store.add(name, 1))
