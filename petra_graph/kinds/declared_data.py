"""What the declaration of a data set says of some options, before the data set is opened."""

from __future__ import annotations

from typing import Any, cast

from petra_graph.errors import SpecError
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.data_facts import DataFacts, facts_fault
from petra_graph.kinds.data_set import DataSetDeclaration, TextCodec
from petra_graph.kinds.declaration import described
from petra_graph.kinds.plugin import Plugin
from petra_graph.spec.value_types import plain


def declared_facts(plugin: Plugin, options: Any) -> DataFacts:
    """Return the facts that a data set's declaration gives.

    Raises:
        PluginError: its function failed, or did not return facts that samples could have.
    """
    declaration = cast(DataSetDeclaration, plugin.declaration)
    with author_code(f"{plugin.owned} cannot say what its samples are"):
        facts = declaration.facts(options)
    if fault := facts_fault(facts):
        raise plugin.broken(f"the facts of its declaration {fault}")
    return facts


def completed_options(plugin: Plugin, options: Any) -> Any:
    """Return a data set's options, where what only its files tell is filled in.

    Raises:
        SpecError: files are missing; paths count from the options.
        PluginError: its function failed, or did not return such options.
    """
    return _changed_options(plugin, options, "completed", "complete its options")


def suggested_options(plugin: Plugin, options: Any) -> Any:
    """Return a data set's options as its files suggest them; errors as of `completed_options`."""
    return _changed_options(plugin, options, "suggested", "suggest options")


def _changed_options(plugin: Plugin, options: Any, name: str, act: str) -> Any:
    change = getattr(plugin.declaration, name)
    if change is None:
        return options
    with author_code(f"{plugin.owned} cannot {act}"):
        found = change(options)
    if not isinstance(found, type(options)):
        raise plugin.broken(f"`{name}` of its declaration returns {described(found)}, not its options")
    return found


def codec_of(plugin: Plugin, options: Any, facts: DataFacts) -> TextCodec:
    """Return the codec of a data set's text; `facts` are those of the opened data set.

    Raises:
        SpecError: its samples are not text.
        PluginError: its function failed.
    """
    location = cast(DataSetDeclaration, plugin.declaration).codec
    if location is None:
        raise SpecError(
            f"{plugin} is not text: it does not say how a text becomes tokens",
            "use a run of a network that was trained on text",
        )
    make = resolve_location(location, f"{plugin.owned} cannot read text")
    with author_code(f"{plugin.owned} cannot read text"):
        codec: TextCodec = make(options, facts)
    return codec


def declared_samples(plugin: Plugin, options: Any) -> int | None:
    """Return the number of training samples that a data set's declaration gives; None where it does not say.

    Raises:
        PluginError: its function failed, or did not return a number.
    """
    count = cast(DataSetDeclaration, plugin.declaration).training_samples
    if count is None:
        return None
    with author_code(f"{plugin.owned} cannot say how many samples it has"):
        found = plain(count(options))
    if found is not None and (not isinstance(found, int) or found < 0):
        raise plugin.broken(
            f"`training_samples` of its declaration returns {described(found)}, not a number of samples"
        )
    return found
