"""The filter of system calls that the driver installs before a program begins; the same in every sandbox. Pure.

First as data: calls that are forbidden, and calls that are allowed only with harmless arguments; for calls with many commands
(`ioctl`, `fcntl`), the allowed commands. All other calls are allowed, because namespaces or Landlock cover what they can reach. Then
compiled to classic BPF, as in seccomp(2): eight bytes per instruction, for an operation, two jumps and a constant.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from contracts.errors import Unavailable

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
FIRST, OUTER = 0x7FFFFFFE, 0x7FFFFFFD
"""Placeholders for the ids of the driver's first process and of its parent, which only the driver knows. No process has these ids."""
_ALL, _SIGN = 0xFFFFFFFF, 0x80000000
_STREAM, _NONBLOCK_CLOEXEC = 1, 0o2004000
_NEW_NAMESPACES, _PARENT = 0x7E020000, 0x8000


class Numbers(NamedTuple):
    """The number of one call on each machine; None if the machine lacks the call. From Linux's asm/unistd_64.h and asm-generic/unistd.h."""

    x86_64: int
    aarch64: int | None


class ArgumentRule(NamedTuple):
    """A condition on one argument. Kernels read 32 bits of the arguments that are tested here.

    The bits in `mask` must equal one of the values if `wanted`, else none of them. `argument`: its position, from 0.
    """

    argument: int
    mask: int
    values: tuple[int, ...]
    wanted: bool


_FIRST_IS_ZERO = (ArgumentRule(0, _ALL, (0,), True),)
_NOT_OUR_OWN = (
    # A negative number means a process group or all processes; 0 is the own group, which may contain the driver's parent.
    ArgumentRule(0, _SIGN, (0,), True),
    ArgumentRule(0, _ALL, (0, 1, FIRST, OUTER), False),
)

TESTED: Mapping[str, tuple[ArgumentRule, ...]] = MappingProxyType(
    {
        # Event loops wake themselves by a pair. Only streams, because a datagram socket of a pair can be bound and can send anywhere.
        "socketpair": (ArgumentRule(0, _ALL, (1,), True), ArgumentRule(1, _ALL & ~_NONBLOCK_CLOEXEC, (_STREAM,), True)),
        "kill": _NOT_OUR_OWN,
        "tkill": _NOT_OUR_OWN,
        "tgkill": _NOT_OUR_OWN,
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_QUERY, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no locks, leases or owners.
        "fcntl": (ArgumentRule(1, _ALL, (0, 1, 2, 3, 4, 1027, 1030, 1032), True),),
        # TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX.
        "ioctl": (ArgumentRule(1, _ALL, (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5451, 0x5450), True),),
        "clone": (ArgumentRule(0, _NEW_NAMESPACES | _PARENT, (0,), True),),
        # A query, and the default.
        "personality": (ArgumentRule(0, _ALL, (_ALL, 0), True),),
        # PR_SET_PTRACER, PR_SCHED_CORE.
        "prctl": (ArgumentRule(0, _ALL, (0x59616D61, 62), False),),
        # Only for itself, because other processes of the same user may be outside.
        "setpriority": (*_FIRST_IS_ZERO, ArgumentRule(1, _ALL, (0,), True)),
        "sched_setaffinity": _FIRST_IS_ZERO,
        "sched_setscheduler": _FIRST_IS_ZERO,
        "sched_setparam": _FIRST_IS_ZERO,
        "sched_setattr": _FIRST_IS_ZERO,
        "prlimit64": _FIRST_IS_ZERO,
    }
)

ABSENT = frozenset({"clone3"})
"""Answered as by a kernel without the call, because a filter cannot read its flags. C libraries then use `clone`."""

DENIED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sockets of all families": (
            *("socket", "connect", "bind", "listen", "accept", "accept4"),
            *("io_uring_setup", "io_uring_enter", "io_uring_register"),
        ),
        "channels between two runs, and memory outside all limits": (
            *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
            *("msgget", "msgsnd", "msgrcv", "msgctl"),
            *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
            *("add_key", "request_key", "keyctl", "memfd_create", "memfd_secret", "flock"),
        ),
        "signals that carry values, and process handles": (
            *("rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_getfd", "pidfd_send_signal"),
            *("process_madvise", "process_mrelease"),
        ),
        "inspection of other processes, files and the kernel": (
            *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "userfaultfd", "perf_event_open", "bpf"),
            *("inotify_init", "inotify_init1", "fanotify_init", "fanotify_mark", "cachestat", "lookup_dcookie", "syslog"),
            *("name_to_handle_at", "open_by_handle_at", "statmount", "listmount", "quotactl", "quotactl_fd"),
            *("move_pages", "migrate_pages"),
        ),
        "changes that Landlock allows to a file's owner, which may be us": (
            *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat"),
            *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
            *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
            *("utime", "utimes", "futimesat", "utimensat", "file_setattr"),
        ),
        "other roots and namespaces": (
            *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot"),
            *("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "move_mount", "mount_setattr"),
        ),
        "the machine": (
            *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
            *("swapon", "swapoff", "acct", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
            *("iopl", "ioperm", "modify_ldt", "vhangup", "lsm_set_self_attr", "nfsservctl", "ioprio_set"),
        ),
    }
)  # fmt: skip
"""The reason, and the calls."""

NEWEST = 469
"""The newest call that was reviewed (Linux 6.18). Later calls are answered as by a kernel without them."""

NUMBERS: Mapping[str, Numbers] = MappingProxyType(
    {
        name: Numbers(*numbers)
        for name, numbers in {
            "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217),
            "adjtimex": (159, 171), "bind": (49, 200), "bpf": (321, 280), "cachestat": (451, 451),
            "chmod": (90, None), "chown": (92, None), "chroot": (161, 51), "clock_adjtime": (305, 266),
            "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435), "connect": (42, 203),
            "delete_module": (176, 106), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
            "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55),
            "fchownat": (260, 54), "fcntl": (72, 25), "file_setattr": (469, 469), "finit_module": (313, 273),
            "flock": (73, 32), "fremovexattr": (199, 16), "fsconfig": (431, 431), "fsetxattr": (190, 7),
            "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "futimesat": (261, None),
            "init_module": (175, 105), "inotify_init": (253, None), "inotify_init1": (294, 26),
            "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
            "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30),
            "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
            "kill": (62, 129), "lchown": (94, None), "listen": (50, 201), "listmount": (458, 458),
            "lookup_dcookie": (212, 18), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
            "lsm_set_self_attr": (460, 460), "memfd_create": (319, 279), "memfd_secret": (447, 447),
            "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442),
            "move_mount": (429, 429), "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184),
            "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182),
            "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188),
            "msgsnd": (69, 189), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42),
            "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
            "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
            "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prctl": (157, 167),
            "prlimit64": (302, 261), "process_madvise": (440, 440), "process_mrelease": (448, 448),
            "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
            "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "removexattr": (197, 14),
            "removexattrat": (466, 466), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138),
            "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
            "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semctl": (66, 191), "semget": (64, 190),
            "semop": (65, 193), "semtimedop": (220, 192), "setns": (308, 268), "setpriority": (141, 140),
            "settimeofday": (164, 170), "setxattr": (188, 5), "setxattrat": (463, 463), "shmat": (30, 196),
            "shmctl": (31, 195), "shmget": (29, 194), "socket": (41, 198), "socketpair": (53, 199),
            "statmount": (457, 457), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
            "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39), "unshare": (272, 97),
            "userfaultfd": (323, 282), "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None),
            "vhangup": (153, 58),
        }.items()
    }
)  # fmt: skip


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
