"""Joins a `PrefixStore` to transformers' continuous batching: pages are filled from it and read into it, between two steps.

In: requests that are taken in, and that end or are cancelled. Out: pages that need no computing, and what is kept of pages that go.
Waits for: nothing; all of it happens on the generation thread. A request that is taken in gets the longest kept beginning of its prompt as
if a step had just computed it. Of one that ends, all tokens are kept that were computed by one version. The manager asks us where it would
ask its own sharing of pages, which is off: that one keeps no versions and no tenants apart, and knows only whole pages.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.continuous_batching.requests import RequestStatus
from transformers.generation.continuous_batching.utils import stream_context

from services.engine.prefixes import BLOCK_TOKENS, PrefixStore, PrefixUse

USE = "prefix"
"""The argument of a request that has its `PrefixUse`."""
_KEPT = ["full_attention"]
"""The kinds of layers whose keys and values can be kept; a sliding window has given up the beginning of a sequence."""


def can_keep_prefixes(layer_types: list[str]) -> bool:
    """True for a model whose layers are all of a kind that can be kept; `layer_types`: the kinds that it has."""
    return layer_types == _KEPT


class PagedPrefixes:
    """See the module. Made on the generation thread, with the manager's processor of batches."""

    def __init__(self, processor: Any, store: PrefixStore) -> None:
        self._store = store
        self._cache, self._scheduler = processor.cache, processor.scheduler
        [self._pages] = self._cache.cache_allocators.values()
        self._stream = processor.inputs_and_outputs.compute_stream
        self._finish, self._clear = self._scheduler.finish_request, self._scheduler.clear_cancelled_requests
        # The scheduler asks `search_prefix_match` for each request that it takes in.
        self._cache.use_prefix_sharing = True
        self._cache.search_prefix_match = self._take
        self._cache.count_new_complete_blocks = lambda _state, _length: {}
        self._scheduler.finish_request = self._keep_and_finish
        self._scheduler.clear_cancelled_requests = self._keep_and_clear

    def _take(self, request_id: str, token_ids: list[int]) -> int:
        """Fill the first pages of a request that is taken in. Returns the number of its tokens that need no computing."""
        state = self._scheduler.waiting_requests.get(request_id)
        use = None if state is None else _use_of(state)
        if use is None:
            return 0
        use.generation = self._store.generation
        places = self._store.find(use.scope, token_ids)
        is_first = not state._true_initial_tokens  # noqa: SLF001 else it was evicted, and has told what it found at first
        if not places or not self._reserve(request_id, len(places) * BLOCK_TOKENS, len(token_ids)):
            use.num_cached = 0 if is_first else use.num_cached
            return 0
        num_tokens = len(places) * BLOCK_TOKENS
        with stream_context(self._stream):
            rows, index = self._store.read(places), self._index(request_id, 0, num_tokens)
            for layer, (keys, values) in enumerate(self._views()):
                keys.index_copy_(0, index, rows[:, 2 * layer])
                values.index_copy_(0, index, rows[:, 2 * layer + 1])
        use.num_cached = num_tokens if is_first else use.num_cached
        return num_tokens

    def _reserve(self, request_id: str, num_tokens: int, num_prompt: int) -> bool:
        """Take pages for the first tokens of a request; False if the whole prompt would not find room now."""
        pool, pages = self._cache.pool, self._pages
        if pages.needs_new_sectors(request_id, 0, num_prompt) > pool.num_free_sectors:
            return False
        for _ in range(pages.needs_new_sectors(request_id, 0, num_tokens)):
            pool.allocate_sector(pages.index)
        pages.allocate_cache_to_request(request_id, 0, num_tokens)
        return True

    def _keep_and_finish(self, request_id: str) -> None:
        state = self._scheduler.active_requests.get(request_id)
        if state is not None and state.status == RequestStatus.FINISHED:  # else its step failed
            self._keep(state)
        self._finish(request_id)

    def _keep_and_clear(self) -> Any:
        active = self._scheduler.active_requests
        for request_id in tuple(self._scheduler._requests_to_cancel):  # noqa: SLF001 a client that leaves may come back
            if request_id in active:
                self._keep(active[request_id])
        return self._clear()

    def _keep(self, state: Any) -> None:
        use = _use_of(state)
        if use is None or use.generation != self._store.generation or state.request_id not in self._pages.block_table:
            return
        token_ids = (state.initial_tokens + state.generated_tokens)[: state.position_offset]
        with stream_context(self._stream):
            self._store.keep(use.scope, token_ids, lambda start, stop: self._rows(state.request_id, start, stop))

    def _rows(self, request_id: str, start: int, stop: int) -> torch.Tensor:
        """Keys and values of tokens [start, stop) of a request: [stop - start, 2 x layers, heads, D]."""
        index = self._index(request_id, start, stop)
        return torch.stack([view.index_select(0, index) for views in self._views() for view in views], dim=1)

    def _index(self, request_id: str, start: int, stop: int) -> torch.Tensor:
        places = self._pages.get_write_indices(request_id, start, stop - start)
        return torch.tensor(places, device=self._pages.cache_tensor.device)

    def _views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each layer: keys and values by place [N, heads, D]."""
        return list(self._pages._kv_token_views.values())  # noqa: SLF001 there is no public view


def _use_of(state: Any) -> PrefixUse | None:
    use = state.logit_processor_kwargs.get(USE)
    return use if isinstance(use, PrefixUse) else None
