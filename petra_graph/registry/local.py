"""Plugins without a package: `name = "my_module:attribute"` names a declaration, or the code itself, in a module beside a specification.

Decision: of code without a declaration, the declaration follows from the code's own attributes and signature, so reading it
imports the module, and usually torch. `validate` therefore names local blocks and does not check them. Local plugins of other
kinds are imported: a network cannot be checked without its architecture and the facts of its data.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib.machinery import PathFinder
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import PluginError, Problem, SpecError, shown, suggestion
from petra_graph.registry import contracts
from petra_graph.registry.callback import Callback
from petra_graph.registry.contracts import DataFacts, Declaration, NoOptions
from petra_graph.registry.declaration_faults import api_fault, find_fault
from petra_graph.registry.trust import run_plugin_code


@frozen(kw_only=True)
class _Form:
    """What code of a kind looks like where it declares itself."""

    noun: str
    contract: type[Declaration]
    fits: Callable[[Any], bool]
    having: str
    """As in "has no class with {having}", or "has no {having}"."""
    otherwise: str
    """Why a value that does not fit is refused, as the end of a sentence."""
    hint: str
    says_its_kind: bool = True
    """Whether code that fits can be nothing else."""
    declared: Callable[[Any, str], Mapping[str, Any]] = lambda _, __: {}
    """The fields of the declaration beside summary, options and build, of the code and its name."""


def is_local(name: str) -> bool:
    """Return whether a name has the form "module:attribute"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


def missing_module(name: str, folders: Sequence[str], noun: str = "block") -> Problem | None:
    """Return the problem of a "module:attribute" whose top package cannot be found; this imports nothing.

    Args:
        name: of the plugin.
        folders: those of a registry; their modules come after those of Python's path.
        noun: of its kind, as in "block".
    """
    top = name.partition(":")[0].partition(".")[0]
    if top in sys.modules or PathFinder.find_spec(top, [*sys.path, *folders]) is not None:
        return None
    plural = "losses" if noun == "loss" else f"{noun}s"
    return Problem(
        message=f"{noun} {shown(name)} has no module: {top!r} is neither importable nor a distribution with {plural}",
        hint=f"modules are looked for on Python's path and in {' and '.join(folders)}",
    )


def resolve_local(group: str, name: str, folders: Sequence[str]) -> Declaration:
    """Import "module:attribute" and return the declaration that it is, or that follows from the code.

    The folders join Python's path, at its end: no file there can take the place of an installed module.

    Args:
        group: of the plugin.
        name: "module:attribute".
        folders: where the module may lie, beside Python's path.

    Raises:
        SpecError: there is no such module.
        PluginError: importing it fails, or what it names is no plugin of this kind.
    """
    form = _FORMS[group]
    value = _attribute(form, name, folders)
    if isinstance(value, Declaration):
        fault = run_plugin_code(
            lambda: api_fault(value) or find_fault(value, form.contract), f"{form.noun} {shown(name)} cannot be read"
        )
        if fault:
            raise PluginError(f"{form.noun} {shown(name)} {fault}", "mend the declaration")
        return value
    fault = form.otherwise
    if form.fits(value):
        declaration = form.contract(
            summary=_summary(value), options=_options(value), build=name, **form.declared(value, name)
        )
        fault = find_fault(declaration, form.contract)
        if not fault:
            return declaration
    raise PluginError(f"{form.noun} {shown(name)} {fault}", form.hint)


def possible_groups(code: Any) -> list[str]:
    """Return the groups of the plugins that code without a declaration may be: one, where its base class or attributes say which."""
    fitting = [group for group, form in _FORMS.items() if form.fits(code)]
    return next(([group] for group in fitting if _FORMS[group].says_its_kind), fitting)


def _attribute(form: _Form, name: str, folders: Sequence[str]) -> Any:
    """Import "module:attribute" and return what it names."""
    missing = missing_module(name, folders, form.noun)
    if missing is not None:
        raise SpecError(missing)
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    module, _, attribute = name.partition(":")
    found: Any = run_plugin_code(lambda: importlib.import_module(module), f"{form.noun} {shown(name)} cannot be loaded")
    value: Any = reduce(lambda value, part: getattr(value, part, None), attribute.split("."), found)
    if value is not None:
        return value
    fitting = {key: one for key, one in vars(found).items() if isinstance(one, form.contract) or form.fits(one)}
    own = [key for key, one in fitting.items() if getattr(one, "__module__", module) == module]
    where = getattr(found, "__file__", None) or module
    hint = suggestion(attribute, own or fitting) if fitting else f"{where} has no {form.having}"
    if module == "__main__":
        hint += "; it was defined in a notebook or script: put it into a module to use it elsewhere"
    thing = "class" if form.having.startswith("class") else "attribute"
    raise PluginError(f"{form.noun} {shown(name)}: the module {module!r} has no {thing} {attribute!r}", hint)


