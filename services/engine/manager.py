"""transformers' continuous batching, set up the one way we use it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.continuous_api import OutputRouter

from services.engine.sampling import Limits
from services.engine.settings import EngineSettings

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)


class Router(OutputRouter):  # type: ignore[misc] # transformers is untyped
    """Takes a manager's outputs on its generation thread, before the next step begins.

    The manager's own handlers run later, on an event loop, when the weights may already be others.
    """

    def __init__(self, receive: Callable[[list[Any]], None]) -> None:
        super().__init__()
        self._receive = receive

    def deliver(self, output: Any) -> None:
        """One output; also the way failures come."""
        self._receive([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        """All outputs of a step."""
        self._receive(outputs)


def build_manager(model: Any, settings: EngineSettings, receive: Callable[[list[Any]], None]) -> Any:
    """A manager over a model, not yet started; outputs go to `receive` on its generation thread."""
    # Per-request sampling exists only for processors that the default configuration makes necessary.
    defaults = GenerationConfig(do_sample=True, temperature=0.9, top_k=1, top_p=0.9, eos_token_id=-1)
    config = ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.cache_tokens // settings.page_size,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=min(settings.max_in_flight, settings.max_batch_tokens),
        allow_block_sharing=False,  # a prefix computed by one version must never serve another
        use_async_batching=False,  # a step in flight over a swap would be labelled with the wrong version
        return_logprobs=True,
        per_request_processors=True,
        auto_switch_to_flash=False,  # would look for kernels on the network
    )
    manager = model.init_continuous_batching(generation_config=defaults, continuous_batching_config=config)
    manager.output_router = Router(receive)
    return manager


def limits_of(model: Any, settings: EngineSettings) -> Limits:
    """What requests to this model may hold."""
    context = min(model.config.max_position_embeddings, settings.cache_tokens)
    return Limits(vocab_size=model.config.vocab_size, context=context)


def end_ids(model: Any) -> frozenset[int]:
    """The token ids that end an answer of this model, from its generation configuration."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)
