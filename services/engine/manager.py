"""transformers' continuous batching, configured for this engine."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.continuous_api import OutputRouter

from policy.load import context_of
from services.engine.active_requests import ActiveRequest
from services.engine.paged_prefixes import USE, PagedPrefixes, can_keep_prefixes
from services.engine.prefixes import PrefixStore, PrefixUse
from services.engine.runners import ForwardObserver, ForwardPart, Receive, StepOutput
from services.engine.sampler import SequenceSampling, sample
from services.engine.sampling import ModelLimits
from services.engine.settings import EngineSettings

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)


class Router(OutputRouter):  # type: ignore[misc] # transformers is untyped
    """Takes a manager's outputs on its generation thread: the manager's own handlers run later, when the weights may have changed already."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    def deliver(self, output: Any) -> None:
        """Take one output; failures come this way too."""
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Take all outputs of a step."""
        self._receive(
            [
                StepOutput(
                    output.request_id, output.generated_tokens, output.logprobs, output.is_finished(), output.error
                )
                for output in outputs
            ]
        )


class PagedRunner:
    """transformers' continuous batching over a model, on a generation thread. Methods may be called from any thread."""

    def __init__(
        self,
        model: Any,
        settings: EngineSettings,
        receive: Receive,
        observer: ForwardObserver,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self.manager = _build_manager(model, settings, receive, observer, prefixes)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the generation thread."""
        self.manager.start()
        self._thread = self.manager._generation_thread  # noqa: SLF001 there is no public way to notice its end

    def add(self, active: ActiveRequest) -> bool:
        """Take in a request; False if the runner takes none any more. With a `prefix`, keys and values that are kept need no computing."""
        accepted = self.manager.add_request(
            active.request.token_ids,
            request_id=active.request_id,
            max_new_tokens=active.request.sampling_params.max_tokens,
            streaming=True,  # the router sees every token; the active request decides what to send
            eos_token_id=list(active.stops) or [-1],
            sampling=active.sampling,
            **({} if active.prefix is None else {USE: active.prefix}),
        )
        return accepted is not None

    def cancel(self, request_id: str) -> None:
        """End a request without output; nothing happens if it has ended."""
        self.manager.cancel_request(request_id)

    def pause(self) -> AbstractContextManager[None]:
        """A block in which no step runs. Raises RuntimeError if the generation thread is dead."""
        paused: AbstractContextManager[None] = self.manager.pause()
        return paused

    def stop(self) -> None:
        """End the generation thread after the current step, and wait for it; requests in flight get no output."""
        if self.manager.is_running():
            self.manager.stop(hard_stop=True)

    def wait(self) -> BaseException | None:
        """Wait until the generation thread ends. Returns the error that ended it, if any."""
        if self._thread is not None:
            self._thread.join()
        error: BaseException | None = self.manager.background_thread_status.fatal_error
        return error

    @property
    def serving(self) -> bool:
        """True while the generation thread runs and takes requests."""
        return self.manager.is_running() and self.manager.background_thread_status.can_accept_new_requests() is None


def _build_manager(
    model: Any, settings: EngineSettings, receive: Receive, observer: ForwardObserver, prefixes: PrefixStore | None
) -> Any:
    config = ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.cache_tokens // settings.page_size,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=min(settings.max_in_flight, settings.max_batch_tokens),
        allow_block_sharing=False,  # a prefix must not be used by another version or tenant: see paged_prefixes.py
        use_async_batching=False,  # a step in flight during a swap would get the wrong version
        return_logprobs=True,
        per_request_processors=True,
        auto_switch_to_flash=False,  # it would download kernels
        use_cuda_graph=False,  # a graph would repeat the sampling of the step in which it was recorded
    )
    defaults = GenerationConfig(do_sample=True, eos_token_id=-1)
    manager = model.init_continuous_batching(generation_config=defaults, continuous_batching_config=config)
    manager.logit_processor.clear()
    manager.logit_processor.supported_keys |= {"sampling": SequenceSampling, USE: PrefixUse}
    manager.output_router = Router(receive)
    _hook(manager, observer, prefixes)
    return manager


def _hook(manager: Any, observer: ForwardObserver, prefixes: PrefixStore | None) -> None:
    """Sample with our sampler, tell the observer of each forward, and keep prefixes."""
    create = manager._create_batch_processor  # noqa: SLF001 the runner exists only after the generation thread has started

    def create_hooked() -> Any:
        processor = create()
        runner, batch = processor.model_runner, processor.inputs_and_outputs
        compute = runner.compute_batch

        def compute_observed(*arguments: Any) -> None:
            parts = [(one.state, one.query_length) for one in batch.requests_in_batch]
            # The offset of a request was advanced already.
            observer.before([ForwardPart(state.request_id, state.position_offset - num, num) for state, num in parts])
            compute(*arguments)
            observer.after()

        def sample_rows(scores: torch.Tensor, output_ids: torch.Tensor) -> None:
            # Scores are [1, >= B, V]; the rows after the last new token are of requests whose prompt goes on.
            states = [request.state for request in batch.requests_in_batch if request.has_new_token]
            if states:
                sequences = [state.logit_processor_kwargs["sampling"] for state in states]
                token_ids, logprobs = sample(scores[0, : len(states)], sequences)
                output_ids[0, : len(states)] = token_ids.to(output_ids.dtype)
                output_ids[1, : len(states)] = logprobs.view(torch.int32)

        runner.compute_batch = compute_observed
        runner._sample = sample_rows  # noqa: SLF001 there is no public hook
        if prefixes is not None and can_keep_prefixes(list(processor.cache.cache_allocators)):
            PagedPrefixes(processor, prefixes)
        return processor

    manager._create_batch_processor = create_hooked  # noqa: SLF001 as above


def limits_of(model: Any, settings: EngineSettings) -> ModelLimits:
    """The limits of requests to this model."""
    context = min(context_of(model.config) or settings.cache_tokens, settings.cache_tokens)
    return ModelLimits(vocab_size=model.config.vocab_size, context=context)


def end_ids(model: Any) -> frozenset[int]:
    """The token ids that end an answer of this model, from its generation configuration."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)
