"""The contract of a plugin: the signature is the schema.

The first parameters are the framework's, by position (`KINDS`, at the end); every other one is an option, a key of the table
`options`. An annotation is the type that TOML must have, with its meaning and bounds, a default is the default; what TOML cannot express is
left to the code. The value of a `Path` is relative to the file that gives it, and that of `Code` is "module:attribute". A parameter `stage`
is no option: it is given the facts of the stage for which the code is built.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial, wraps
from pathlib import Path as FilePath
from typing import Annotated, Any

import attrs
from attrs import evolve, field, frozen

from petra_graph.errors import Path, PluginError, Problem, SpecError, kind_of, shown
from petra_graph.plugins.author_code import CODE_NAME, OWN, author_code
from petra_graph.plugins.callback import Callback
from petra_graph.plugins.data_set import data_of
from petra_graph.plugins.loss_and_metric import Loss, Metric
from petra_graph.plugins.optimizer import optimizer_of
from petra_graph.plugins.stage_facts import StageFacts
from petra_graph.spec.model import NodeSpec
from petra_graph.spec.strict_values import Reader, keys_with, plain

STAGE = "stage"
Given = tuple[Any, ...]
Options = dict[str, Any]
_OUTPUT_AND_TARGET = 2


def names_code(name: str) -> None:
    if not CODE_NAME.fullmatch(name):
        raise ValueError('must be "module:attribute"')


Code = Annotated[str, names_code]


class CodeName(str):  # noqa: SLOT000  it has an attribute
    """The "module:attribute" that an option names, with the folders in which the module may lie besides Python's path."""

    folders: Sequence[str] = ()


@frozen(eq=False)
class PluginKind:
    """A kind of plugin; `several` of it may be in an array of tables."""

    noun: str
    short: str  # the end of the group of its entry points, and its name on the command line
    table: str  # that names the plugin; "" for blocks, which nodes name
    gives: tuple[str, ...]  # the parameters by position, by the names that they usually have
    several: bool = field(default=False, kw_only=True)
    adapt: Callable[[Any], Any] = lambda code: code  # makes what else may be one a class or function
    fault: Callable[[Any], str] = lambda _: ""  # what code lacks of being one, as the end of a sentence
    make: Callable[[Plugin, Given, Options], Any] = lambda plugin, given, options: plugin.code(*given, **options)
    """Returns what a run uses of what the code builds, or refuses it; of (plugin, what is given, options)."""

    @property
    def group(self) -> str:
        return f"petra_graph.{self.short}"


@frozen(kw_only=True)
class Plugin:
    """A class or function as a plugin of a kind, with options once they are read."""

    kind: PluginKind
    name: str
    distribution: str
    code: Any
    schema: type = field(eq=False)  # the attrs class of its options
    folders: Sequence[str] = field(default=(), eq=False)  # where code that options name may lie, too
    options: Any = field(default=None, eq=False)
    path: Path = field(default=(), eq=False)
    recorded_as: str = field(default="", eq=False)  # of a metric, whose values have this name
    seed: int | None = field(default=None, eq=False)  # of the run, for what is drawn in building; None: no seed is set

    def __str__(self) -> str:
        return f"{self.kind.noun} {shown(self.name)}"

    @property
    def label(self) -> str:
        return f"{self.kind.short}/{self.name.rpartition(':')[2]}"

    @property
    def is_first_party(self) -> bool:
        return self.distribution in OWN

    @property
    def owned(self) -> str:
        """The plugin with its distribution, for messages that blame it."""
        return f"{self} of {self.distribution}" if self.distribution else str(self)

    def broken(self, fault: str) -> PluginError:
        return PluginError(f"{self.owned} is broken: {fault}")

    def read(self, table: Mapping[str, Any], path: Path = ()) -> tuple[Plugin, tuple[Problem, ...]]:
        """Return the plugin with its options, the table at a path, or None, and the table's problems."""
        schema, reader = self.schema, Reader()
        if _signature(self.code)[1]:
            further = table.keys() - attrs.fields_dict(schema).keys()
            schema = _options_class(self.code, len(self.kind.gives), tuple(sorted(further)))
        options = reader.read(table, schema)
        found = [evolve(one, message=f"{self}: {one.message}", path=(*path, *one.path)) for one in reader.problems]
        return evolve(self, options=None if found else options, path=path), tuple(found)

    def make(self, *given: Any, stage: StageFacts | None = None) -> Any:
        """Return what `build` returns, and raise whatever the code raises."""
        asked = {STAGE: stage} if stage is not None and asks_for_stage(self.code) else {}
        return self.kind.make(self, given, self._arguments() | asked)

    def build(self, *given: Any, stage: StageFacts | None = None) -> Any:
        """Return what a run uses of what the code builds, of what its kind gives and, if it asks for them, the facts of its stage.

        SpecError: it refuses its options, by ValueError or TypeError. PluginError: it raised anything else, or breaks its contract.
        """
        from petra_graph.blocks.randomness import random_key
        from petra_graph.plugins.generators import seeded

        # What a constructor draws follows from the run's seed and the plugin, in every process.
        drawn = nullcontext() if self.seed is None else seeded(random_key(self.seed, self.label, "built"))
        try:
            with author_code(f"{self.owned} cannot be built", refused=str(self)), drawn:
                return self.make(*given, stage=stage)
        except (SpecError, PluginError) as error:
            if not self.path:
                raise
            # Its path counts from the options; one of no option is at the plugin's name.
            path, name = self.path, (*self.path[:-1], "name")
            found = [
                one if one.where else evolve(one, path=(*path, *one.path) if one.path else name)
                for one in error.problems
            ]
            raise type(error)(found) from error.__cause__ or error

    def ask(self, method: str, *given: Any) -> Any:
        """Call a static method with the options that it takes, and return its value; None if the class has no such method. Errors as of `build`."""
        if (function := getattr(self.code, method, None)) is None:
            return None
        named, takes_further = _signature(function)
        with author_code(f"{self.owned}: {method} failed", refused=str(self)):
            asked = self._arguments().items()
            return plain(function(*given, **{name: one for name, one in asked if takes_further or name in named}))

    def _arguments(self) -> dict[str, Any]:
        """Return the options as the arguments of the code; what is not set is left to the code's own defaults."""
        kind, found = type(self.options), attrs.asdict(self.options, recurse=False)
        found = {name: value for name, value in found.items() if value is not None}
        for name in found.keys() & keys_with(names_code, kind):
            found[name] = CodeName(found[name])
            found[name].folders = self.folders
        return found | {name: FilePath(found[name]) for name in found.keys() & keys_with(FilePath, kind)}


