"""What the distributions of this project's folder `plugins/` add to the core, by name.

The core asks only where a name is missing, so that it can say which distribution has it. What is installed is found by
entry points alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from petra_graph.errors import Problem

(
    _AUTHORING,
    _CONFORMANCE,
    _CONVNEXT,
    _DELAY,
    _EXPORT,
    _HF,
    _MODULES,
    _REPORT,
    _STUDIES,
    _TORCHVISION,
    _TRANSFORMERS,
    _VISION,
) = (
    f"petra-graph-{name}"
    for name in (
        "authoring",
        "conformance",
        "convnext",
        "delay",
        "export",
        "hf",
        "modules",
        "report",
        "studies",
        "torchvision",
        "transformers",
        "vision",
    )
)
OF_VERBS: Mapping[str, str] = {
    "check": _CONFORMANCE,
    "doctor": _AUTHORING,
    "evaluate": _EXPORT,
    "export": _EXPORT,
    "list": _AUTHORING,
    "new": _AUTHORING,
    "predict": _EXPORT,
    "report": _REPORT,
    "runs": _REPORT,
    "schema": _AUTHORING,
    "show": _AUTHORING,
}
"""The distribution of each verb of the command line."""
OF_TABLES: Mapping[str, str] = {"conversion": _MODULES, "finetune": _MODULES, "optimizer.delay": _DELAY}
"""The distribution of each table of a spec."""
OF_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("buffered", "from_torch", "head", "module_table"), _MODULES),
    "report_runs": _REPORT,
    **dict.fromkeys(("Sweep", "sweep", "vary"), _STUDIES),
    **dict.fromkeys(("evaluate", "export", "predict", "sample"), _EXPORT),
}
"""The distribution of each name of the package `petra_graph`."""
OF_JOINTS: Mapping[str, str] = {
    **dict.fromkeys(("compare", "scale"), _REPORT),
    **dict.fromkeys(("probe", "sweep", "vary"), _STUDIES),
    **dict.fromkeys(("evaluate", "export", "predict", "sample"), _EXPORT),
}
"""The distribution of each joint."""
OF_PLAN_FORMATS: Mapping[str, str] = dict.fromkeys(("html", "trace"), _REPORT)
"""The distribution of each format of a plan."""
OF_PLUGINS: Mapping[str, str] = {
    **dict.fromkeys(("architectures/module", "blocks/module", "blocks/module-head"), _MODULES),
    **dict.fromkeys(("blocks/module-part", "blocks/module-part-head", "callbacks/dual-residual-schedule"), _MODULES),
    "blocks/rev-convnext": _CONVNEXT,
    "datasets/torch": _MODULES,
    **dict.fromkeys(("architectures/hf-decoder", "blocks/hf-embedding", "blocks/hf-layer", "blocks/hf-logits"), _HF),
    **dict.fromkeys(("datasets/hf-images", "datasets/hf-text", "datasets/text-tokens", "metrics/bits-per-byte"), _HF),
    **dict.fromkeys(("architectures/torchvision", "architectures/torchvision-dr2net"), _TORCHVISION),
    **dict.fromkeys(("blocks/torchvision-piece", "blocks/torchvision-head"), _TORCHVISION),
    **dict.fromkeys(("blocks/dual-residual-entry", "blocks/dual-residual"), _TORCHVISION),
    **dict.fromkeys(("datasets/cifar10", "datasets/cifar100", "datasets/fashion-mnist"), _VISION),
    **dict.fromkeys(("architectures/gpt", "architectures/vit", "losses/token-cross-entropy"), _TRANSFORMERS),
    **dict.fromkeys(("datasets/text-bytes", "datasets/text-characters", "callbacks/text-samples"), _TRANSFORMERS),
    **dict.fromkeys(("callbacks/predictions", "callbacks/profiler", "loggers/mlflow", "loggers/wandb"), _STUDIES),
    **dict.fromkeys(("datasets/image-folder", "datasets/imagenet", "datasets/imagenet32"), _VISION),
    **dict.fromkeys(("metrics/auc", "metrics/f1", "metrics/mean-iou", "optimizers/lars"), _VISION),
}
"""The distribution of each plugin, by the name under which `petra-graph check` takes it."""
_NEEDED_BY: Mapping[str, Sequence[str]] = {_AUTHORING: [_CONFORMANCE], _STUDIES: [_REPORT]}
"""The other distributions of `plugins/` that one needs."""


def or_missing(problem: Problem) -> Problem:
    """Return the problem of an unknown key, or that a table's distribution is not installed."""
    table = ".".join(map(str, problem.path))
    if not problem.at_key or table not in OF_TABLES:
        return problem
    return evolve(problem, message=f"[{table}] is not installed", hint=how_to_install(OF_TABLES[table]))


def how_to_install(distribution: str) -> str:
    folders = " ".join(f"./plugins/{name}" for name in (*_NEEDED_BY.get(distribution, ()), distribution))
    return f"install {distribution}: in a clone of petra-graph, `pip install {folders}`"
