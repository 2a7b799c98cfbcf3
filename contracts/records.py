"""Records of the log: five types, frozen and versioned; msgpack with a packed head on the wire (`contracts/wire.py`).

    inference ─▶ Generation ─┐
    feedback  ─▶ Signal ─────┴▶ episodes ─▶ Episode ─▶ rewards ─▶ Experience ─▶ training
    every worker that decides a final state ─▶ Outcome ─▶ episodes (the ledger)

A record has a small plain head and, if it contains people's words, a compressed body. Unknown fields are ignored, removed ones are never
reused, and a record with a newer `schema` is refused by name. Times are UTC epoch seconds.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import zstandard
from msgspec.structs import replace

from contracts.draws import LoggedDraw
from contracts.errors import InvalidRecord
from contracts.event_log import LogPlace
from contracts.ids import sample_key
from contracts.packing import compressed, decompressed
from contracts.record_checks import problem_of, tokens_problem
from contracts.sampling import ExpertShape, Sampling, Span
from contracts.turns import SessionShare, SessionTurn
from contracts.wire import SCHEMA, check_schema, packed, unpacked

Purpose = Literal["user", "rollout", "sentinel", "shadow", "imported"]
SIGNALLED: frozenset[Purpose] = frozenset(("user", "imported"))
"""Purposes whose answers people judge: the join waits for signals about them, and rewards names why one has no reward."""
FinishReason = Literal["stop", "length", "cancelled", "error"]
Fault = Literal["none", "model", "infra", "user"]
ScoreStatus = Literal["scored", "unlabelled", "unscored"]
State = Literal[
    "trained", "unlabelled", "filtered", "unscored", "stale", "off_support", "quarantined", "cancelled", "erased",
    "late", "epoch_started", "pending",
]  # fmt: skip
Scalar = bool | int | float | str


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all records: the schema number comes first, and is written although it is a default."""

    schema: int = msgspec.field(default_factory=lambda: SCHEMA)


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The text and tokens of an answer. Packed arrays are little-endian: ids int32 [T], log-probs float32 [T]."""

    messages: list[dict[str, Any]]
    text: str
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """The tools that the request offered, in OpenAI's form, as the template rendered them."""
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    tool_calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """What was parsed from the answer, in OpenAI's form; `text` is the rest."""
    reasoning: str = ""
    """What the model wrote as reasoning; not part of `text`."""
    experts: bytes = b""
    """Chosen experts [tokens, layers, chosen], packed by `pack_experts`; empty if none were recorded."""
    expert_shape: ExpertShape | None = None
    support: bytes = b""
    """The tokens that each token was drawn from, packed by `pack_support`; empty unless sampling was truncated and all are known."""

    @property
    def text_with_calls(self) -> str:
        """What graders read, for every family: the text, then calls as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
        calls = [
            f'<tool_call>{{"name": {msgspec.json.encode(function["name"]).decode()}, "arguments": {function["arguments"]}}}</tool_call>'
            for function in (call["function"] for call in self.tool_calls)
        ]
        return "\n".join([*([self.text] if self.text or not calls else []), *calls])


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a client that counts its retries. `request`: a hash of the body, keyed with the caller's secret."""

    request: str
    count: int


class Provided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of an answer that a model of somebody else wrote. It has text and no token ids, log-probs or versions: no ratio trains on it."""

    origin: str
    """The provider that answered (`openai`), or the system that logged it (`langfuse`)."""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    """US dollars; None: not known."""
    may_train: bool = False
    """True if the provider's terms let other models learn from its text."""
    is_partial: bool = False
    """True if it was told more than the log has: an earlier response, or an image."""
    import_id: str = ""
    """The import that logged it; empty: it was answered here."""