def plugin_of(kind: PluginKind, name: str, code: Any, distribution: str = "", folders: Sequence[str] = ()) -> Plugin:
    """Return a class or function as a plugin; PluginError: it is neither, or cannot be called as its kind asks."""
    fault, parameters = "", list[inspect.Parameter]()
    form = f"a class or function ({', '.join((*kind.gives, '*, ...options'))})"
    try:
        code = kind.adapt(code)
        parameters = list(inspect.signature(code).parameters.values())
    except (TypeError, ValueError):
        fault = f"is {kind_of(code)}, not {form} with a signature"
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    given = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if "options" in names[: len(kind.gives) + 1] or hasattr(code, "Options"):
        fault = "is written for petra-graph 0.2: let options be keyword parameters, as in (self, inputs, *, kernel: int = 3)"
    elif len(given) < len(kind.gives) and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        fault = fault or f"must be {form}; its parameters are ({', '.join(names)})"
    if fault := fault or kind.fault(code):
        raise PluginError(f"{kind.noun} {shown(name)}{f' of {distribution}' * bool(distribution)} {fault}")
    schema = _options_class(code, len(kind.gives))
    return Plugin(kind=kind, name=name, distribution=distribution, code=code, schema=schema, folders=folders)


def asks_for_stage(code: Callable[..., Any]) -> bool:
    """Whether code is given the facts of its stage. A block, which has a kind, is built before there are stages: to it, the name is one of an option."""
    return STAGE in _signature(code)[0] and not hasattr(code, "kind")


def _signature(code: Callable[..., Any], given: int = 0) -> tuple[dict[str, Any], bool]:
    """Return the parameters with names after the given ones, each with the function that has it; and whether code takes others besides.

    A constructor has its own, and those of the bases to which it passes `**options` on.
    """
    functions = [code]
    if isinstance(code, type) and "__signature__" not in vars(code):
        own = [vars(base)["__init__"] for base in code.__mro__ if "__init__" in vars(base) and base is not object]
        functions = own or functions
    found: dict[str, Any] = {}
    for function in functions:
        parameters = list(inspect.signature(function).parameters.values())[functions != [code] :]  # without `self`
        for one in parameters[given:]:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                found.setdefault(one.name, (one, function))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return found, False
    return found, True


