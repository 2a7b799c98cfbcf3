"""Probe answers: what the trainer computes behind fixed prompts with an adapter, for engines to compare with before they serve it.

In: log-probs of the base and of a version, whose adapter is beside the base and not merged into it: both round otherwise. Out: a signed
object beside the versions, named by the root of the version. Waits for: the store. Readers of versions pass it by.

Whether a version may be served is not decided here, but by its manifest. Whoever can write to the store can remove answers, so answers that
are forged, damaged or of a retired key count as none: else they would stop a version that is trusted.

<root>/<policy>/probes/<root of the version>.json
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from contracts.errors import WeightsRefused
from weights.stores.store import WeightStore
from weights.versions.layout import policy_folder
from weights.versions.manifest import parse_struct
from weights.versions.signing import Keyring, Signer, signed_bytes

NUM_TOP = 8
"""Tokens behind each prompt."""
_NUM_PROMPTS, _PROMPT_TOKENS = 8, 12
_MOST_BYTES = 2**16

Scores = list[dict[int, float]]
"""Behind each prompt, the likeliest tokens with their log-probs at temperature 1."""


class ProbeAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Of one version. JSON."""

    root: str = ""
    """Of the version; empty until it is published."""
    dtype: Literal["float32", "bfloat16"]
    """In which the trainer computed."""
    prompts: list[list[int]]
    base: Scores
    adapted: Scores
    key: str | None = None
    signature: str | None = None
    """Ed25519 over everything but itself and the policy, hex."""


def probe_prompts(num_ids: int) -> list[list[int]]:
    """The same token ids of a vocabulary each time."""
    drawn = np.random.default_rng(0).integers(0, num_ids, (_NUM_PROMPTS, _PROMPT_TOKENS))
    return [[int(token) for token in prompt] for prompt in drawn]


def write_probe(store: WeightStore, policy: str, answers: ProbeAnswers, signer: Signer | None) -> None:
    """Write the answers of a published version, or replace them. Raises Unavailable, InvalidSettings."""
    signed = answers if signer is None else signer.sign(answers, _kind(policy))
    store.write_small(_path(policy, answers.root), msgspec.json.encode(signed))


def read_probe(store: WeightStore, policy: str, root: str, keyring: Keyring | None) -> ProbeAnswers | None:
    """The answers of the version with this root; None: there are none that can be used, and the store's `on_junk` is told why.

    `keyring` None: any signature is accepted. Raises Unavailable: the store is away.
    """
    path = _path(policy, root)
    try:
        text = store.read_small(path, _MOST_BYTES)
        return None if text is None else _believed(text, policy, root, keyring)
    except WeightsRefused as error:
        store.on_junk(path, error)
        return None


def _believed(text: bytes, policy: str, root: str, keyring: Keyring | None) -> ProbeAnswers:
    answers = parse_struct(text, ProbeAnswers, "corrupt_probe", "probe")
    if keyring is not None:
        message = signed_bytes(answers, _kind(policy))
        keyring.verify_bytes(answers.key, answers.signature, message, name=f"the probe of {policy}, {root}")
    if answers.root != root:
        raise WeightsRefused("corrupt_probe", f"the store has a probe of {answers.root} in the place of {root}")
    parts = [*answers.prompts, *answers.base, *answers.adapted]
    if not (len(answers.prompts) == len(answers.base) == len(answers.adapted) > 0 and all(parts)):
        raise WeightsRefused("corrupt_probe", f"the probe of {root} lacks answers")
    return answers


def _path(policy: str, root: str) -> str:
    return f"{policy_folder(policy)}/probes/{root}.json"


def _kind(policy: str) -> str:
    """A probe does not name its policy, but its signature covers it."""
    return f"probe\n{policy}"
