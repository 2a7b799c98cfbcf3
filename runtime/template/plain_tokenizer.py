"""A copy of a tokenizer that knows the control tokens by secret names only: a control string is plain text to it.

All else is the same, so text beside a control token is split exactly as beside the real one. The names never leave the process.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from contracts.errors import ContextLengthExceeded, InvalidRequest

_Content = dict[str, Any]
_LISTED = 2**18
"""Tokens of which the ids are listed, however small the context is."""


class PlainTokenizer:
    """See the module. `content`: of tokenizer.json; `controls`: each is an added token; `context`: see `bounded_ids`."""

    def __init__(self, content: _Content, controls: Collection[str], context: int = 2**20) -> None:
        self._context = context
        secret = secrets.token_hex(8)
        self._names = {text: f"\ufdee{secret}:{place}\ufdef" for place, text in enumerate(sorted(controls))}
        self._tokenizer = Tokenizer.from_str(json.dumps(_renamed(content, self._names), ensure_ascii=False))
        ids = {token["content"]: token["id"] for token in content["added_tokens"]}
        found = {self._tokenizer.token_to_id(self._names.get(text, text)): own for text, own in ids.items()}
        self._own_ids = {ours: own for ours, own in found.items() if ours != own}
        # Not the unknown token: ordinary text with unknown characters makes it too.
        self._control_ids = frozenset(ids[text] for text in controls) - {ids.get(_unknown(content["model"]))}

    def encode(self, text: str, spans: Sequence[tuple[int, int]], restore: Callable[[str], str]) -> list[int]:
        """Token ids of a text in which only `spans` are control tokens; `restore` is applied to the rest.

        Raises InvalidRequest: the result has other control tokens, because of the text around a control string;
        ContextLengthExceeded: see `bounded_ids`.
        """
        parts, end = list[str](), 0
        for start, stop in spans:
            parts += [restore(text[end:start]), self._names[text[start:stop]]]
            end = stop
        parts.append(restore(text[end:]))
        encoded = self._tokenizer.encode_batch_fast(["".join(parts)], add_special_tokens=False)[0]
        ids = bounded_ids(encoded, self._context)
        own = [self._own_ids.get(number, number) for number in ids] if self._own_ids else ids
        if self.num_controls(own) != len(spans):
            why = "the messages contain control strings that this policy's tokenizer cannot tell from its own; leave them out"
            raise InvalidRequest(why, param="messages")
        return own

    def num_controls(self, ids: Sequence[int]) -> int:
        """The number of control tokens among these ids."""
        return sum(number in self._control_ids for number in ids)


def bounded_ids(encoded: Encoding, context: int, param: str = "messages") -> list[int]:
    """The ids of a prompt. One that is a little too long still has them, for those who count.

    Raises ContextLengthExceeded: it has far more tokens than the context. To list millions of ids would hold every other request.
    """
    if len(encoded) > max(2 * context, _LISTED):
        raise too_long(len(encoded), context, param)
    return list(encoded.ids)


def too_long(num: int, context: int, param: str) -> ContextLengthExceeded:
    """The error for a prompt with so many tokens."""
    told = f"the prompt has {num} tokens; this policy's context is {context}, answer included"
    return ContextLengthExceeded(told, param=param)


def _unknown(model: _Content) -> str:
    """The unknown token; empty if the tokenizer has none."""
    if isinstance(model.get("unk_id"), int):
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token") or ""


def _renamed(content: _Content, names: dict[str, str]) -> _Content:
    model = dict(content["model"])
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {names.get(text, text): number for text, number in model["vocab"].items()}
    elif "vocab" in model:
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _has_control(merge, names)]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    added = [{**token, "content": names.get(token["content"], token["content"])} for token in content["added_tokens"]]
    off = dict.fromkeys(("post_processor", "truncation", "padding"))
    return {**content, "model": model, "added_tokens": added, **off}


def _has_control(merge: str | list[str], names: dict[str, str]) -> bool:
    """Whether a merge has a control string as a part or as its result."""
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first in names or second in names or first + second in names
