"""Records as a busy product leaves them on the log: answers of about sixty tokens, signals about most of them, some twice.

Whoever says nothing has been silent for longer than the window, so that a run need not wait for windows to pass.
"""

from __future__ import annotations

import random
import time

from contracts.event_log import Message
from contracts.ids import new_completion_id
from contracts.records import Generation, GenerationBody, Signal, Submitter, pack_body, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.topics import GENERATIONS, SIGNALS
from runtime.log.outbox import message
from tests.worlds.paths import EXAMPLE

TASK_FILE = EXAMPLE / "task.toml"
TASK = "reservations"
WINDOW_SECONDS = 3600.0
NUM_TOKENS, _VOCABULARY = 60, 32_000
_SIGNAL_SHARE, _SECOND_SHARE, _AGAIN_SHARE = 0.6, 0.4, 0.02
_SPREAD = 300
"""How many places a record may arrive too early or too late."""


def task_text() -> str:
    """The demo's task, with a window that no run outlasts."""
    return TASK_FILE.read_text().replace("window_seconds = 10", f"window_seconds = {WINDOW_SECONDS}")


def a_feed(num_generations: int, seed: int = 0, num_tokens: int = NUM_TOKENS) -> list[Message]:
    """Generations and signals in mixed order, signals sometimes first, one in fifty records twice."""
    chance = random.Random(seed)
    placed: list[tuple[float, Message]] = []
    for number in range(num_generations):
        place = float(number * 2)
        speaks = chance.random() < _SIGNAL_SHARE
        about = a_generation(chance, time.time() - (0 if speaks else 2 * WINDOW_SECONDS), num_tokens)
        records: list[tuple[str, Generation | Signal]] = [(GENERATIONS, about)]
        if speaks:
            records.append((SIGNALS, _signal(chance, about, "accepted")))
            if chance.random() < _SECOND_SHARE:
                records.append((SIGNALS, _signal(chance, about, "edited")))
        for topic, record in records:
            item = message(topic, record.key, record)
            times = 2 if chance.random() < _AGAIN_SHARE else 1
            placed += [(place + chance.random() * _SPREAD, item) for _ in range(times)]
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def a_generation(chance: random.Random, finished_at: float, num_tokens: int = NUM_TOKENS) -> Generation:
    """A finished answer with tokens, log-probs and words; a third of the tokens is the answer's."""
    num_completion = num_tokens // 3
    party, hour = chance.randint(1, 20), chance.randint(10, 23)
    body = GenerationBody(
        messages=[
            {"role": "system", "content": "Turn the request into a booking. Answer with one JSON object."},
            {"role": "user", "content": f"a table for {party} at {hour} o'clock, the name is {chance.getrandbits(40)}"},
        ],
        text=f'{{"party":{party},"time":"{hour}:00","name":"Guest {chance.getrandbits(20)}"}}',
        prompt_ids=pack_ids([chance.randrange(_VOCABULARY) for _ in range(num_tokens - num_completion)]),
        completion_ids=pack_ids([chance.randrange(_VOCABULARY) for _ in range(num_completion)]),
        logprobs=pack_floats([-chance.random() for _ in range(num_completion)]),
    )
    return Generation(
        completion_id=new_completion_id(),
        choice=0,
        tenant="default",
        policy=TASK,
        task=TASK,
        task_hash="0" * 12,
        purpose="user",
        arm="live",
        arm_probability=1.0,
        spans=(Span(0, 3),),
        sampling=Sampling(temperature=1.0, max_tokens=32),
        finish_reason="stop",
        created_at=finished_at - 1.0,
        finished_at=finished_at,
        engine="millrace/1",
        dtype="bfloat16",
        body=pack_body(body),
    )


def _signal(chance: random.Random, about: Generation, name: str) -> Signal:
    value = "more people" if name == "edited" else chance.random() < 0.5
    return Signal(
        id=f"fb_{chance.getrandbits(96):024x}",
        completion_id=about.completion_id,
        choice=about.choice,
        name=name,
        value=value,
        correction='{"party":4,"time":"20:00","name":"Guest"}' if name == "edited" else None,
        at=about.finished_at + 1.0,
        received_at=about.finished_at + 2.0,
        tenant=about.tenant,
        submitter=Submitter(id=f"user-{chance.randrange(1000)}"),
    )
