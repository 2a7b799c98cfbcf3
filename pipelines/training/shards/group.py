"""The processes of one trainer: rank 0 says what comes next, all compute it, and what each finds is put together.

    rank 0     send ──▶ verb ──▶ sum, agree ──▶ ... ──▶ agree on how it ended
    others  receive ──▶ verb ──▶ sum, agree ──▶ ... ──▶ agree on how it ended

A rank that waits for another one waits as long as the deadline; then the group is at its end, and the error names who is behind. The others wait
for rank 0's next message without one: it may have nothing to learn for hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from contracts.errors import StepsBroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.distributed_c10d import Store

DEADLINE_SECONDS = 120.0
_PATIENCE = timedelta(days=365)
_RANK_SECONDS = 1.0
"""To ask how far one rank is."""


class Group:
    """One per process. Every method but `leave` and `take` is called by all ranks in the same order, by one thread of each."""

    def __init__(
        self, store: Store, rank: int, world: int, *, device: str = "cpu", deadline: float = DEADLINE_SECONDS
    ) -> None:
        """Meet the others in a store that all ranks share. `device`: `cpu`, or the GPU of this rank.

        Raises StepsBroken: they did not come within the deadline.
        """
        self.rank, self.world, self._at = rank, world, 0
        self._failure: StepsBroken | None = None
        self._store, self._limit = PrefixStore("group", store), timedelta(seconds=deadline)
        backend = "gloo"
        if torch.device(device).type == "cuda":
            torch.cuda.set_device(device)  # torch's shards are on the current one
            backend = "cpu:gloo,cuda:nccl"
        with self._named("to meet"):
            dist.init_process_group(backend, store=self._store, rank=rank, world_size=world, timeout=self._limit)
            self._messages = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def close(self) -> None:
        """Leave."""
        dist.destroy_process_group()

    def send(self, message: bytes) -> None:
        """Of rank 0: what the others `receive`."""
        self._broadcast_bytes(message)

    def receive(self) -> bytes:
        """The next message of rank 0, however long it takes. Raises StepsBroken: it is gone."""
        return self._broadcast_bytes(b"")

    def _broadcast_bytes(self, message: bytes) -> bytes:
        size = torch.tensor(len(message))
        with self._named("for a message"):
            sent = dist.broadcast(size, 0, group=self._messages, async_op=True)
            if sent is not None:
                sent.wait(_PATIENCE if self.rank else self._limit)
            content = torch.empty(int(size), dtype=torch.uint8)
            if message:
                content.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
            dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def sum(self, values: torch.Tensor) -> None:
        """Make `values` the sum over all ranks, in place: the same bits on each."""
        with self._named("for a sum"):
            dist.all_reduce(values)

    def copy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make these tensors those of rank 0, in place."""
        with self._named("for rank 0's numbers"):
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def all(self, number: int) -> list[int]:
        """The number of each rank."""
        numbers = torch.zeros(self.world, dtype=torch.int64)
        numbers[self.rank] = number
        self.sum(numbers)
        return numbers.tolist()

    def leave(self, name: str, content: bytes) -> None:
        """Leave a word for another rank, in any thread and at any time. A second of the same name takes its place."""
        self._store.set(f"word/{name}", content.decode())

    def take(self, name: str) -> bytes | None:
        """A word that another rank left; None: there is none yet. In any thread."""
        if not self._store.check([f"word/{name}"]):
            return None
        content = self._store.get(f"word/{name}")
        self._store.delete_key(f"word/{name}")
        return content

    def raise_together(self, error: Exception | None) -> None:
        """Raise out of memory if any rank has such an error, which none met inside a collective call; another error of its own as it is."""
        lacking = [rank for rank, fails in enumerate(self.all(int(error is not None))) if fails]
        if error is not None:
            raise error
        if lacking:
            raise torch.OutOfMemoryError(f"out of memory on {ranks(lacking)}")

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """A collective call. Its failure says who is behind."""
        if self._failure is not None:
            raise self._failure
        self._at += 1
        try:
            self._store.set(f"at/{self.rank}", str(self._at))
            yield
        except (RuntimeError, ValueError) as error:
            says = f"waited {what}: {self._behind()} ({str(error).partition(chr(10))[0]})"
            raise self.ended_by(says) from error

    def ended_by(self, says: str) -> StepsBroken:
        """The error that ends the group, now and whenever it is asked again. `says`: what this rank did."""
        if self._failure is None:
            says = f"rank {self.rank} of the trainer {says}"
            with suppress(RuntimeError):  # the store may be gone too
                names = [f"failed/{rank}" for rank in range(self.world)]
                earlier = [self._store.get(name).decode() for name in names if self._store.check([name])]
                self._store.set(names[self.rank], says)
                says = "; ".join([*earlier, says])
            self._failure = StepsBroken(f"{says}; the group ends, and a start takes up from the last checkpoint")
        return self._failure

    def _behind(self) -> str:
        """The ranks that have come least far."""
        found = dict.fromkeys(range(self.world), 0)
        for rank in found:
            with suppress(RuntimeError):
                self._store.wait([f"at/{rank}"], timedelta(seconds=_RANK_SECONDS))
                found[rank] = int(self._store.get(f"at/{rank}"))
        least = min(found.values(), default=0)
        behind = [rank for rank, at in found.items() if at == least and rank != self.rank and at < self._at]
        return f"{ranks(behind)} did not come" if behind else "another rank left"


def ranks(numbers: Sequence[int]) -> str:
    """For a person: `rank 1`, `ranks 1 and 3`."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {' and '.join(map(str, numbers))}"
