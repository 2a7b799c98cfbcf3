"""Prints the memory of a trainer over a model of 17 million weights, in bytes beyond the bare process."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from tests.in_memory import folder_in_memory
from tests.unit.pipelines.training.builders import a_learner, bits_now, random_experience

_PROCESS = psutil.Process()


def _bytes() -> int:
    """Without the pages of files, such as torch's code: a process that was forked reads them when it comes to them."""
    held = _PROCESS.memory_info()
    return int(held.rss - held.shared)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """The most bytes inside of the block, looked at all the time."""
    most, ended = [_bytes()], threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            most[0] = max(most[0], _bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def main() -> None:
    torch.set_num_threads(1)
    bare = _bytes()
    config = LlamaConfig(
        vocab_size=704, hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    learner = a_learner(
        LlamaForCausalLM(config).eval(), TrainingSettings(divergence_bound=math.inf, step_bound=math.inf)
    )
    random = np.random.default_rng(0)
    batch = [random_experience(random, reward=float(number % 2)) for number in range(8)]
    for _ in range(2):
        learner.step(batch, [1.0] * len(batch), {0: None})
    versions = [bits_now(learner) for _ in range(2)]  # as the publisher holds them
    resident = _bytes() - bare
    with folder_in_memory() as folder, _peak() as most:
        CheckpointStore(folder, 2).save(learner.capture(TrainerState(), 1))
    num_weights = sum(tensor.data.size // 2 for tensor in versions[0].values())
    print(json.dumps({"num_weights": num_weights, "resident": resident, "peak": most[0] - bare}))  # noqa: T201 its purpose


if __name__ == "__main__":
    main()
