"""A tokenizer.json, read by the library `tokenizers`: its size, its tokens as bytes; and one made of a GGUF file's metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from petra_graph.errors import suggestion
from petra_graph.plugins import Problem, SpecError
from petra_graph_hf.configuration import open_gguf

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
_PATH = ("tokenizer",)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
"""A space in the tokens of SentencePiece."""


def file_of(name: str) -> Path:
    """Return the file that an option names, itself or by its folder.

    Raises:
        SpecError: the file is missing.
    """
    path = Path(name).expanduser()
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        hint = "give the tokenizer.json of the model; `petra-graph-hf tokenizer FILE.gguf` writes that of a GGUF file"
        raise SpecError(Problem(message=f"there is no file {file}", hint=hint, path=_PATH))
    return file


def tokenizer_of(name: str) -> Tokenizer:
    """Open a tokenizer.json.

    Raises:
        SpecError: the file is missing, or cannot be read.
    """
    from tokenizers import Tokenizer

    file = file_of(name)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises no narrower class
        hint = "give the tokenizer.json of the model, as transformers saves it"
        raise SpecError(Problem(message=f"{file} is no tokenizer: {error}", hint=hint, path=_PATH)) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def vocabulary_of(name: str) -> int:
    """Return the number of tokens: one more than the largest, since a vocabulary may have gaps.

    Raises:
        SpecError: as `tokenizer_of`; or it has fewer than two.
    """
    file = file_of(name)
    largest = max(tokenizer_of(name).get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < 1:
        raise SpecError(Problem(message=f"{file} has fewer than two tokens", hint="give another one", path=_PATH))
    return largest + 1


def end_token(name: str, token: str) -> int:
    """Return the number of the token `end_of_text`.

    Raises:
        SpecError: as `tokenizer_of`; or there is no such token.
    """
    tokenizer = tokenizer_of(name)
    found = tokenizer.token_to_id(token)
    if found is None:
        known = [str(one.content) for one in tokenizer.get_added_tokens_decoder().values()]
        message = f"{file_of(name)} has no token {token!r}"
        raise SpecError(Problem(message=message, hint=suggestion(token, known), path=("end_of_text",)))
    return int(found)


def bytes_of_tokens(name: str) -> list[int]:
    """Return how many bytes of text each token is, by its number; 0 for numbers without a token.

    A token of a byte-level tokenizer is written in an alphabet with one character a byte; other tokenizers write characters, a
    space as U+2581, and single bytes as <0x0A>.

    Raises:
        SpecError: as `tokenizer_of`; or tokens are neither.
    """
    tokenizer = tokenizer_of(name)
    decoder = str(json.loads(tokenizer.to_str()).get("decoder"))
    byte_level = "ByteLevel" in decoder
    if not byte_level and _SPACE not in decoder:
        hint = "use perplexity, or a model with byte-level or SentencePiece tokens"
        message = f"{file_of(name)} does not say how many bytes a token is"
        raise SpecError(Problem(message=message, hint=hint, path=_PATH))
    added = {number: str(token.content) for number, token in tokenizer.get_added_tokens_decoder().items()}
    sizes = [0] * vocabulary_of(name)
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added:
            sizes[number] = len(added[number].encode())
        elif byte_level:
            sizes[number] = len(token)
        else:
            sizes[number] = 1 if _BYTE.fullmatch(token) else len(token.replace(_SPACE, " ").encode())
    return sizes


_PRE_TOKENIZERS = ("gpt-2", "smollm")
"""What llama.cpp calls them: GPT-2's split of words, and the same with digits one by one."""
_CONTROL, _OWN = 3, 4
"""Types of tokens in GGUF: those that are no text, and those that a user added."""


def of_gguf(path: Path) -> Tokenizer:
    """Return the byte-level tokenizer that a GGUF file's metadata describe.

    Raises:
        SpecError: the file cannot be read, or they describe another kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    opened = open_gguf(path)
    kind, split, tokens, merges, types = (
        opened.value(f"tokenizer.ggml.{key}") for key in ("model", "pre", "tokens", "merges", "token_type")
    )
    split = split or "gpt-2"
    if kind != "gpt2" or split not in _PRE_TOKENIZERS or not tokens or merges is None:
        message = (
            f"{path} has a tokenizer of the kind {kind!r} with the split {split!r}; known: 'gpt2' with "
            f"{', '.join(map(repr, _PRE_TOKENIZERS))}"
        )
        raise SpecError(message, "use the tokenizer.json of the model's original folder")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of_words])
        if split == "smollm"
        else bytes_of_words
    )
    tokenizer.decoder = decoders.ByteLevel()
    for kinds, add in ((_CONTROL, tokenizer.add_special_tokens), (_OWN, tokenizer.add_tokens)):
        add(
            [
                AddedToken(t, special=kinds == _CONTROL, normalized=False)
                for t, one in zip(tokens, types or (), strict=False)
                if one == kinds
            ]
        )
    return tokenizer
