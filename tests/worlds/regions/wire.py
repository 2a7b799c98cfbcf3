"""The wire between two network namespaces, where the kernel has no netem: frames arrive later, and some never.

usage: python -m tests.worlds.regions.wire NEAR,FAR,ROUND_TRIP_MS,LOSS [...]

In: frames at each of two devices. Out: the same frames at the other one, half a round trip later. Waits: for frames; it
ends when the process that started it is gone. The kernel reads and writes many frames at a time and a filter on the
socket drops the given share, so that Python touches none of them.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

_TICK_SECONDS = 0.001
_IDLE_MS = 1000
_NICE = -10
_SLOTS, _SLOT_BYTES, _AT_ONCE = 8192, 1600, 1024
_HEAD_WORDS, _HEAD_VECTOR, _HEAD_VECTORS, _HEAD_LENGTH = 8, 2, 3, 7  # struct mmsghdr of 64-bit Linux, in 8-byte words
_WORD = 8
_ETH_P_ALL, _ETH_P_ARP = 0x0003, 0x0806
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _RECEIVE_BYTES = 26, 33, 32 * 2**20
_RANDOM = 0xFFFFF000 + 56


class Way:
    """One direction of one link: frames wait in a ring that the kernel fills and empties, none is touched here."""

    def __init__(self, source: int, sink: int, delay_seconds: float) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._source, self._sink, self._delay = source, sink, delay_seconds
        self._frames = np.zeros((_SLOTS, _SLOT_BYTES), dtype=np.uint8)
        numbers = np.arange(_SLOTS, dtype=np.uint64)
        self._vectors = np.zeros((_SLOTS, 2), dtype=np.uint64)
        self._vectors[:, 0] = self._frames.ctypes.data + numbers * _SLOT_BYTES
        self._vectors[:, 1] = _SLOT_BYTES
        self._heads = np.zeros((_SLOTS, _HEAD_WORDS), dtype=np.uint64)
        self._heads[:, _HEAD_VECTOR] = self._vectors.ctypes.data + numbers * 2 * _WORD
        self._heads[:, _HEAD_VECTORS] = 1
        self._next = 0
        self._waiting: deque[tuple[float, int, int]] = deque()
        self.num_waiting = 0

    def take(self, now: float) -> None:
        """Read what has come."""
        room = min(_SLOTS - self._next, _SLOTS - self.num_waiting, _AT_ONCE)
        if not room:
            return
        count = self._library.recvmmsg(self._source, self._head(self._next), room, socket.MSG_DONTWAIT, None)
        if count <= 0:
            return
        span = slice(self._next, self._next + count)
        self._vectors[span, 1] = self._heads[span, _HEAD_LENGTH]
        self._waiting.append((now + self._delay, self._next, count))
        self._next = (self._next + count) % _SLOTS
        self.num_waiting += count

    def give(self, now: float) -> None:
        """Send what has waited long enough."""
        while self._waiting and self._waiting[0][0] <= now:
            _, first, count = self._waiting.popleft()
            done = 0
            while done < count:
                sent = self._library.sendmmsg(self._sink, self._head(first + done), count - done, socket.MSG_DONTWAIT)
                done += max(1, sent)  # one that is refused is lost: the link is down at the other end
            self._vectors[first : first + count, 1] = _SLOT_BYTES
            self.num_waiting -= count

    def _head(self, number: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._heads.ctypes.data + number * _HEAD_WORDS * _WORD)


def carry(links: Sequence[str]) -> None:
    """Be the wire of `near,far,round trip in ms,loss` until the process that started it is gone."""
    parent = os.getppid()
    os.nice(_NICE)  # a wire that waits for a core would be a longer wire
    sockets, ways = [], []
    for link in links:
        near_device, far_device, round_trip_ms, loss = link.split(",")
        near, far = _open(near_device, float(loss)), _open(far_device, float(loss))
        delay = float(round_trip_ms) / 2000 - _TICK_SECONDS / 2
        ways += [Way(near.fileno(), far.fileno(), delay), Way(far.fileno(), near.fileno(), delay)]
        sockets += [near, far]
    poll = select.poll()
    for opened in sockets:
        poll.register(opened, select.POLLIN)
    print("ready", flush=True)
    while os.getppid() == parent:
        now = time.monotonic()
        for way in ways:
            way.take(now)
            way.give(now)
        if any(way.num_waiting for way in ways):
            time.sleep(_TICK_SECONDS)
        else:
            poll.poll(_IDLE_MS)


def _open(device: str, loss: float) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # Checksums that are left to the device travel along as a note, so nothing needs to count them.
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
    program = _losing(loss)
    code = ctypes.create_string_buffer(program)
    filled = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filled)
    opened.bind((device, _ETH_P_ALL))
    return opened


def _losing(loss: float) -> bytes:
    """A classic BPF program that keeps a frame with probability 1 - `loss`; ARP always: a region is not a cable."""
    return b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x28, 0, 0, 12),  # load the type of the frame
            (0x15, 2, 0, _ETH_P_ARP),
            (0x20, 0, 0, _RANDOM),
            (0x35, 0, 1, int(loss * 2**32)),
            (0x06, 0, 0, 0x40000),  # keep
            (0x06, 0, 0, 0),  # lose
        )
    )


if __name__ == "__main__":
    carry(sys.argv[1:])