class Generation(Record, frozen=True, kw_only=True):
    """One choice of one completion, with full provenance. Key: (completion id, choice)."""

    completion_id: str
    choice: int
    tenant: str
    policy: str
    task: str
    task_hash: str
    purpose: Purpose
    arm: str
    arm_probability: float
    draw: LoggedDraw | None = None
    spans: tuple[Span, ...]
    sampling: Sampling
    finish_reason: FinishReason
    created_at: float
    finished_at: float
    engine: str
    dtype: str
    session_id: str | None = None
    turn: SessionTurn | None = None
    """Its place in its session; None without a session."""
    join_key: str | None = None
    """The app's own name for this answer. Signals can refer to it."""
    ask_probability: float = 0.0
    """Probability with which the app was told to ask for feedback on it; 0 if its task has no [asking]."""
    person: str | None = None
    attempt: Attempt | None = None
    """None: the client does not count retries, or sent an `Idempotency-Key`."""
    num_choices: int = 0
    """Of the completion. Choices without tokens have no record, unless their arm was drawn and failed. 0: logged by an older release."""
    key_id: str | None = None
    """Id of the key that seals the body; None: not sealed."""
    seal: Literal["none"] = "none"
    provided: Provided | None = None
    """None: an engine of this home answered."""
    body: bytes
    """Last, so that the wire form can leave it out of the packed head."""

    @property
    def key(self) -> str:
        """The sample key."""
        return sample_key(self.completion_id, self.choice)

    def open(self) -> GenerationBody:
        """Decompress the body."""
        return open_body(GenerationBody, self.body)


class Submitter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who sent a signal."""

    id: str
    kind: Literal["user", "judge", "code", "operator"] = "user"


class Signal(Record, frozen=True, kw_only=True):
    """One reaction of a user to one choice. `id` is the idempotency key; a retraction is a second record with `retracted` set."""

    id: str
    completion_id: str
    choice: int
    name: str
    value: Scalar
    correction: str | None = None
    at: float
    received_at: float
    tenant: str
    submitter: Submitter
    comment: str | None = None
    metadata: dict[str, str] | None = None
    """For people who read it later. Comment and metadata never affect a reward."""
    key_id: str | None = None
    """Id of the key that seals the texts; None: not sealed."""
    retracted: bool = False
    share: SessionShare | None = None
    """Of a signal about a session: the call's part in it."""

    @property
    def key(self) -> str:
        """The sample key of the generation it is about."""
        return sample_key(self.completion_id, self.choice)


class Episode(Record, frozen=True, kw_only=True):
    """Turns and the signals about them. Key: the first turn's sample key; later evidence raises `revision`."""

    key: str
    revision: int
    reason: Literal["decisive", "window", "session_end"]
    turns: tuple[Generation, ...] = ()
    """Empty if `source` says where the answer is. Episodes of earlier releases carry the whole answer here."""
    source: LogPlace | None = None
    purpose: Purpose = "user"
    signals: tuple[Signal, ...]
    closed_at: float
    provisional: bool = False
    """True while the window of a slower signal is still open."""
    off_line: bool = False
    """True if nobody spoke of it, and it does not lead to its session's last answer: no signal about the session reaches it."""


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One component of a reward. `value` is None unless `status` is scored."""

    name: str
    grader: str
    """Kind and version of the verifier, judge or signal mapping, and the task hash: `json_exact/1#ab12`."""
    value: float | None
    weight: float = 1.0
    status: ScoreStatus = "scored"
    fault: Fault = "none"
    reason: str = ""
    propensity: float = 1.0
    """Probability that this grader was asked. If a draw leaves out some samples, the others count 1 / propensity."""
    seconds: float = 0.0


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A run of tokens: ids int32 [T], loss mask uint8 [T], behaviour log-probs float32 [T] (0 where masked)."""

    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    spans: tuple[Span, ...]
    """Starts count completion tokens: positions where the loss mask is 1."""
    sampling: Sampling
    experts: bytes = b""
    """As in `GenerationBody`: replayed by the trainer, so that it computes what the engine computed."""
    expert_shape: ExpertShape | None = None
    support: bytes = b""
    """As in `GenerationBody`, for the positions where the loss mask is 1."""

    @property
    def off_support(self) -> str:
        """Why the trainer cannot reproduce the distribution sampled from; empty if it can."""
        return self.sampling.off_support or ("truncated" if self.sampling.is_truncated and not self.support else "")


class Streams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer teaches besides its reward: the weights of its task's [learning], and what there is to learn."""

    rl: float = 1.0
    ce: float = 0.0
    pair: float = 0.0
    thumb: float = 0.0
    edit: str = ""
    """The whole text that a user made of the answer; empty: none that can be learned."""
    refused: str = ""
    """Why the text of an edit, or a provider's answer, is not learned."""
    is_good: bool | None = None
    """What users said of an answer that nobody edited; None: nothing."""


