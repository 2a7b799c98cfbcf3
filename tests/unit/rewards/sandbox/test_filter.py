"""What the filter answers, asked as the kernel would: by running its instructions."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from rewards.sandbox import driver
from rewards.sandbox import filter as calls
from rewards.sandbox.filter import program_of
from tests.each_case import each_case
from tests.worlds.sandboxes import ALLOW_ALL

X86, ARM = "x86_64", "aarch64"
ARCHITECTURES = {X86: 0xC000003E, ARM: 0xC00000B7}
ALLOWED, REFUSED, ABSENT, KILLED = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
AF_UNIX, AF_INET, STREAM, DATAGRAM = 1, 2, 1, 2


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """`seccomp_data` through the instructions; only those that our filter is made of."""
    padded = [argument & 0xFFFFFFFFFFFFFFFF for argument in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    code = [struct.unpack("<HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    place = held = 0
    while True:
        operation, then, otherwise, constant = code[place]
        place += 1
        if operation == 0x06:
            return int(constant)
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x54:
            held &= constant
        elif operation == 0x05:
            place += constant
        else:
            holds = {0x15: held == constant, 0x25: held > constant, 0x35: held >= constant}[operation]
            place += then if holds else otherwise


def asked(machine: str, name: str, *arguments: int) -> int:
    number = getattr(calls.NUMBERS[name], machine)
    return answer(program_of(machine), ARCHITECTURES[machine], number, *arguments)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_denied_is_refused_whatever_its_arguments(machine: str) -> None:
    names = [name for group in calls.DENIED.values() for name in group]
    there = [name for name in names if getattr(calls.NUMBERS[name], machine) is not None]
    assert len(there) > 90
    for name in there:
        assert {asked(machine, name, *given) for given in ((), (1, 1, 1), (-1, -1, -1))} == {REFUSED}, name


@each_case("machine", ARCHITECTURES)
@each_case(
    ("name", "arguments", "expected"),
    [
        ("socketpair", (AF_UNIX, STREAM), ALLOWED),
        ("socketpair", (AF_UNIX, STREAM | 0o2004000), ALLOWED),
        ("socketpair", (AF_UNIX, DATAGRAM), REFUSED),
        ("socketpair", (AF_INET, STREAM), REFUSED),
        ("socketpair", (1 | 1 << 40, STREAM), ALLOWED),
        ("kill", (1234, 9), ALLOWED),
        ("kill", (0, 9), REFUSED),
        ("kill", (1, 9), REFUSED),
        ("kill", (-1, 9), REFUSED),
        ("kill", (-1234, 9), REFUSED),
        ("kill", (calls.FIRST, 9), REFUSED),
        ("tkill", (calls.OUTER, 9), REFUSED),
        ("tgkill", (calls.OUTER, calls.OUTER, 9), REFUSED),
        ("tgkill", (1234, 1234, 6), ALLOWED),
        ("fcntl", (3, 1030), ALLOWED),
        *(("fcntl", (3, command), REFUSED) for command in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1026, 1031)),
        ("ioctl", (0, 0x5401), ALLOWED),
        *(("ioctl", (0, command), REFUSED) for command in (0x5412, 0x541C, 0x8901, 0x8902, 0x5452, 0x40086602)),
        ("clone", (0x3D0F00,), ALLOWED),
        ("clone", (0x1200011,), ALLOWED),
        *(("clone", (1 << bit | 17,), REFUSED) for bit in (15, 17, 25, 26, 27, 28, 29, 30)),
        ("clone3", (0,), ABSENT),
        ("personality", (0xFFFFFFFF,), ALLOWED),
        ("personality", (0x40000,), REFUSED),
        ("prctl", (38, 1), ALLOWED),
        ("prctl", (0x59616D61, 1), REFUSED),
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1234, 7), REFUSED),
        ("setpriority", (0, 0, 5), ALLOWED),
        ("setpriority", (2, 0, 5), REFUSED),
        ("setpriority", (0, 1234, 5), REFUSED),
        ("sched_setaffinity", (1234,), REFUSED),
    ],
)
def test_where_arguments_decide(machine: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert asked(machine, name, *arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_whatever_programs_live_by_is_allowed(machine: str) -> None:
    # read, write, openat, mmap, brk, futex, exit_group, execve, wait4, pipe2, getrandom, epoll_create1, clock_gettime
    ordinary = {
        X86: (0, 1, 257, 9, 12, 202, 231, 59, 61, 293, 318, 291, 228),
        ARM: (63, 64, 56, 222, 214, 98, 94, 221, 260, 59, 278, 20, 113),
    }[machine]
    assert {answer(program_of(machine), ARCHITECTURES[machine], number) for number in ordinary} == {ALLOWED}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_other_tables_of_calls_and_later_calls_are_closed(machine: str) -> None:
    program, own = program_of(machine), ARCHITECTURES[machine]
    for other in (0x40000003, 0x40000028, *(set(ARCHITECTURES.values()) - {own})):  # i386, 32 bits of Arm
        assert answer(program, other, 1) == KILLED
    assert [answer(program, own, number) for number in (470, 471, 0x40000000, 0x40000029, 0xFFFFFFFF)] == [ABSENT] * 5


def test_a_machine_without_a_filter_has_no_sandbox() -> None:
    with pytest.raises(Unavailable, match=r"no filter of system calls for riscv64 .* there are x86_64 and aarch64"):
        program_of("riscv64")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_driver_puts_its_processes_where_the_filter_expects_them(machine: str) -> None:
    assert (driver.FIRST, driver.OUTER) == (calls.FIRST, calls.OUTER)
    for number in (calls.FIRST, calls.OUTER):
        places = [found.start() for found in re.finditer(re.escape(number.to_bytes(4, "little")), program_of(machine))]
        assert len(places) == 3  # kill, tkill, tgkill
        assert {place % 8 for place in places} == {4}  # where an instruction's constant stands


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_not_named_is_allowed(machine: str) -> None:
    named = {getattr(numbers, machine) for numbers in calls.NUMBERS.values()}
    program, own = program_of(machine), ARCHITECTURES[machine]
    others = {number for number in range(calls.NEWEST + 1) if answer(program, own, number, 77, 77, 77) == ALLOWED}
    tested = {getattr(calls.NUMBERS[name], machine) for name in calls.TESTED}
    assert others >= {*range(calls.NEWEST + 1)} - named
    assert others & (named - tested) == set()


def test_the_one_to_compare_with_refuses_nothing() -> None:
    assert answer(ALLOW_ALL, 0, 41) == ALLOWED


def test_every_call_is_named_once_and_has_its_numbers() -> None:
    names = [*calls.TESTED, *calls.ABSENT, *(name for group in calls.DENIED.values() for name in group)]
    assert sorted(names) == sorted(calls.NUMBERS)


def test_the_numbers_are_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    ours = {name: numbers.x86_64 for name, numbers in calls.NUMBERS.items() if name in known}
    assert ours == {name: known[name] for name in ours}
    assert len(ours) > 100
