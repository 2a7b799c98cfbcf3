"""Messages to token ids and back, without transformers: the base folder's chat template and its tokenizer.

The ids equal those of `AutoTokenizer.from_pretrained(base).apply_chat_template(messages, tools=tools,
add_generation_prompt=True)` of transformers 5.23, except for messages and tools whose text contains control strings
(`<|im_start|>`): here these stay text, see control_strings.py and plain_tokenizer.py. Calls are given to a template in the form that
it takes, see calls.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import jinja2
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer

from contracts.answers.registry import Family, family_of
from contracts.errors import ContextLengthExceeded, InvalidRequest, InvalidSettings, Unsupported, field_error
from runtime.template import OWN_VARIABLES, calls, files
from runtime.template.control_strings import ControlStrings, MarkedMessages, TemplateTexts, template_texts
from runtime.template.plain_tokenizer import PlainTokenizer, bounded_ids, too_long
from runtime.template.sandbox import make_sandbox

_BRACKETED = re.compile(r"[^\w\s].*\w.*[^\w\s]")
_NOTHING: Mapping[str, Any] = {}
_REASONING = ("reasoning_content", "thinking", "reasoning")
_EFFORT = "reasoning_effort"
_OPENS = "add_generation_prompt"
_MAX_ARGUMENTS = 2**20
"""Characters of arguments that are texts: each is read as JSON. A long context holds more, see `ChatTemplate`."""
_TAIL_TOKENS = 16
_MOST_OF_A_TOKEN = 16
"""Characters for each token of the context. Text has three to five; longer prompts are refused before anything looks into them."""


class Chat(Protocol):
    """What a request says of its prompt."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As templates expect them."""

    @property
    def template_variables(self) -> Mapping[str, bool | int | float | str | None]:
        """See `ChatTemplate.options_of`."""

    @property
    def reasoning_effort(self) -> str | None:
        """See `ChatTemplate.options_of`."""

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """Those that the template renders."""

    @property
    def is_short(self) -> bool:
        """True if it is encoded in no time."""