class Experience(Record, frozen=True, kw_only=True):
    """A scored episode, ready for training. `reward` None: there is nothing to learn, see `status`."""

    key: str
    revision: int
    policy: str
    task: str
    task_hash: str
    tenant: str
    purpose: Purpose
    baseline_key: str
    segments: tuple[Segment, ...] = ()
    """On the wire: empty if `source` says where the answer is. The trainer takes its tokens from there."""
    source: LogPlace | None = None
    scores: tuple[Score, ...]
    reward: float | None
    weight: float = 1.0
    share: SessionShare | None = None
    """Of a call whose session was judged as a whole. `weight` contains its credit."""
    streams: Streams | None = None
    """None: its reward alone teaches."""
    status: ScoreStatus
    fault: Fault = "none"
    scored_at: float
    generated_at: float = 0.0
    """This, engine and dtype stand in the answer, if `source` says where it is."""
    engine: str = ""
    dtype: str = ""
    origin: str = ""
    """Of an answer that no engine of this home gave, as in `Provided`. It stands in the answer too."""


class Also(msgspec.Struct, frozen=True, array_like=True):
    """One more sample with the same outcome."""

    key: str
    revision: int
    sequence: int


class Outcome(Record, frozen=True, kw_only=True):
    """The final state of one revision of one sample. Idempotent by (key, revision, epoch, state).

    The trainer numbers its decisions: `sequence` rises along a chain of epochs, so that the next epoch can say how much of this
    one it kept. 0: from an older release, or from another writer.
    """

    key: str
    revision: int
    epoch: int
    state: State
    reason: str = ""
    version: int | None = None
    """The first policy version whose weights contain the sample, if trained."""
    writer: Literal["episodes", "rewards", "training"]
    at: float
    sequence: int = 0
    previous: int | None = None
    """Of `epoch_started`: the epoch of the checkpoint from which it continues; None: it keeps no earlier outcome."""
    kept_sequence: int = -1
    """Of `epoch_started`: the last sequence of `previous` in this checkpoint; later outcomes are void."""
    also: tuple[Also, ...] = ()
    """More samples of the same partition with the same epoch, state, reason and version, so that one record reports many."""

    def each(self) -> list[Outcome]:
        """One outcome for every sample of this record."""
        alone = replace(self, also=()) if self.also else self
        return [alone, *(replace(alone, key=it.key, revision=it.revision, sequence=it.sequence) for it in self.also)]


RecordType = TypeVar("RecordType", bound=Record)
BodyType = TypeVar("BodyType")

MAX_BODY_BYTES = 64 * 2**20
"""Of a decompressed body: eight times what a service accepts, so that no logged body is refused."""


def encode(record: Record) -> bytes:
    """The wire form of a record."""
    plain = msgspec.msgpack.encode(record)
    return packed(plain, len(record.body) if isinstance(record, Generation) else 0)


def decode(kind: type[RecordType], wire: bytes) -> RecordType:
    """Read a record from the log, and check its values (`contracts/record_checks.py`). Raises as `decode_shape`, which names the field."""
    record = decode_shape(kind, wire)
    if problem := problem_of(record):
        raise InvalidRecord(f"not a {kind.__name__} that can be processed: {problem}")
    return record


def decode_shape(kind: type[RecordType], wire: bytes) -> RecordType:
    """Decode without checking values, as for our own tables. Raises NewerSchema; InvalidRecord: another type of record."""
    try:
        record = msgspec.msgpack.decode(unpacked(kind.__name__, wire), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"not a {kind.__name__}: {error}") from error
    check_schema(kind.__name__, record.schema)
    return record


def pack_body(body: msgspec.Struct) -> bytes:
    """Compress a body, with a checksum that detects bits that a disk changed."""
    return compressed(msgspec.msgpack.encode(body))


def open_body(kind: type[BodyType], packed: bytes) -> BodyType:
    """Invert `pack_body`. Raises InvalidRecord: the bytes are damaged, or would not fit in memory."""
    try:
        body = msgspec.msgpack.decode(decompressed(packed, MAX_BODY_BYTES), type=kind)
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"damaged {kind.__name__}: {error}") from error
    if isinstance(body, GenerationBody) and (problem := tokens_problem(body)):
        raise InvalidRecord(f"damaged {kind.__name__}: {problem}")
    return body


def pack_ids(ids: list[int]) -> bytes:
    """Token ids as little-endian int32."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """Invert `pack_ids`."""
    return [int(value) for value in np.frombuffer(packed, dtype="<i4")]


def pack_floats(values: list[float]) -> bytes:
    """Log-probs as little-endian float32."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(packed: bytes) -> list[float]:
    """Invert `pack_floats`."""
    return [float(value) for value in np.frombuffer(packed, dtype="<f4")]
