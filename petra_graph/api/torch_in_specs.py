"""Tables of a specification that is made in code: of torch's Datasets, and of nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from petra_graph.errors import kind_of
from petra_graph.spec.class_names import find_name


def from_torch(
    train: Any,
    test: Any,
    *,
    classes: int | Sequence[str] | None = None,
    validation: Any = None,
    plain: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the table `data` of a specification that reads torch Datasets: data=pg.from_torch(train, test, classes=10, batch=32).

    A sample is (x, y), each a tensor, an array, a number or a PIL image; an image becomes float32 [channels, height, width] in
    [0, 1]. All samples have the shapes and types of the first one. Around each `__getitem__`, the global generators of Python, numpy
    and torch are seeded by the run's seed, the epoch and the index, for a test sample by its index.

    Args:
        train: a Dataset, map-style or iterable, at the top level of a module or notebook, or a function or class that makes one.
        test: a map-style Dataset, in the same way.
        classes: their number or their names; None: y is no class, as in regression.
        validation: a Dataset by which the best weights are chosen, in the same way; or the share of `plain` that is.
        plain: the training Dataset without augmentation, in the same way: `train` itself, if that augments nothing.
        more: other keys of the table, as in batch=32, workers=2.

    Raises:
        SpecError: a Dataset has no name by which a run finds it again. What is wrong with it is told when the run is planned.
    """
    options = {"train": find_name(train), "test": find_name(test), "classes": classes}
    if plain is not None:
        options["plain"] = find_name(plain)
    if isinstance(validation, float):
        more["validation"] = validation
    elif validation is not None:
        options["validation"], more["validation"] = find_name(validation), "validation"
    return {"name": "torch", "options": options, **more}


def node_tables(nodes: object) -> list[object]:
    """Return the nodes of a network as a list of tables, each with a name.

    Raises:
        TypeError: they are not a list.
    """
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise TypeError(
            f'nodes are a list of tables, as in [{{"name": "stem", "block": Stem}}, ...] (got {kind_of(nodes)})'
        )
    tables: list[object] = []
    seen: Counter[str] = Counter()
    for one in nodes:
        table = one if isinstance(one, Mapping) else {"block": one}
        if "block" in table and "name" not in table:
            code = table.get("options", {}).get("module", table["block"])
            name = re.split("[.:]", code if isinstance(code, str) else getattr(code, "__name__", "node"))[-1].lower()
            seen[name] += 1
            table = {"name": f"{name}-{seen[name]}" if seen[name] > 1 else name, **table}
        tables.append(table)
    return tables
