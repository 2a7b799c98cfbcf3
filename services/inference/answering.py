"""How the answers of one request are read, and what limits their tokens. Pure.

Tools are refused where the policy's family is not known. A call is forced (by a grammar) if `tool_choice` requires
one. A response format holds for the content: reasoning comes before it, and a call may stand in its place. Otherwise nothing limits
the tokens, so that the answer can be trained on: the calls of a `strict` tool are checked afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from contracts.answers.grammar import ANY_OBJECT, spaced
from contracts.answers.registry import Family
from contracts.errors import Unsupported
from contracts.sampling import Constraint
from services.inference.requests import ChatRequest
from services.inference.tools.forcing import answer_grammar
from services.inference.tools.parser import ParserMaker, opens_reasoning, schemas_of


class Answering(NamedTuple):
    """See the module.

    Attributes:
        new_parser: makes the parser of a choice.
        grammar: as vLLM's `structured_outputs`; None: nothing limits the tokens.
        constraint: what the grammar is for, as it is logged.
    """

    new_parser: ParserMaker
    grammar: Mapping[str, Any] | None
    constraint: Constraint


def decide_answering(
    request: ChatRequest, family: Family, tokenizer: Tokenizer, prompt_ids: Sequence[int], max_tokens: int
) -> Answering:
    """Decide for a request whose answer takes up to `max_tokens`.

    Raises:
        Unsupported: there are tools, and calls of this policy cannot be told from text.
        InvalidSchema: the schema of a strict tool has a keyword that is not checked.
    """
    choice, tools = request.tool_choice, request.offered_tools
    if tools and not family.reads_calls:
        raise Unsupported(
            "the form in which this policy writes calls is not known, so its calls would stay text; leave `tools` out, or "
            "describe them in a message",
            param="tools",
        )
    callable_ = [tool for tool in tools if choice.names is None or tool["function"]["name"] in choice.names]
    is_required = choice.mode == "required"
    parallel = request.parallel_tool_calls is not False
    grammar: Mapping[str, Any] | None = None
    constraint: Constraint = ""
    is_forced = False
    wanted = request.response_format
    schemas = schemas_of(callable_)
    content = None if wanted is None or is_required else wanted.schema or ANY_OBJECT
    if is_required or (schemas and content is not None):
        in_reasoning = opens_reasoning(family, tokenizer, prompt_ids)
        text = answer_grammar(
            family,
            schemas,
            is_required=is_required,
            parallel=parallel,
            in_reasoning=in_reasoning,
            content=content,
            max_tokens=max_tokens,
        )
        grammar, is_forced = {"grammar": text}, True
        constraint = "tool" if wanted is None or is_required else wanted.kind
    elif wanted is not None and content is not None:
        constraint = wanted.kind
        if family.reads_reasoning:
            in_reasoning = opens_reasoning(family, tokenizer, prompt_ids)
            text = answer_grammar(family, {}, in_reasoning=in_reasoning, content=content, max_tokens=max_tokens)
            grammar = {"grammar": text}
        else:
            grammar = {"json": spaced(content)}
    parsers = ParserMaker(family, tokenizer, prompt_ids, callable_, parallel=parallel, is_forced=is_forced)
    return Answering(parsers, grammar, constraint)