class ChatTemplate:
    """Template (`source`) and tokenizer of one base policy.

    `context`: the most tokens of prompt and answer together; `takes_tools`: whether it renders tools; `family`: in which form the policy
    writes calls and reasoning.
    """

    def __init__(self, folder: Path) -> None:
        settings = files.read_object(folder, "tokenizer_config.json")
        self.context = files.context_of(files.read_object(folder, "config.json"), folder)
        self.tokenizer = files.tokenizer_of(folder)
        # No token stands for more characters than its own name has; and a text with more for each token would hardly be one.
        longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        self.most_characters = self.context * min(longest, _MOST_OF_A_TOKEN)
        self._special = files.special_tokens(settings)
        self.source, sandbox = files.template_of(folder, settings), make_sandbox()
        try:
            code, literals, variables = _compiled(self.source)
        except Exception as error:  # its constants are computed here: it may divide by zero, or have no end
            raise InvalidSettings(f"{folder}: the chat template is not valid: {_named(error)}") from error
        self._variables = variables - {*sandbox.globals, *files.SPECIAL_TOKENS, *OWN_VARIABLES}
        # jinja2 reads all globals on every render, which is slow with its own chain of dicts.
        self._template = sandbox.template_class.from_code(sandbox, code, dict(sandbox.globals))
        self._knows_developers = "developer" in self.source
        self.takes_tools = calls.takes_tools(self._rendered)
        added = self.tokenizer.get_added_tokens_decoder()
        self.family = family_of(self.source, {token.content: number for number, token in added.items()})
        self._call_form: calls.HistoryForm | None = calls.call_form(self._rendered, tools=self.takes_tools)
        self._rewrites = literals.rewrites
        content = json.loads(self.tokenizer.to_str())
        tokens = content["added_tokens"]
        hard, soft = _control_strings(tokens, literals)
        turns = {text for text in soft if text in self._turn() or text in self._special.values()}
        hard, soft = hard | turns, soft - turns
        self._controls = ControlStrings(hard, soft, literals)
        self._plain_tokenizer = PlainTokenizer(content, hard | soft, self.context)
        self._normalizes = self.tokenizer.normalizer is not None and any(token["normalized"] for token in tokens)

    def options_of(self, given: Mapping[str, Any], effort: str | None) -> Mapping[str, Any]:
        """The variables that a request sets and the template reads: others would change nothing.

        `given`: `chat_template_kwargs`, checked by `check_variables`; `effort`: `reasoning_effort`. Raises InvalidRequest: they differ.
        """
        if effort is not None:
            if given.get(_EFFORT, effort) != effort:
                raise field_error(_EFFORT, f"and chat_template_kwargs.{_EFFORT} differ; send one of them")
            given = {**given, _EFFORT: effort}
        return {name: value for name, value in given.items() if name in self._variables}

    def knows(self, name: str) -> bool:
        """Whether the template has a variable of this name that a request may set."""
        return name in self._variables

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        options: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The prompt as text. Raises InvalidRequest, in the template's words; Unsupported: it ignores tools, or calls in messages."""
        self._check(messages, tools)
        return self._rendered_or_refused(messages, tools, options)

    async def encode_chat(
        self, request: Chat, options: Mapping[str, Any] | None = None, *, opens_answer: bool = True
    ) -> list[int]:
        """The prompt of a chat, without its session. `options`: see `options_of`. Raises what `encode` raises."""
        if options is None:
            options = self.options_of(request.template_variables, request.reasoning_effort)
        encode = partial(self.encode, request.messages, request.offered_tools, options, opens_answer=opens_answer)
        # A thread costs more than encoding a short prompt. A long prompt would delay all other requests.
        return encode() if request.is_short else await asyncio.to_thread(encode)

    def encode_prompt(self, prompt: str | list[int]) -> tuple[list[int], str]:
        """The token ids and the text of a prompt that is taken as it is. Releases the GIL while it encodes.

        Raises InvalidRequest: it has no token, or an unknown id; ContextLengthExceeded: it is longer than the context.
        """
        tokenizer = self.tokenizer
        if isinstance(prompt, str):
            text = self.bounded(prompt, "prompt")
            [encoded] = tokenizer.encode_batch_fast([text], add_special_tokens=True)
            ids = bounded_ids(encoded, self.context, "prompt")
            num = len(ids)
        else:
            ids, num = prompt[: self.context], len(prompt)
            unknown = next((token_id for token_id in ids if tokenizer.id_to_token(token_id) is None), None)
            if unknown is not None:
                raise InvalidRequest(f"prompt: {unknown} is not a token of this policy", param="prompt")
        if num >= self.context:
            raise too_long(num, self.context, "prompt")
        if not ids:
            raise field_error("prompt", "has no token; send at least one")
        if not isinstance(prompt, str):
            [text] = tokenizer.decode_batch([ids], skip_special_tokens=False)
        return ids, text

    def encode(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        options: Mapping[str, Any] = _NOTHING,
        *,
        opens_answer: bool = True,
    ) -> list[int]:
        """The prompt as token ids. Releases the GIL while it encodes. `opens_answer`: it ends with the beginning of an answer.

        All control tokens come from the template: the text of a message or a tool never makes one.

        Raises InvalidRequest, Unsupported: see `render`; ContextLengthExceeded: the text exceeds the context even before
        tokenizing, or by more than the context after.
        """
        self._check(messages, tools)
        self.check_length(messages)
        if not opens_answer:
            options = {**options, _OPENS: False}
        messages = [calls.with_objects(message) for message in messages]
        marked = self._controls.mark(messages, tools, options)
        if marked is not None:
            return self._encode_marked(messages, tools, options, marked)
        text = self.bounded(self._rendered_or_refused(messages, tools, options))
        ids = self._ids(text)
        # A normalizer may turn harmless characters into a control string.
        if self._normalizes and self._plain_tokenizer.num_controls(ids) != len(self._controls.find(text)):
            return self._plain_tokenizer.encode(text, self._controls.find(text), str)
        return ids

    def _encode_marked(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
        marked: MarkedMessages,
    ) -> list[int]:
        text = self.bounded(self._rendered_or_refused(marked.messages, marked.tools, marked.options))
        spans = self._controls.find(text)
        if self._rewrites:  # the template may escape a character, but not its stand-in
            plain = self.bounded(self._rendered_or_refused(messages, tools, options))
            is_harmless = self._controls.strings(plain) == self._controls.strings(text)
        else:
            plain = marked.restore(text)
            is_harmless = self._controls.find(plain) == spans
        if is_harmless:
            ids = self._ids(plain)
            if not self._normalizes or self._plain_tokenizer.num_controls(ids) == len(spans):
                return ids
        return self._plain_tokenizer.encode(text, spans, marked.restore)

    def _check(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> None:
        if not messages:
            raise InvalidRequest("send at least one message", param="messages")
        renders_no = "the chat template of this policy does not render"
        if tools and not self.takes_tools:
            raise Unsupported(f"{renders_no} tools; leave `tools` out, or describe them in a message", param="tools")
        if self._call_form is None and any(message.get("tool_calls") for message in messages):
            raise Unsupported(f"{renders_no} `tool_calls`; write them as content", param="messages")

    def _rendered_or_refused(
        self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], options: Mapping[str, Any]
    ) -> str:
        prepared = [self._prepared(message) for message in messages]
        try:
            return self._rendered(prepared, list(tools) or None, options)
        except calls.REFUSED as error:
            if tools and (completed := calls.complete_tools(tools)) != list(tools):
                with suppress(*calls.REFUSED):  # then the tools are not the reason
                    return self._rendered(prepared, completed, options)
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error

    def _rendered(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, options: Mapping[str, Any] = _NOTHING
    ) -> str:
        variables = {_OPENS: True, **options, **self._special}
        return self._render(messages=messages, tools=tools, documents=None, **variables)

    def _turn(self) -> str:
        """A turn of the user; empty if the template refuses a single turn."""
        try:
            return self._render(messages=[{"role": "user", "content": ""}], tools=None, **self._special)
        except calls.REFUSED:
            return ""

    def _render(self, **variables: Any) -> str:
        """The template's text. Raises TemplateError or TypeError, whatever breaks in it."""
        try:
            return self._template.render(**variables)
        except calls.REFUSED:
            raise
        except Exception as error:  # a program of somebody else: it fails in any way, and each is its own fault
            raise jinja2.TemplateError(_named(error)) from error

    def bounded(self, text: str, param: str = "messages") -> str:
        """The text of a prompt. Raises ContextLengthExceeded if it has more characters than the context holds."""
        self._check_characters(len(text), param)
        return text

    def check_length(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raises ContextLengthExceeded, InvalidRequest: messages, or the arguments of their calls, are too long for anything to look into them."""
        contents = (message.get("content") for message in messages)
        self._check_characters(sum(len(text) for text in contents if isinstance(text, str)), "messages")
        given = (call["function"].get("arguments") for message in messages for call in message.get("tool_calls") or ())
        if sum(len(text) for text in given if isinstance(text, str)) > (most := max(_MAX_ARGUMENTS, 4 * self.context)):
            mib = f"{most // 2**20} MiB in all messages"
            raise InvalidRequest(f"arguments of tool calls take up to {mib}; leave some out", param="messages")

    def _check_characters(self, num: int, param: str) -> None:
        if num > self.most_characters:
            most = f"this policy's context of {self.context} tokens holds at most {self.most_characters}"
            raise ContextLengthExceeded(f"the prompt has {num} characters; {most}", param=param)

    def _ids(self, text: str) -> list[int]:
        return bounded_ids(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0], self.context)

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("role") == "developer" and not self._knows_developers:
            message = {**message, "role": "system"}
        if self._call_form is not None:
            message = self._call_form.prepared(calls.with_objects(message))
        return _with_reasoning(message)


@lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[CodeType, TemplateTexts, frozenset[str]]:
    """The code of a template, its texts and its variables. Compiling a long template takes a tenth of a second."""
    sandbox = make_sandbox()
    parsed = sandbox.parse(source)
    literals, variables = template_texts(parsed), frozenset(node.name for node in parsed.find_all(jinja2.nodes.Name))
    return sandbox.compile(source), literals, variables


def load_template(base: str) -> ChatTemplate:
    """Template and tokenizer of a folder, or of a hub id (downloaded once). Raises InvalidSettings: a file is missing or not valid."""
    folder = Path(base)
    if not folder.is_dir():
        folder = Path(snapshot_download(base, allow_patterns=["*.json", "*.jinja"]))
    return ChatTemplate(folder)


def opens_reasoning(family: Family, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends inside of reasoning: the template opens it there."""
    if family.reasoning is None:
        return False
    tail = str(tokenizer.decode(list(prompt_ids[-_TAIL_TOKENS:]), skip_special_tokens=False))
    return tail.rstrip().endswith(family.reasoning.opener.rstrip())


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _control_strings(tokens: list[dict[str, Any]], literals: TemplateTexts) -> tuple[frozenset[str], frozenset[str]]:
    """Hard and soft control strings: special tokens, and other added tokens that the template uses (`<think>`)."""
    texts = {token["content"]: bool(token["special"]) for token in tokens if token["content"].strip()}
    hard = frozenset(text for text, special in texts.items() if special)
    soft = (text for text in texts if text not in hard and _BRACKETED.fullmatch(text))
    return hard, frozenset(text for text in soft if any(text in literal for literal in literals.said))


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under every name that templates use for it."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
