"""transformers' continuous batching, configured for this engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.continuous_api import OutputRouter

from services.engine.min_p import MinP
from services.engine.sampling import ModelLimits
from services.engine.seeded import SeededSampling
from services.engine.settings import EngineSettings

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)


class Router(OutputRouter):  # type: ignore[misc] # transformers is untyped
    """Takes a manager's outputs on its generation thread, before the next step begins.

    The manager's own handlers run later, on an event loop, when the weights may have changed already.
    """

    def __init__(self, receive: Callable[[list[Any]], None]) -> None:
        super().__init__()
        self._receive = receive

    def deliver(self, output: Any) -> None:
        """Take one output; failures come this way too."""
        self._receive([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Take all outputs of a step."""
        self._receive(outputs)


class IdleFilter(ContinuousBatchingLogitsProcessor):  # type: ignore[misc] # transformers is untyped
    """A filter that is skipped in steps in which all requests have it off: each filter sorts the whole vocabulary."""

    def __init__(self, wrapped: Any, off: dict[str, float]) -> None:
        self.supported_kwargs, self.ignored_kwargs = wrapped.supported_kwargs, wrapped.ignored_kwargs
        self._wrapped = wrapped
        self._off = {name: off[name] for name in wrapped.supported_kwargs}
        self._is_idle = False

    def fill_defaults(self, int32_tensor: Any) -> None:
        """See the wrapped filter."""
        self._wrapped.fill_defaults(int32_tensor)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Any:
        """The values of the next step's requests [B]. They are still on the host, so reading them waits for no device."""
        given = [request.state.logit_processor_kwargs for request in requests_with_new_token]
        self._is_idle = all(values.get(name) == off for values in given for name, off in self._off.items())
        return self._wrapped.prepare_tensor_args(requests_with_new_token)

    def __call__(self, scores: Any, tensor_arg: Any) -> Any:
        """Logits [B, V], filtered."""
        return scores if self._is_idle else self._wrapped(scores, tensor_arg)


def build_manager(model: Any, settings: EngineSettings, receive: Callable[[list[Any]], None]) -> Any:
    """A manager over a model, not started yet; outputs go to `receive` on its generation thread."""
    # A processor exists only if the default configuration needs it, so the defaults use all of them.
    defaults = GenerationConfig(do_sample=True, temperature=0.9, top_k=1, top_p=0.9, eos_token_id=-1)
    config = ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.cache_tokens // settings.page_size,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=min(settings.max_in_flight, settings.max_batch_tokens),
        allow_block_sharing=False,  # a prefix computed by one version must not be used by another
        use_async_batching=False,  # a step in flight during a swap would get the wrong version
        return_logprobs=True,
        per_request_processors=True,
        auto_switch_to_flash=False,  # it would download kernels
        use_cuda_graph=False,  # a graph would repeat the filters of the step in which it was recorded
    )
    manager = model.init_continuous_batching(generation_config=defaults, continuous_batching_config=config)
    off = {"temperature": 1.0, "top_k": model.config.vocab_size, "top_p": 1.0, "min_p": 0.0}
    filters = manager.logit_processor.logits_processor
    filters[:] = [IdleFilter(wrapped, off) for wrapped in (*filters, MinP())]
    manager.logit_processor.tensors_required += 1
    manager.logit_processor.supported_keys["min_p"] = float
    manager.output_router = Router(receive)
    manager.logit_processor.supported_keys["seed"] = int
    _sample_with_seeds(manager)
    return manager


def _sample_with_seeds(manager: Any) -> None:
    create = manager._create_batch_processor  # noqa: SLF001 the runner exists only after the generation thread has started

    def create_with_seeds() -> Any:
        processor = create()
        processor.model_runner._sample = SeededSampling(processor.model_runner)  # noqa: SLF001 there is no public hook
        return processor

    manager._create_batch_processor = create_with_seeds  # noqa: SLF001 as above


def limits_of(model: Any, settings: EngineSettings) -> ModelLimits:
    """The limits of requests to this model."""
    context = min(model.config.max_position_embeddings, settings.cache_tokens)
    return ModelLimits(vocab_size=model.config.vocab_size, context=context)


def end_ids(model: Any) -> frozenset[int]:
    """The token ids that end an answer of this model, from its generation configuration."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)
