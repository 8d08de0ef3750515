"""A decoder of Hugging Face transformers as nodes, without torch: the embedding, each layer, and the last norm with the head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from petra_graph.plugins import ArchitectureDeclaration, DataFacts, NodeSpec, Problem, SpecError, option
from petra_graph_hf.configuration import CONFIG, configuration_of, problems_of
from petra_graph_hf.names import EMBEDDING, HEAD, LAYERS


@frozen(kw_only=True)
class DecoderOptions:
    """A model by its files, or by its configuration."""

    model: str | None = option(
        "folder with config.json, or a GGUF file; `init.weights` names the weights, which may be the same",
        default=None,
        is_path=True,
    )
    config: Mapping[str, Any] = option(
        'values of transformers\' configuration, over those of the model, as in { model_type = "llama" }', default={}
    )
    tie: Literal["shared", "untied"] = option(
        'embedding and head of a model that ties them: "shared" is one parameter, as in the model, and keeps both in one stage; "untied" gives '
        "each a copy that is trained apart, which is another model",
        default="shared",
    )

    def __attrs_post_init__(self) -> None:
        if self.model is None and not self.config:
            raise ValueError('give model = "FOLDER" or "FILE.gguf", or config')


def decoder(options: DecoderOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a model for such windows of tokens.

    Raises:
        SpecError: the model cannot be read, is of another family, or has other tokens than the data.
    """
    read = {} if options.model is None else configuration_of(options.model)
    values = {**({"model_type": "llama"} if options.model is None else {}), **read, **options.config}
    file = "config" if options.model is None else options.model
    path = ("config",) if options.model is None else ("model",)
    problems = problems_of(values, file, path)
    if not problems:
        problems = _data_problems(values, facts, file)
    if problems:
        raise SpecError(problems)
    tied = bool(values.get("tie_word_embeddings")) and options.tie == "shared"
    piece = {"config": json.dumps({**values, "tie_word_embeddings": tied}, sort_keys=True)}
    return (
        NodeSpec(name=EMBEDDING, block="hf-embedding", options=piece),
        NodeSpec(name=LAYERS, block="hf-layer", repeat=values["num_hidden_layers"], options=piece)
        if values["num_hidden_layers"] > 1
        else NodeSpec(name=f"{LAYERS}.0", block="hf-layer", options=piece),
        NodeSpec(name=HEAD, block="hf-logits", options=piece),
    )


def _data_problems(values: Mapping[str, Any], facts: DataFacts, file: str) -> list[Problem]:
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets of shape {list(facts.target_shape)}"
        message = f"hf-decoder needs samples int64 [tokens] with a target for each token; the data set has {came}"
        return [Problem(message=message, hint='use data set "text-tokens"')]
    found, vocabulary = [], values["vocab_size"]
    if facts.classes is not None and facts.classes > vocabulary:
        message = f"the data set has {facts.classes} tokens, and {file} has vocab_size = {vocabulary}: a tokenizer of another vocabulary"
        found.append(Problem(message=message, hint="set data.options.tokenizer to the model's own", path=("model",)))
    elif (
        facts.classes is not None and facts.classes != vocabulary
    ):  # None: the tokenizer is not there, which a plan does not need
        message = f"the data set has {facts.classes} tokens, and {file} has vocab_size = {vocabulary}"
        hint = f"if the tokenizer is the model's own, set data.options.vocabulary = {vocabulary}: its last vectors belong to no token"
        found.append(Problem(message=message, hint=hint, path=("model",)))
    longest = values.get("max_position_embeddings")
    if isinstance(longest, int) and facts.shape[0] > longest:
        message = f"windows have {facts.shape[0]} tokens, and {file} has max_position_embeddings = {longest}"
        found.append(Problem(message=message, hint=f"set data.options.context to {longest} or less", path=("model",)))
    return found


DECODER = ArchitectureDeclaration(
    summary=f"A decoder of the Llama family, from a folder with {CONFIG} or a GGUF file: a node for each layer.",
    options=DecoderOptions,
    build=f"{__name__}:decoder",
)
