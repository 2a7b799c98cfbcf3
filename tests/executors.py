"""Executors for tests: calls that run at once, later, or in a thread that a test can wait for."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class AtOnce(Executor):
    """Runs each call in the caller's thread, before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 whoever asks for the result gets it
            future.set_exception(error)
        return future


class Later(Executor):
    """Runs a call when a test says so; until then at once, if `is_at_once`."""

    def __init__(self, *, is_at_once: bool = False) -> None:
        self.is_at_once = is_at_once
        self._calls: list[tuple[Future[object], Callable[[], object]]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._calls.append((future, lambda: fn(*args, **kwargs)))  # type: ignore[arg-type]  # the result is passed on as it is
        if self.is_at_once:
            self.run()
        return future

    @property
    def num_waiting(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        """Run the oldest call."""
        future, call = self._calls.pop(0)
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 as above
            future.set_exception(error)


class Threads(Executor):
    """One thread, and a way to wait until it has nothing to do."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._futures: list[Future[object]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = self._thread.submit(fn, *args, **kwargs)
        self._futures.append(future)  # type: ignore[arg-type]  # nobody here looks at the result
        return future

    def settle(self) -> None:
        """Wait until every call has ended, with any result."""
        wait(self._futures)
        self._futures.clear()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._thread.shutdown(wait, cancel_futures=cancel_futures)
