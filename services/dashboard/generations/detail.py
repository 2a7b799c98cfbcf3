"""What the page of one answer shows: its history, its messages, and its tokens as texts, without torch.

The tokenizer of the base policy is loaded when the first answer is shown; the rest is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer

from contracts.errors import InvalidRecord
from contracts.ledger import AnswerRecord
from contracts.records import Signal, decode_shape
from contracts.sampling import Span
from services.dashboard.formatting import figure, version

EDITED = 200
MAX_TOKENS = 4000
INCOMPLETE = "\ufffd"
LIMITS = (0.9, 0.5, 0.2, 0.05)
"""Probabilities that separate the shades of tokens: shade 0 from the first one up, and so on; the last shade is below all."""

log = structlog.get_logger()
Decode = Callable[[Sequence[int]], str]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `detail` holds words of people or models: text, never markup."""

    at: float
    kind: str
    title: str
    state: str = ""
    detail: str = ""
    note: str = ""
    delay: float | None = None
    """Seconds since the answer."""


class PromptMessage(msgspec.Struct, frozen=True):
    """One message of the prompt."""

    role: str
    content: str


class AnswerToken(NamedTuple):
    """One token of an answer. `shade` None: there is no log-prob."""

    place: int
    id: int
    text: str
    logprob: float | None
    shade: int | None
    version: int | None

    @property
    def probability(self) -> float | None:
        """In [0, 1]."""
        return None if self.logprob is None else math.exp(min(0.0, self.logprob))

    @property
    def visible(self) -> str:
        """The text, with visible marks for line ends and unfinished characters."""
        return self.text.replace("\n", "↵\n") or "◌"


class TokenTexts:
    """Turns token ids of one base into texts."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._tokenizer: Tokenizer | None = None
        self.problem = ""
        """Why there are no texts; empty if there are."""

    def texts(self, ids: Sequence[int]) -> list[str] | None:
        """One text for each of the first `MAX_TOKENS` ids; None if the tokenizer cannot be loaded."""
        if self._tokenizer is None:
            try:
                folder = Path(self._base)
                path = folder / "tokenizer.json" if folder.is_dir() else hf_hub_download(self._base, "tokenizer.json")
                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # noqa: BLE001 `tokenizers` raises bare Exception, the hub a dozen kinds
                self.problem = f"the tokenizer of {self._base} cannot be loaded: {error}"
                log.warning("no tokenizer", base=self._base, reason=str(error))
                return None
        tokenizer, self.problem = self._tokenizer, ""
        return pieces(ids[:MAX_TOKENS], lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))


def story(answer: AnswerRecord) -> list[Event]:
    """Answer, join, signals, scores and outcomes, oldest first."""
    created = answer.head.created_at
    made = f"{answer.head.purpose} request, arm {answer.head.arm}, {version(answer.head.version)}"
    events = [
        Event(at=created, kind="answer", title="answered", note=made),
        Event(at=answer.head.joined_at, kind="join", title="joined", note="episodes knows the answer"),
        *(_signal(row) for row in answer.signals),
        *(_score(row) for row in answer.scores),
        *(_outcome(row) for row in answer.outcomes),
    ]
    events.sort(key=lambda event: event.at)
    return [msgspec.structs.replace(event, delay=max(0.0, event.at - created)) for event in events]


def messages(raw: list[dict[str, Any]]) -> list[PromptMessage]:
    """Role and text of each message; content parts and tool calls as JSON."""
    shown = []
    for message in raw:
        content = message.get("content")
        rest = {name: value for name, value in message.items() if name not in {"role", "content"} and value}
        texts = [content if isinstance(content, str) else _json(content)] if content is not None else []
        texts += [_json(rest)] if rest else []
        shown.append(PromptMessage(str(message.get("role", "?")), "\n".join(texts)))
    return shown


def excerpt(raw: list[dict[str, Any]], length: int = EDITED) -> str:
    """The last message of the user, shortened to fit a row."""
    said = [message.content for message in messages(raw) if message.role == "user"]
    return cut(said[-1], length) if said else ""


def cut(text: str, length: int = EDITED) -> str:
    """At most `length` characters of a text, on one line."""
    flat = " ".join(text[: 4 * length].split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def said(wire: bytes, length: int = 60) -> str:
    """The value of a signal and the beginning of its comment, on one line."""
    return cut(_said(wire)[0], length)


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """What each token adds to the text. If a character needs several tokens, the last one adds it.

    Each token is decoded together with the piece before it, because the first token of a text can lose its space.
    """
    texts: list[str] = []
    before, start = 0, 0
    for place in range(len(ids)):
        known, longer = decode(ids[before:start]), decode(ids[before : place + 1])
        if longer.endswith(INCOMPLETE) and place + 1 < len(ids) and place - start < 4:  # noqa: PLR2004 bytes in a character
            texts.append("")
            continue
        texts.append(longer[len(known) :])
        before, start = start, place + 1
    return texts


def tokens(
    ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[Span], texts: Sequence[str] | None
) -> list[AnswerToken]:
    """The first `MAX_TOKENS` tokens of an answer; without texts, the ids are shown instead."""
    shown = []
    for place, number in enumerate(ids[:MAX_TOKENS]):
        logprob = logprobs[place] if place < len(logprobs) else None
        made_by = [span.version for span in spans if span.start <= place]
        text = texts[place] if texts is not None else f" {number}"
        shown.append(AnswerToken(place, number, text, logprob, shade(logprob), made_by[-1] if made_by else None))
    return shown


def shade(logprob: float | None) -> int | None:
    """The shade of a token, see `LIMITS`; None without a log-prob."""
    if logprob is None or math.isnan(logprob):
        return None
    probability = math.exp(min(0.0, logprob))
    return next((place for place, limit in enumerate(LIMITS) if probability >= limit), len(LIMITS))


def _signal(row: Any) -> Event:
    text, kind = _said(row.record)
    late = f"learned as revision {row.revision}" if row.revision is not None else ""
    note = " · ".join(filter(None, [f"by {row.submitter}{kind}", row.reason, late, f"id {row.id}"]))
    return Event(at=row.received_at, kind="signal", title=row.name, state=row.state, detail=text, note=note)


def _said(wire: bytes) -> tuple[str, str]:
    try:
        record = decode_shape(Signal, wire)
    except InvalidRecord as error:
        return error.message, ""
    parts = [record.value if isinstance(record.value, str) else _json(record.value)]
    parts += [f"correction: {record.correction}"] if record.correction else []
    parts += [f"comment: {record.comment}"] if record.comment else []
    parts += [f"metadata: {_json(record.metadata)}"] if record.metadata else []
    return "\n".join(parts), f" ({record.submitter.kind})"


def _score(row: Any) -> Event:
    reward = "no reward" if row.reward is None else f"reward {figure(row.reward)}"
    fault = f" · fault: {row.fault}" if row.fault != "none" else ""
    return Event(at=row.at, kind="score", title=reward, state=row.status, note=f"revision {row.revision}{fault}")


def _outcome(row: Any) -> Event:
    learned = f"first in {version(row.version)}" if row.version is not None else ""
    void = "" if row.is_valid else "taken back with its epoch"
    notes = [learned, void, row.reason, f"revision {row.revision}", f"epoch {row.epoch}", f"written by {row.writer}"]
    return Event(at=row.at, kind="outcome", title="outcome", state=row.state, note=" · ".join(filter(None, notes)))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
