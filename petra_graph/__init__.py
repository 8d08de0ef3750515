"""Train reversible networks cut into stages with PETRA, from a TOML spec or from Python.

    import petra_graph as pg

    spec = pg.load_spec("specs/quickstart.toml")             # or one made here: pg.make_spec(...)
    spec = spec.replace({"run.epochs": 3, "method.schedule": "auto"})

    pg.plan(spec)                 # stages, memory, staleness and speed, before anything runs
    run = pg.train(spec)          # as `petra-graph run` does it, to the bit
    run.summary["test"]           # loss and metrics; run.metrics("train/loss") over training
    run.evaluate()                # on its own data, or other data: run.evaluate({"data.options.root": "..."})
    run.predict(["a.png"])        # classes with their probabilities
    run.sample(prompt="To be")    # a text continued, where the data set is text
    run.export("onnx")            # for programs that know nothing of petra-graph

    for lr in (0.1, 0.03):        # `petra-graph sweep` trains several at a time, and compares them
        pg.train(spec.replace({"optimizer.options.lr": lr}))

    run = pg.open_run("latest")   # or by the name that `petra-graph runs` prints
    module = run.load()           # its network as an ordinary torch.nn.Module

A class stands where a spec has a name, a torch Dataset and any torch.nn.Module need no classes of petra-graph, and a whole module is a network
by its parts if it is an nn.Sequential or has a method `nodes()`:

    pg.make_spec(nodes=[{"name": "stem", "block": Stem}, ...], data={"name": Rows, "batch": 32})
    pg.make_spec(module=functools.partial(MyNet, layers=4), data=pg.from_torch(train, test, classes=10, batch=32))

In anyone's own training loop, residual functions run as a reversible network, whose memory no depth changes:

    body = pg.reversible([(Attention(), Mlp()) for _ in range(48)])

Importing this package imports no torch; the functions import what they need. Base classes of blocks are in
`petra_graph.blocks`, what the declarations of a package need in `petra_graph.plugins`, and the
checks of what training relies on in `petra_graph.testing`. Errors are subclasses of `PetraGraphError`: their text has every problem, where it is, and what to do.
"""

from __future__ import annotations

from petra_graph.version import __version__ as __version__

TYPE_CHECKING = False  # type checkers know the name; importing typing would take most of this module's time
if TYPE_CHECKING:
    from typing import Any

    from petra_graph.api import PlanView, Run, load, load_spec, make_spec, open_run, plan, train
    from petra_graph.autograd import reversible
    from petra_graph.errors import PetraGraphError, SpecError
    from petra_graph.plugins.callback import Listener
    from petra_graph.plugins.data_set import DataFacts
    from petra_graph.report.pages.runs_page import report_runs
    from petra_graph.spec.in_code import from_torch
    from petra_graph.spec.model import Spec

# fmt: off
__all__ = [
    "DataFacts", "Listener", "PetraGraphError", "PlanView", "Run", "Spec", "SpecError", "from_torch", "load", "load_spec",
    "make_spec", "open_run", "plan", "report_runs", "reversible", "train",
]
# fmt: on
_MODULES = {
    "api": {"PlanView", "Run", "load", "load_spec", "make_spec", "open_run", "plan", "train"},
    "autograd": {"reversible"},
    "errors": {"PetraGraphError", "SpecError"},
    "plugins.callback": {"Listener"},
    "plugins.data_set": {"DataFacts"},
    "report.pages.runs_page": {"report_runs"},
    "spec.in_code": {"from_torch"},
    "spec.model": {"Spec"},
}
"""Where the names are."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    (module,) = (module for module, names in _MODULES.items() if name in names)
    return getattr(import_module(f"petra_graph.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
