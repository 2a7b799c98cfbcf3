"""A product whose outcomes come days late: which of them the trainer learns, and what it then believes. No model, no database.

The policy is a table: for each of KEYS baseline keys, a distribution over STYLES ways to answer that drifts with every version. A style
earns 1 with a fixed probability. An answer has a random number of tokens, of which the first says the style. Intake, refusals, draws,
trackers, divergence and fates are the trainer's own. Rules as they were until November 2026 are written out in `Before`.
"""

from __future__ import annotations

import heapq
import math
import uuid
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from contracts.event_log import LogRecord
from contracts.ids import sample_key
from contracts.records import Experience, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.topics import EXPERIENCES
from pipelines.training.known.experiences import first_version, is_old, version_lag
from pipelines.training.known.lineage import VersionTree
from pipelines.training.learning.guard import has_left, log_ratios
from pipelines.training.learning.trackers import BetaTracker
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.refusals import TrainingLimits, refuse
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import Fate, TrainerState

KEYS, STYLES, VOCABULARY = 4, 6, 64
VERSION_SECONDS, MEAN_DELAY_SECONDS, WINDOW_SECONDS = 2 * 3600.0, 2 * 86400.0, 21 * 86400.0
START = 1.8e9


class Before:
    """The rules until November 2026: stale beyond 8 versions or 7 days, weights halved per 8 versions and per day."""

    @staticmethod
    def is_stale(lag: int, age: float) -> bool:
        """True if the sample was dropped."""
        return lag > 8 or age > 7 * 86400.0

    @staticmethod
    def freshness(lag: int, age: float) -> float:
        """What was left of a sample's weight."""
        return math.exp2(-lag / 8 - age / 86400.0)


@dataclass
class Policy:
    """The table. `log_probs[v]` [KEYS, STYLES] and `earns` [KEYS, STYLES]."""

    log_probs: list[np.ndarray]
    earns: np.ndarray

    def mean(self, version: int, key: int) -> float:
        """What answers of a version really earn."""
        return float((np.exp(self.log_probs[version][key]) * self.earns[key]).sum())


@dataclass
class LateTally:
    """What became of the outcomes."""

    num: int = 0
    reward: float = 0.0
    num_inside: int = 0
    """Outcomes that today's policy has not left when they come."""
    reward_inside: float = 0.0
    weight_learned: float = 0.0
    reward_learned: float = 0.0
    fates: Counter[str] = field(default_factory=Counter)
    baseline_errors: list[float] = field(default_factory=list)
    old_shares: list[float] = field(default_factory=list)
    """The share of each full batch that was old."""

    def figures(self) -> dict[str, object]:
        """For the report. Shares of outcomes inside the bound; `learned_mean` counts what was not learned as nothing."""
        inside = max(self.num_inside, 1)
        return {
            "outcomes": self.num,
            "true_mean": round(self.reward_inside / inside, 4),
            "effective_weight_learned": round(self.weight_learned / inside, 4),
            "learned_mean": round(self.reward_learned / inside, 4),
            "mean_of_learned": round(self.reward_learned / self.weight_learned, 4) if self.weight_learned else None,
            "baseline_error": round(float(np.mean(np.abs(self.baseline_errors))), 4),
            "old_share_of_full_batches_max": round(max(self.old_shares, default=0.0), 4),
            "fates": dict(self.fates),
        }


def drifting_policy(random: np.random.Generator, versions: int, speed: float) -> Policy:
    """A random walk of the logits that slowly climbs, so that the mean reward rises through .56."""
    earns = random.beta(1.2, 1.0, (KEYS, STYLES))
    logits, found = random.normal(0.0, 0.5, (KEYS, STYLES)), []
    for _ in range(versions):
        found.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
        logits = logits + speed * (0.2 * (earns - earns.mean()) + random.normal(0.0, 1.0, logits.shape))
    return Policy(found, earns)


def simulate(
    days: float, *, per_version: int = 128, seed: int = 0, speed: float = 0.06, before: bool = False
) -> LateTally:
    """Generate for `days`, then wait until every outcome within its window has come."""
    random = np.random.default_rng(seed)
    num_versions = int(days * 86400.0 / VERSION_SECONDS)
    # After the last answer, versions go on while rewards still come.
    policy = drifting_policy(random, num_versions + int(WINDOW_SECONDS / VERSION_SECONDS) + 1, speed)
    _centre(policy, num_versions, 0.56)
    world = _LateProduct(policy, random, before=before)
    for version in range(len(policy.log_probs)):
        if version < num_versions:
            world.answer(version, per_version)
        world.learn(version)
    return world.tally


def _centre(policy: Policy, num_versions: int, mean: float) -> None:
    for _ in range(4):  # clipping moves the mean again, less each time
        now = np.mean([policy.mean(version, key) for version in range(num_versions) for key in range(KEYS)])
        policy.earns = np.clip(policy.earns + mean - now, 0.0, 1.0)


