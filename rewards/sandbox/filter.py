"""Compiles the filter of system calls that the driver installs before a program begins; the same in every sandbox. Pure.

It is classic BPF, as in seccomp(2): eight bytes per instruction, for an operation, two jumps and a constant.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
import sys
from collections.abc import Mapping

from contracts.errors import Unavailable
from rewards.sandbox.calls import ABSENT, DENIED, NEWEST, NUMBERS, TESTED, ArgumentRule

# linux/bpf_common.h
_LOAD, _JUMP, _EQUAL, _ABOVE, _FROM, _AND, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x35, 0x54, 0x06
# linux/seccomp.h
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""linux/audit.h. Any other value is a 32-bit call, whose numbers mean other calls."""

_LEAF = 8
"""The number of calls that are compared in sequence. The kernel runs a new filter once per number, and every run pays for that."""

Instruction = tuple[int, int, int, int]


@functools.cache
def program_of(machine: str = "") -> bytes:
    """The filter for a machine (`x86_64`, `aarch64`; this one by default), as bytes of `struct sock_filter`. Raises Unavailable: there is no filter for it."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        raise Unavailable(
            f"there is no filter of system calls for {machine} with {sys.maxsize.bit_length() + 1} bits; there are "
            f"{' and '.join(_ARCHITECTURES)}"
        )
    refused = _ERRNO | errno.EPERM
    absent = _ERRNO | errno.ENOSYS
    found: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        # Calls of x32 have higher numbers too.
        (_ABOVE, 0, 1, NEWEST),
        (_RETURN, 0, 0, absent),
    ]
    answers = {name: [(_RETURN, 0, 0, refused)] for names in DENIED.values() for name in names}
    answers |= {name: [(_RETURN, 0, 0, absent)] for name in ABSENT}
    answers |= {name: _tested(tests, refused) for name, tests in TESTED.items()}
    by_number: dict[int, list[Instruction]] = {}
    for name, answer in answers.items():
        number = NUMBERS[name].x86_64 if machine == "x86_64" else NUMBERS[name].aarch64
        if number is not None:
            by_number[number] = answer
    return _bytes([*found, *_search(sorted(by_number.items()))])


def allow_all() -> bytes:
    """A filter that refuses nothing, for comparison."""
    return _bytes([(_RETURN, 0, 0, _ALLOW)])


def _search(answers: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """A binary search for the answer to the loaded number. All other numbers are allowed."""
    if len(answers) <= _LEAF:
        leaf = [step for number, answer in answers for step in ((_EQUAL, 0, len(answer), number), *answer)]
        return [*leaf, (_RETURN, 0, 0, _ALLOW)]
    middle = len(answers) // 2
    lower, upper = _search(answers[:middle]), _search(answers[middle:])
    return [(_FROM, 0, 1, answers[middle][0]), (_JUMP, 0, 0, len(lower)), *lower, *upper]


def _tested(tests: tuple[ArgumentRule, ...], refused: int) -> list[Instruction]:
    found: list[Instruction] = []
    for test in tests:
        found += [(_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument), (_AND, 0, 0, test.mask)]
        for place, value in enumerate(test.values, start=1):
            # Jump behind the refusal, or to it. The refusal follows the last comparison.
            left = len(test.values) - place
            found.append((_EQUAL, left + 1 if test.wanted else left, 0, value))
        if not test.wanted:
            found[-1] = (_EQUAL, 0, 1, test.values[-1])
        found.append((_RETURN, 0, 0, refused))
    return [*found, (_RETURN, 0, 0, _ALLOW)]


def _bytes(instructions: list[Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