def _summary(code: Any) -> str:
    return ((getattr(code, "__doc__", None) or "").strip().partition("\n")[0]) or code.__name__


def _options(code: Any) -> type:
    """Return the class of options that code says: its attribute `Options`, or the annotation of its parameter `options`."""
    stated: Any = getattr(code, "Options", None)
    if stated is not None:
        return stated  # type: ignore[no-any-return]  # whatever it is, the declaration's faults name it
    try:
        annotation = inspect.signature(code, eval_str=True).parameters["options"].annotation
    except Exception:  # noqa: BLE001  annotations are code of the plugin
        return NoOptions
    return annotation if isinstance(annotation, type) and attrs.has(annotation) else NoOptions


def _takes(count: int) -> Callable[[Any], bool]:
    """Return whether a value is a class or function that can be called with so many arguments."""

    def fits(value: Any) -> bool:
        if not isinstance(value, type) and not inspect.isroutine(value):
            return False
        try:
            inspect.signature(value).bind(*range(count))
        except (TypeError, ValueError):
            return False
        return True

    return fits


def _is_block(value: object) -> bool:
    return isinstance(value, type) and hasattr(value, "kind")


def _is_data_set(value: object) -> bool:
    return isinstance(value, type) and isinstance(getattr(value, "facts", None), DataFacts)


def _is_callback(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value is not Callback and _takes(1)(value)


def _of_block(block: Any, _: str) -> Mapping[str, Any]:
    return {"kind": block.kind, "streams": getattr(block, "streams", None)}


def _of_data_set(data: Any, name: str) -> Mapping[str, Any]:
    facts: DataFacts = data.facts
    return {"facts": lambda _: facts, "read": f"{name}.read" if hasattr(data, "read") else None}


def _of_callback(callback: Any, _: str) -> Mapping[str, Any]:
    stated = ("changes", "reads_weights")
    return {field: getattr(callback, field) for field in stated if hasattr(callback, field)}


def _called(noun: str, contract: type[Declaration], arguments: str, result: str, more: str = "") -> _Form:
    """Return the form of a kind whose code is any class or function with these arguments."""
    count = arguments.count(",") + 1
    return _Form(
        noun=noun,
        contract=contract,
        fits=_takes(count),
        having=f"class or function ({arguments})",
        otherwise=f"is not a class or function that is called as ({arguments})",
        says_its_kind=False,
        hint=f"write a function or class ({arguments}) -> {result}{more}; or name an instance of {contract.__name__}",
    )


_FORMS: Mapping[str, _Form] = {
    contracts.BLOCKS: _Form(
        noun="block",
        contract=contracts.BlockDeclaration,
        fits=_is_block,
        having="class with a `kind`, as blocks are",
        otherwise="is not a class with a `kind`, as blocks are",
        hint="subclass one of petra_graph.blocks, and give it an attrs class `Options`",
        declared=_of_block,
    ),
    contracts.ARCHITECTURES: _called(
        "architecture", contracts.ArchitectureDeclaration, "options, facts", "tuple of NodeSpec"
    ),
    contracts.OPTIMIZERS: _called(
        "optimizer",
        contracts.OptimizerDeclaration,
        "groups, options",
        "torch.optim.Optimizer",
        more=", whose options are an attrs class with a float `lr`",
    ),
    contracts.LR_SCHEDULES: _called(
        "learning-rate schedule", contracts.LrScheduleDeclaration, "options, horizon", "factor(u)"
    ),
    contracts.LOSSES: _called("loss", contracts.LossDeclaration, "options", "Loss"),
    contracts.DATASETS: _Form(
        noun="data set",
        contract=contracts.DataSetDeclaration,
        fits=_is_data_set,
        having="class with `facts`, as data sets are",
        otherwise="is not a class with `facts`, a DataFacts of its samples",
        hint="give it `facts = DataFacts(...)`, and the attributes `train` and `test` where it is built",
        declared=_of_data_set,
    ),
    contracts.LOGGERS: _called("logger", contracts.LoggerDeclaration, "options, run", "Logger"),
    contracts.CALLBACKS: _Form(
        noun="callback",
        contract=contracts.CallbackDeclaration,
        fits=_is_callback,
        having="class that is a Callback",
        otherwise="is not a subclass of petra_graph.plugins.Callback that is built as cls(options)",
        hint="subclass petra_graph.plugins.Callback; or name an instance of CallbackDeclaration",
        declared=_of_callback,
    ),
}