@lru_cache(maxsize=1024)
def _options_class(code: Callable[..., Any], given: int, further: tuple[str, ...] = ()) -> type:
    """Return a frozen attrs class of the options, behind the parameters that are given; `**kwargs` takes further ones, which the code checks."""
    fields = dict[str, Any]()
    for name, (parameter, function) in _signature(code, given)[0].items():
        if name == STAGE and asks_for_stage(code):
            continue
        kind: Any = Any if parameter.annotation is parameter.empty else parameter.annotation
        if isinstance(kind, str):  # each by itself, since some names may be there for type checkers alone
            names = getattr(inspect.unwrap(function), "__globals__", None) or vars(sys.modules[function.__module__])
            try:
                kind = eval(kind, names)  # noqa: S307  the author's own code
            except Exception:  # noqa: BLE001  whatever it names
                kind = Any
        default: Any = attrs.NOTHING if parameter.default is parameter.empty else parameter.default
        if default is not attrs.NOTHING and not _in_toml(default):  # it is unset in TOML, and left to the code
            default = None
        default = str(default) if isinstance(default, FilePath) else default
        fields[name] = attrs.field(type=kind, default=default, alias=name)  # attrs would leave out a leading "_"
    fields |= {name: attrs.field(type=Any, default=None) for name in further}
    return attrs.make_class("Options", fields, frozen=True, kw_only=True)


def _in_toml(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(one is not None and _in_toml(one) for one in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _in_toml(item) for key, item in value.items())
    return value is None or isinstance(value, FilePath | bool | int | float | str) or attrs.has(type(value))


def _as_block(code: Any) -> Any:
    """Return a class of blocks as it is; of any other class of modules, and of a function that makes one, the class of blocks that call it."""
    from torch import nn

    from petra_graph.blocks.block_kinds import Block
    from petra_graph.blocks.module_block import block_of

    makes_modules = inspect.isfunction(code) or inspect.ismethod(code)
    if isinstance(code, type):
        makes_modules = issubclass(code, nn.Module) and not issubclass(code, Block)
    return block_of(code) if makes_modules else code


def head_of(plugin: Plugin) -> Plugin:
    """Return the block of a node with `kind = "head"`: where it is any module, what that returns goes to the loss as it is."""
    from petra_graph.blocks.module_block import OfModule, block_of

    of_module = issubclass(plugin.code, OfModule)
    return evolve(plugin, code=block_of(plugin.code.make, head=True)) if of_module else plugin


def _nodes(plugin: Plugin, given: Given, options: Options) -> tuple[NodeSpec, ...]:
    made = tuple(plugin.code(*given, **options))
    if not made or not all(isinstance(node, NodeSpec) for node in made):
        raise plugin.broken("it returns something else than a tuple of NodeSpec")
    return made


def _factor(plugin: Plugin, given: Given, options: Options) -> Callable[[int], float]:
    (horizon,), code = given, plugin.code
    float(code(0, horizon, **options))  # what is wrong with its options is told before the training
    return lambda update: float(code(update, horizon, **options))


def _as_loss(code: Any) -> Any:
    """Return what builds the loss: a class as it is; of a function of output and target one with its options; of an instance, copies."""
    if isinstance(code, type) or not callable(code):
        return code
    is_function = inspect.isroutine(code)
    parameters = list(inspect.signature(code).parameters.values()) if is_function else []
    required = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if is_function and len(required) != _OUTPUT_AND_TARGET:
        return code

    @wraps(code, updated=())  # annotations need its globals
    def build(**options: Any) -> Any:
        return partial(code, **options) if is_function else copy.deepcopy(code)

    build.__signature__ = inspect.Signature(parameters[_OUTPUT_AND_TARGET:])  # type: ignore[attr-defined]
    return build


# fmt: off
BLOCK = PluginKind("block", "blocks", "", ("inputs",), adapt=_as_block, fault=lambda code: (
    "" if isinstance(code, type) and hasattr(code, "kind")
    else "is no class of torch.nn.Module or petra_graph.blocks, and no function that makes a module"))
ARCHITECTURE = PluginKind("architecture", "architectures", "architecture", ("facts",), make=_nodes)
OPTIMIZER = PluginKind("optimizer", "optimizers", "optimizer", ("groups",), make=optimizer_of, fault=lambda code: (
    "" if "lr" in inspect.signature(code).parameters else "has no option `lr`, the base learning rate"))
LR_SCHEDULE = PluginKind("learning-rate schedule", "lr_schedules", "lr_schedule", ("update", "horizon"), make=_factor)
LOSS = PluginKind("loss", "losses", "loss", (), adapt=_as_loss, make=Loss)
METRIC = PluginKind("metric", "metrics", "metric", (), several=True, make=Metric)
DATA_SET = PluginKind("data set", "datasets", "data", (), make=data_of, fault=lambda code: (
    "" if hasattr(code, "facts") else "has no `facts`, a DataFacts of its samples, or a static method that returns it"))
CALLBACK = PluginKind("callback", "callbacks", "callback", (), several=True, fault=lambda code: (
    "" if isinstance(code, type) and issubclass(code, Callback) else "is not a subclass of petra_graph.plugins.Callback"))
# fmt: on
KINDS = (BLOCK, ARCHITECTURE, OPTIMIZER, LR_SCHEDULE, LOSS, METRIC, DATA_SET, CALLBACK)
"""In the order of lists and of the guide."""
