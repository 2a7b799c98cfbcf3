"""From the log's text to token ids of the policy that learns, as its engine would have seen and sampled them.

An answer of this policy has its exact tokens in the log. All other text goes through the policy's own template and tokenizer, as the endpoint
does it. Nothing that people wrote becomes a control token.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from contracts.errors import ContextLengthExceeded, InvalidRequest
from contracts.records import Experience, Generation, GenerationBody, decode
from pipelines.training.text.edits import NO_TOKENIZER, AnswerTokenizer, text_of
from pipelines.training.text.samples import TextRow
from runtime.template.chat_template import ChatTemplate, opens_reasoning

Ids = tuple[int, ...]
BEYOND_CONTEXT = "beyond_the_context"
_PART = re.compile(
    r"^\[(?:image|image_url|input_image|input_audio|audio|video_url|file|input_file|document)\]$", re.MULTILINE
)
"""What the record of a provider's answer has in the place of a part that is no text."""


class NotRendered(Exception):
    """Text that cannot become tokens; its text is the reason, as reports and the ledger name it."""


class TextRenderer:
    """Of one base policy."""

    def __init__(self, template: ChatTemplate, answers: AnswerTokenizer) -> None:
        self.template, self.answers = template, answers

    def prompt_ids(self, body: GenerationBody) -> Ids:
        """The prompt as this policy's engine would get it. Raises NotRendered."""
        contents = (message.get("content") for message in body.messages)
        if any(_PART.search(text) for text in contents if isinstance(text, str)):
            raise NotRendered("not_text")
        try:
            found = self.template.encode(body.messages, body.tools)
        except InvalidRequest as error:
            is_long = isinstance(error, ContextLengthExceeded)
            raise NotRendered(BEYOND_CONTEXT if is_long else "template_refuses") from error
        family = self.template.family
        # There this policy's answers begin with something else than their text.
        if family.channels is not None or opens_reasoning(family, self.template.tokenizer, found):
            raise NotRendered("reasoning")
        return tuple(found)

    def completion_ids(self, text: str, answer_ids: Ids = ()) -> Ids:
        """A whole answer, see `AnswerTokenizer`. Raises NotRendered."""
        ids, refused = self.answers.completion_ids(text, answer_ids)
        if refused:
            raise NotRendered(refused)
        return ids

    def row_of(self, body: GenerationBody) -> TextRow:
        """Prompt and answer of somebody else's model. Its reasoning is left out. Raises NotRendered."""
        if body.tool_calls:
            raise NotRendered("tool_call")
        completion_ids = self.completion_ids(body.text)
        return TextRow(self.prompt_ids(body), completion_ids, (0.0,) * len(completion_ids))


def with_tokens(
    experience: Experience, answer: bytes | None, renderer: TextRenderer | None, max_length: int
) -> Experience:
    """A provider's answer with the tokens that this policy gives its text, and only text to learn; or with why it teaches nothing.

    Args:
        experience: without a ratio to learn by.
        answer: as the log has it; None: nobody has it any more.
        renderer: None: the base policy has none.
        max_length: the context in tokens, prompt included.
    """
    if (streams := experience.streams) is None or streams.refused:
        return experience
    streams = replace(streams, rl=0.0)

    def refused(reason: str) -> Experience:
        return replace(experience, streams=replace(streams, refused=reason))

    if not streams.edit and streams.is_good is None:
        return refused("provider")
    if renderer is None or answer is None:
        return refused("provider" if renderer else NO_TOKENIZER)
    try:
        row = renderer.row_of(decode(Generation, answer).open())
    except NotRendered as error:
        return refused(str(error))
    if row.num_tokens > max_length:
        return refused(BEYOND_CONTEXT)
    found = replace(experience, segments=row.segments, streams=streams)
    taught = text_of(found, renderer.answers, max_length)
    return found if taught.samples else refused(taught.refused or "provider")
