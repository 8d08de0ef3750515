"""The conformance kit: whether a plugin of any kind keeps the promises on which training relies.

A plugin's own tests have one function, of which pytest makes a test of each promise:

    @parametrize_with_checks(
        Trial.of(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={...}),
        OptimizerTrial.of(my_optimizer, {"lr": 0.1}),
    )
    def test_a_promise(check):
        check()

A test that fails says which promise is broken, by how much, and what to do. Promises that a plugin does not make are given with the
reason, `expected_failed_checks={name: reason}`. `petra-graph check` asks the same without pytest.

| kind | a trial |
|---|---|
| block | `Trial.of(block, inputs, options)`; `draw=Tokens(50_000)` if it reads tokens |
| architecture | `ArchitectureTrial.of(plugin, options, facts=...)` |
| optimizer | `OptimizerTrial.of(plugin, options)` |
| learning-rate schedule | `LrScheduleTrial.of(plugin, options)` |
| loss | `LossTrial.of(plugin, options, output=..., targets=...)`, as in `targets=last_classes_of` |
| metric | `MetricTrial.of(plugin, options, output=..., targets=...)` |
| data set | `DataSetTrial.of(plugin, options)` |
| logger | `LoggerTrial.of(plugin, options)` |
| callback | `CallbackTrial.of(plugin, options)` |

A plugin is given as an entry point names it: its code, the class of its options, or its declaration. A package that adds a kind has
`PluginTrial`, `Promise` and `KindChecks` for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from petra_graph_conformance.kit import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import the kit, and so torch, when one of its names is used: the help of `petra-graph` imports this package."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.kit"), name)
