"""A log that may be away: messages that it cannot take now wait on this machine's disk, equally durable.

    append() ──▶ log is there:  _sender, one thread ──────────────▶ log
        └──────▶ log is away:   SpoolSlot, a file ──▶ _forwarder ──▶ _sender ──▶ log

Filled by: `append`, which waits at most a second for the log. After that the log counts as away, and messages go to disk at once.
Drained by: the forwarder, a thread that retries with the oldest message until the disk is empty. Messages from disk arrive in order and in
large batches; some may arrive twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import structlog

from contracts.errors import RecordTooLarge, Unavailable
from contracts.event_log import EventLog, Message, check_sizes
from runtime.log.spool_slot import SpoolSlot, abandoned_slots

MAX_SPOOL_BYTES = 2 * 2**30
PATIENCE_SECONDS = 1.0
_BATCH_RECORDS, _BATCH_BYTES = 1000, 4 * 2**20
_TICK_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_ADOPT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_log = structlog.get_logger(__name__)


class Spool:
    """Takes messages in front of a log. Belongs to one process; several processes may share the folder.

    `log` is closed with the spool; `max_bytes`: the most that this process keeps on disk; `patience_seconds`: how long an append waits for
    the log.

    Attributes:
        away: True while messages go to disk.
        num_spooled, num_forwarded, num_refused: since the start, messages written to disk, moved from there to the log, and of those that
            the log will never take.
    """

    def __init__(
        self,
        log: EventLog,
        folder: Path,
        *,
        max_bytes: int = MAX_SPOOL_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.num_spooled = 0
        self.num_forwarded = 0
        self.num_refused = 0
        self._log = log
        self._folder = folder
        self._max_bytes = max_bytes
        self._patience = patience_seconds
        self._deciding = threading.Lock()
        self._slot: SpoolSlot | None = None
        # Kept open until they are empty: opening one again would send all of its messages a second time.
        self._adopted: list[SpoolSlot] = []
        try:
            self._slot = SpoolSlot.take_first(folder, max_bytes)
        except Unavailable as error:  # requests are answered even without a disk
            _log.warning("no spool", reason=error.message)
        self.away = bool(self.num_waiting)
        # All appends go through this one thread, so when the forwarder's append succeeds, no earlier one is still pending.
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool-sender")
        self._wake = threading.Event()
        self._closing_at: float | None = None
        self._forwarder = threading.Thread(target=self._forward, name="spool-forwarder", daemon=True)
        self._forwarder.start()

    @property
    def num_waiting(self) -> int:
        """Messages on disk that are not yet known to be in the log."""
        return self._slot.num_records if self._slot else 0

    @property
    def waiting_bytes(self) -> int:
        """Size of their keys and values."""
        return self._slot.num_bytes if self._slot else 0

    @property
    def oldest_age_seconds(self) -> float:
        """How long the oldest of them has waited; 0 if there are none."""
        oldest_at = self._slot.oldest_at if self._slot else None
        return 0.0 if oldest_at is None else max(0.0, time.time() - oldest_at)

    def append(self, messages: Sequence[Message]) -> None:
        """See `EventLog.append`: in the log or on disk.

        Raises RecordTooLarge: a message is larger than MAX_RECORD_BYTES; none was kept; Unavailable: neither log nor disk takes them now.
        """
        check_sizes(messages)
        if self.away or not self._reach_log(messages):
            self._keep(messages)

    def close(self) -> None:
        """Forward messages for two seconds; the others wait on disk for the next start."""
        self._closing_at = time.monotonic() + _CLOSE_SECONDS
        self._wake.set()
        self._forwarder.join(_CLOSE_SECONDS)
        self._log.close()  # ends a pending append
        self._forwarder.join()
        self._sender.shutdown()
        for slot in (*self._adopted, *([self._slot] if self._slot else [])):
            slot.close()

    def _reach_log(self, messages: Sequence[Message]) -> bool:
        sending = self._sender.submit(self._log.append, messages)
        try:
            sending.result(self._patience)
        except (Unavailable, TimeoutError) as error:
            # This append may still succeed later: consumers keep the first record of each key.
            sending.cancel()
            _log.warning("the log is away: spooling", reason=str(error) or f"no answer within {self._patience:g} s")
            return False
        return True

    def _keep(self, messages: Sequence[Message]) -> None:
        with self._deciding:
            self.away = True
            if self._slot is None:
                self._slot = SpoolSlot.take_first(self._folder, self._max_bytes)
            self._slot.append(messages)
            self.num_spooled += len(messages)
        self._wake.set()

    def _forward(self) -> None:
        adopt_at = 0.0
        while self._closing_at is None or time.monotonic() < self._closing_at:
            try:
                if self._slot is not None:
                    self._drain(self._slot)
                with self._deciding:
                    if not self.num_waiting:
                        self._settle()
                        if self._closing_at is not None:
                            return
                if time.monotonic() >= adopt_at:
                    adopt_at = time.monotonic() + _ADOPT_SECONDS
                    self._adopt()
            except Exception as error:  # noqa: BLE001 if the forwarder ended, the disk would fill up
                _log.warning("the spool waits", num=self.num_waiting, reason=str(error) or type(error).__name__)
                if self._closing_at is not None:
                    return
                time.sleep(_RETRY_SECONDS)
            else:
                self._wake.wait(_TICK_SECONDS)
                self._wake.clear()

    def _settle(self) -> None:
        if self.away and self.num_forwarded:
            _log.info("the log is back: nothing waits", forwarded=self.num_forwarded)
        self.away = False

    def _adopt(self) -> None:
        found = abandoned_slots(self._folder, self._slot.number if self._slot else -1, self._max_bytes)
        for slot in chain(self._adopted.copy(), found):
            if slot not in self._adopted:
                _log.info("found a slot without an owner: forwarding it", slot=slot.number, num=slot.num_records)
                self._adopted.append(slot)
            self._drain(slot)
            if slot.is_clean:
                self._adopted.remove(slot)
                slot.close()

    def _drain(self, slot: SpoolSlot) -> None:
        slot.tidy()
        limit = 1  # one message as a probe: a silent log may write it twice
        while (batch := slot.oldest(limit, _BATCH_BYTES)).messages:
            self._send(batch.messages)
            slot.remove(batch)
            self.num_forwarded += len(batch.messages)
            limit = _BATCH_RECORDS
            if self._closing_at is not None and time.monotonic() > self._closing_at:
                return

    def _send(self, messages: Sequence[Message]) -> None:
        try:
            self._sender.submit(self._log.append, messages).result()
        except RecordTooLarge as error:
            if len(messages) > 1:
                for message in messages:
                    self._send([message])
            else:  # the log's limit is below ours; this message must not block the ones behind it
                self.num_refused += 1
                _log.error(
                    "the log refuses a spooled record for good: dropped", key=messages[0].key, reason=error.message
                )
