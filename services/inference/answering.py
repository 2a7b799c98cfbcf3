"""How one request is answered: how it is sampled, how long the answer may be, what limits its tokens, and how it is read. Pure.

Tools are refused where the policy's family is not known. A call is forced (by a grammar) if `tool_choice` requires
one. A response format holds for the content: reasoning comes before it, and a call may stand in its place. Otherwise nothing limits
the tokens, so that the answer can be trained on: the calls of a `strict` tool are checked afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from contracts.answers.grammar import ANY_OBJECT, spaced
from contracts.draws import is_exploring
from contracts.errors import ContextLengthExceeded, Unsupported
from contracts.records import Purpose
from contracts.sampling import Constraint, Sampling
from contracts.tasks import SamplingRule
from runtime.template.chat_template import ChatTemplate, opens_reasoning
from runtime.template.plain_tokenizer import too_long
from services.inference.requests import ChatRequest
from services.inference.terms import Terms
from services.inference.tools.forcing import answer_grammar
from services.inference.tools.parser import AnswerParser, PlainParser, parser_maker, schemas_of


class Answering(NamedTuple):
    """See the module. The `constraint` of the sampling says what the grammar is for.

    `grammar`: as vLLM's `structured_outputs`; None: nothing limits the tokens. `new_parser` makes the parser of a choice.
    """

    sampling: Sampling
    grammar: Mapping[str, Any] | None
    new_parser: Callable[[], AnswerParser]


def decide_answering(
    request: ChatRequest, terms: Terms, template: ChatTemplate, prompt_ids: Sequence[int], completion_id: str
) -> Answering:
    """Decide for a request with this prompt. Raises ContextLengthExceeded; Unsupported: calls cannot be told from text; InvalidSchema."""
    rule, family, tokenizer = terms.task.sampling, template.family, template.tokenizer
    sampling = decide_sampling(request, rule, terms.purpose, len(prompt_ids), template.context)
    sampling = explored(sampling, rule, terms.purpose, completion_id)
    if request.prompt is not None:
        return Answering(sampling, None, partial(PlainParser, tokenizer))
    choice, tools, wanted = request.tool_choice, request.offered_tools, request.response_format
    if tools and not family.reads_calls:
        why = "the form in which this policy writes calls is not known, so its calls would stay text"
        raise Unsupported(f"{why}; leave `tools` out, or describe them in a message", param="tools")
    callable_ = [tool for tool in tools if choice.names is None or tool["function"]["name"] in choice.names]
    schemas, is_required = schemas_of(callable_), choice.mode == "required"
    content = None if wanted is None or is_required else wanted.schema or ANY_OBJECT
    is_forced = is_required or bool(schemas and content is not None)
    parallel = request.parallel_tool_calls is not False
    grammar: Mapping[str, Any] | None = None
    if is_forced or (content is not None and family.reads_reasoning):
        text = answer_grammar(
            family,
            schemas,
            is_required=is_required,
            parallel=parallel,
            in_reasoning=opens_reasoning(family, tokenizer, prompt_ids),
            content=content,
            max_tokens=sampling.max_tokens,
        )
        grammar = {"grammar": text}
    elif content is not None:
        grammar = {"json": spaced(content)}
    constraint: Constraint = "tool" if is_required else "" if wanted is None else wanted.kind
    if constraint:
        sampling = msgspec.structs.replace(sampling, constraint=constraint)
    parsers = parser_maker(family, tokenizer, prompt_ids, callable_, parallel=parallel, is_forced=is_forced)
    return Answering(sampling, grammar, parsers)


def decide_sampling(
    request: ChatRequest, rule: SamplingRule, purpose: Purpose, num_prompt: int, context: int
) -> Sampling:
    """The sampling parameters: the task's if it owns them and a user asks, else the caller's.

    If the task owns them, a user's seed, biases and penalties are ignored like the temperature: an app that always sends the same seed would
    always get the same answer, and biased samples could not be trained on. The response says which parameters were used. Any caller may ask
    for a shorter answer than the task allows. An answer is cut to what the context leaves, unless a caller who owns the parameters asked for
    a length. Raises ContextLengthExceeded: the prompt, or the prompt with the requested length, does not fit.
    """
    room = context - num_prompt
    if room < 1:
        raise too_long(num_prompt, context, "messages")
    if rule.owner == "task" and purpose == "user":
        longest = rule.max_tokens if request.longest is None else min(rule.max_tokens, request.longest)
        return Sampling(temperature=rule.temperature, top_p=rule.top_p, max_tokens=min(longest, room))
    if request.longest is not None and request.longest > room:
        param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        both = f"{num_prompt} prompt tokens and an answer of {request.longest}"
        raise ContextLengthExceeded(f"{both} exceed this policy's context of {context}", param=param)
    return Sampling(
        temperature=rule.temperature if request.temperature is None else request.temperature,
        top_p=rule.top_p if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        min_p=request.min_p or 0.0,
        max_tokens=request.longest or min(rule.max_tokens, room),
        seed=request.seed,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=request.logit_bias,
    )


def explored(sampling: Sampling, rule: SamplingRule, purpose: Purpose, completion_id: str) -> Sampling:
    """The sampling of one completion: of users' answers, the task's share explores at its temperature."""
    explore = rule.explore
    if explore is None or purpose != "user" or not is_exploring(completion_id, explore.share):
        return sampling
    return msgspec.structs.replace(sampling, temperature=explore.temperature)