class _LateProduct:
    def __init__(self, policy: Policy, random: np.random.Generator, *, before: bool) -> None:
        self.policy, self.random, self.before = policy, random, before
        self.settings = TrainingSettings(reward_low=0.0, reward_high=1.0)
        self.state = TrainerState()
        self.intake, self.tracker, self.tally = Intake(self.state), BetaTracker(), LateTally()
        self.pending: list[tuple[float, int, Experience]] = []
        self.offset = 0
        self.limits = TrainingLimits(
            max_length=64, vocabulary_size=VOCABULARY, policy="p", horizon_seconds=WINDOW_SECONDS + 7 * 86400.0
        )

    def answer(self, version: int, count: int) -> None:
        """Answers of one version, and when their outcomes will come."""
        for number in range(count):
            key = int(self.random.integers(KEYS))
            style = int(self.random.choice(STYLES, p=np.exp(self.policy.log_probs[version][key])))
            at = START + (version + number / count) * VERSION_SECONDS
            length = int(self.random.integers(2, 24))
            item = self._experience(version, key, style, length, at)
            delay = float(self.random.exponential(MEAN_DELAY_SECONDS))
            heapq.heappush(self.pending, (at + delay, self.offset + len(self.pending), item))

    def _experience(self, version: int, key: int, style: int, length: int, at: float) -> Experience:
        reward = float(self.random.random() < self.policy.earns[key, style])
        rest = self.random.uniform(-1.0, 0.0, length - 1).tolist()
        segment = Segment(
            token_ids=pack_ids([key, style, *[STYLES] * (length - 1)]),
            loss_mask=bytes([0] + [1] * length),
            logprobs=pack_floats([0.0, float(self.policy.log_probs[version][key, style]), *rest]),
            spans=(Span(0, version),),
            sampling=Sampling(temperature=1.0, max_tokens=32),
        )
        identity = uuid.UUID(int=int(at * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | int(self.random.integers(2**60)))
        return Experience(
            key=sample_key(f"chatcmpl-{identity}", 0), revision=0, policy="p", task="t", task_hash="", tenant="",
            purpose="user", baseline_key=str(key), segments=(segment,), scores=(), reward=reward, status="scored",
            generated_at=at, scored_at=at, engine="table", dtype="float64",
        )  # fmt: skip

    def learn(self, version: int) -> None:
        """Everything that comes while this version is the newest."""
        tree = VersionTree(tuple(range(version, -1, -1)))
        until = START + (version + 1) * VERSION_SECONDS
        while self.pending and self.pending[0][0] < until:
            now, _, item = heapq.heappop(self.pending)
            self._come(item, now, tree)
        while len(self.intake):
            self._step(tree, until)

    def _come(self, item: Experience, now: float, tree: VersionTree) -> None:
        self.offset += 1
        record = LogRecord(EXPERIENCES, 0, self.offset, item.key, b"", now)
        self.intake.passed(record)
        self.intake.offer(record, item, now)
        inside = not has_left(self._ratios([item], tree), np.array([1.0]), self.settings.divergence_bound)[0]
        self.tally.num += 1
        self.tally.reward += item.reward or 0.0
        self.tally.num_inside += bool(inside)
        self.tally.reward_inside += (item.reward or 0.0) * bool(inside)
        refusal = refuse(item, tree, self.limits, now)
        if refusal is not None:
            self._decide(item, Fate(0, refusal.state, refusal.reason))
        elif self.before and Before.is_stale(version_lag(item, tree), now - item.generated_at):
            self._decide(item, Fate(0, "stale", "version_lag or age"))

    def _step(self, tree: VersionTree, now: float) -> None:
        size, most = self.settings.batch_size, self.settings.old_versions
        batch = list(
            self.intake.draw(size, (lambda _: False) if self.before else lambda item: is_old(item, tree, most)).samples
        )
        if len(batch) == size:
            self.tally.old_shares.append(sum(is_old(item, tree, most) for item in batch) / size)
        values = np.array([(item.reward or 0.0) - self._expect(item, tree) for item in batch])
        far = has_left(self._ratios(batch, tree), values, self.settings.divergence_bound)
        kept = [item for item, left in zip(batch, far, strict=True) if self.before or not left]
        for item in kept:
            truth = self.policy.mean(first_version(item), int(item.baseline_key))
            self.tally.baseline_errors.append(self._expect(item, tree) - truth)
        for item in kept:
            lag, age = version_lag(item, tree), now - item.generated_at
            weight = Before.freshness(lag, age) if self.before else 1.0
            self.tally.weight_learned += weight
            self.tally.reward_learned += weight * (item.reward or 0.0)
            self.tracker.update(item.baseline_key, 0 if self.before else first_version(item), item.reward or 0.0)
            self._decide(item, Fate.trained(item, 1.0))
        for item in batch:
            if item not in kept:
                self._decide(item, Fate(0, "stale", "divergence"))

    def _expect(self, item: Experience, tree: VersionTree) -> float:  # noqa: ARG002 as the other measures
        return self.tracker.expect(item.baseline_key, 0 if self.before else first_version(item))

    def _ratios(self, items: list[Experience], tree: VersionTree) -> np.ndarray:
        now = self.policy.log_probs[tree.lineage[0]]
        current = []
        for item in items:
            ids = np.frombuffer(item.segments[0].token_ids, "<i4")
            logged = np.frombuffer(item.segments[0].logprobs, "<f4")
            current.append(float(now[ids[0], ids[1]]) + float(logged[2:].sum(dtype=np.float64)))
        return log_ratios(items, current)

    def _decide(self, item: Experience, fate: Fate) -> None:
        self.tally.fates[f"{fate.state}({fate.reason})" if fate.reason else fate.state] += 1
        self.intake.decide(item.key, fate)
