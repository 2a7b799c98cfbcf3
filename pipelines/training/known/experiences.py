"""What experiences and their keys say about themselves: versions, prompt, session, tokens, time. Pure."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from contracts.packing import experts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from contracts.records import Experience, Segment
    from pipelines.training.known.lineage import VersionTree
    from policy.routing import Routing

_PREFIX, _ID_BYTES = "chatcmpl-", 16
_OTHER = b"\xff"
"""Starts keys that are not of completions. A completion id starts with the time, which reaches this byte in the year 10,889."""


class Segmented(Protocol):
    """An experience, or a row of text: what micro-batches are made of."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its rows."""


def is_learnable(experience: Experience) -> bool:
    """True if there is a reward to learn from. For other samples, the process that gave none reports the outcome."""
    return experience.status == "scored" and experience.reward is not None and experience.fault != "infra"


def worth(experience: Experience) -> float:
    """Weight x reward: applied when the sample is trained, and compared with later revisions."""
    return experience.weight * (experience.reward or 0.0)


def newest_version(experience: Experience) -> int:
    """The version that generated the newest token; -1 if no token has a version."""
    return max((span.version for segment in experience.segments for span in segment.spans), default=-1)


def first_version(experience: Experience) -> int:
    """The version that generated the first token; -1 if no version of this policy did."""
    spans = experience.segments[0].spans
    return spans[0].version if spans else -1


def single_version(experience: Experience) -> int | None:
    """The version that generated every token, or None if there are several."""
    versions = {span.version for segment in experience.segments for span in segment.spans}
    return versions.pop() if len(versions) == 1 else None


def version_lag(experience: Experience, tree: VersionTree) -> int:
    """How many versions lie between the current weights and the farthest of those that made its tokens.

    Raises KeyError: one of them was never cut.
    """
    return max(tree.distance(span.version) for segment in experience.segments for span in segment.spans)


def is_old(experience: Experience, tree: VersionTree, most: int) -> bool:
    """True if one of its versions is more than `most` versions away. It never raises: what is broken is refused elsewhere."""
    versions = {span.version for segment in experience.segments for span in segment.spans}
    return any(tree.exists(version) and tree.distance(version) > most for version in versions)


def prompt_of(experience: Experience) -> bytes:
    """The packed token ids before the first sampled token: equal bytes mean the same prompt."""
    segment = experience.segments[0]
    return segment.token_ids[: 4 * segment.loss_mask.index(1)]


def episode_of(experience: Experience) -> str:
    """Calls of a session that was judged as a whole have the same one; any other sample is an episode of its own."""
    share = experience.share
    return experience.key if share is None else f"{experience.tenant}\0{experience.task}\0{share.session}"


def group_of(experience: Experience) -> str:
    """Sessions that try the same thing have the same one; empty: in no group."""
    share = experience.share
    return f"{experience.tenant}\0{experience.task}\0{share.group}" if share is not None and share.group else ""


def weights_once(experiences: Sequence[Experience]) -> list[float]:
    """The weight of each in what counts a session once: its calls, without their credit, share one."""
    calls = Counter(episode_of(item) for item in experiences)
    return [
        item.weight if item.share is None else item.weight / item.share.credit / calls[episode_of(item)]
        for item in experiences
    ]


def num_tokens(experiences: Sequence[Segmented]) -> int:
    """Sampled tokens: the loss's denominator, fixed before anything is masked out."""
    return sum(segment.loss_mask.count(1) for experience in experiences for segment in experience.segments)


def pack_key(key: str) -> bytes:
    """A sample key in few bytes, in the order of the completions' times."""
    text, _, choice = key.rpartition(":")
    if text.startswith(_PREFIX) and choice.isdecimal() and str(int(choice)) == choice:
        with suppress(ValueError):
            found = bytes.fromhex(text[len(_PREFIX) :].replace("-", ""))
            if len(found) == _ID_BYTES and _completion(found) == text and found[:1] != _OTHER:
                return found + choice.encode()
    return _OTHER + key.encode("utf-8", "surrogatepass")


def unpack_key(packed: bytes) -> str:
    """Invert `pack_key`."""
    if packed[:1] == _OTHER:
        return packed[1:].decode("utf-8", "surrogatepass")
    return f"{_completion(packed[:_ID_BYTES])}:{packed[_ID_BYTES:].decode()}"


def _completion(found: bytes) -> str:
    text = found.hex()  # `uuid.UUID` would take five times as long
    return f"{_PREFIX}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def generated_at(key: str) -> float | None:
    """When the completion of a sample key began, UTC epoch seconds; None if the key does not say."""
    packed = pack_key(key)
    return None if packed[:1] == _OTHER else int.from_bytes(packed[:6], "big") / 1000


def recorded_experts(segment: Segment, routing: Routing) -> np.ndarray | None:
    """The engine's choices [tokens - 1, M, K] as this model takes them; None if there are none, or others than it can make."""
    shape = segment.expert_shape
    return None if shape is None else routing.choices(experts_of(segment.experts, shape))


def row_lengths(experiences: Sequence[Segmented]) -> list[int]:
    """Tokens of each row."""
    return [len(segment.token_ids) // 4 for item in experiences for segment in item.segments]
