"""Probe programs that try to escape from their sandbox. Never imported: they run inside, before any answer does.

Each public function is a call of its own. `ways_out` tries each escape alone. `leave` and `find` run in parallel, like two programs
that try to communicate. What fails raises OSError.
"""

import ctypes
import fcntl
import itertools
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable

LIBRARY = ctypes.CDLL(None, use_errno=True)
ON_X86 = os.uname().machine == "x86_64"
FAMILIES, TYPES, PROTOCOLS = range(1, 46), (1, 2, 3, 5), (0, 1, 6, 17, 58, 132, 262)
"""All families; streams, datagrams, raw and sequenced packets; ICMP, TCP, UDP, SCTP and MPTCP among others."""
OWN_DESCRIPTORS = 4
"""Standard input, output and error, and the descriptor for the value."""
KEY = 0x4D494C4C
NAME = "millrace-probe"


def ways_out(secret: str, folder: str, port: int, grader: int, most_processes: int) -> list[str]:
    """The forbidden actions that succeeded."""
    tried: dict[str, Callable[[], object]] = {
        "keeping descriptors that it was not given": _inherited,
        "reading files": lambda: os.open(secret, os.O_RDONLY),
        "writing files": lambda: os.open(folder + "/written", os.O_WRONLY | os.O_CREAT),
        "changing files": lambda: os.chmod(secret, 0o600),  # noqa: PTH101 as few imports as can be
        "reaching the network": lambda: socket.create_connection(("127.0.0.1", port), timeout=1),
        "opening sockets": _open_sockets,
        "sending through a pair of sockets": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
        "opening sockets by io_uring": lambda: _call(425, 425, 8, ctypes.create_string_buffer(256)),
        "locking files of the system": _lock_files,
        "signalling its grader": lambda: _signal_others(grader),
        "asking the kernel to signal its grader": lambda: fcntl.fcntl(1, fcntl.F_SETOWN, grader),
        "typing into a terminal": lambda: fcntl.ioctl(0, 0x5412, b"x"),
        "tracing its grader": lambda: _call(101, 117, 0x4206, grader, 0, 0),
        "changing its grader's limits": lambda: resource.prlimit(grader, resource.RLIMIT_CORE),
        "slowing others down": lambda: os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0)),
        "starting processes without end": lambda: _start_processes(2 * most_processes),
        "keeping rights": lambda: os.chroot("/"),
        "making namespaces": lambda: _call(272, 97, 0x10000000),
        "calls of other machines": _foreign_calls,
    }
    return [name for name, attempt in tried.items() if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _any_of(attempts: list[Callable[[], object]]) -> None:
    found = [_succeeds(attempt) for attempt in attempts]
    if True not in found:
        raise OSError


def _call(on_x86: int, on_arm: int, *arguments: object) -> int:
    found: int = LIBRARY.syscall(on_x86 if ON_X86 else on_arm, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return found


def _inherited() -> None:
    _any_of([lambda number=number: os.fstat(number) for number in range(OWN_DESCRIPTORS, 1024)])  # type: ignore[misc]


def _open_sockets() -> None:
    """Try every family: a socket that cannot be opened can neither connect nor listen. Raises OSError."""
    for each in itertools.product(FAMILIES, TYPES, PROTOCOLS):
        if _succeeds(lambda: os.close(_call(41, 198, *each))):  # noqa: B023 called at once
            return
    raise OSError


def _lock_files() -> None:
    file = os.open(os.__file__, os.O_RDONLY)
    try:
        _any_of(
            [
                lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB),
                lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB),
                lambda: fcntl.fcntl(file, 37, ctypes.string_at(ctypes.create_string_buffer(32), 32)),
                lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK),
                lambda: fcntl.fcntl(file, fcntl.F_NOTIFY, 0),
            ]
        )
    finally:
        os.close(file)


def _signal_others(grader: int) -> None:
    """Signal the processes above: the grader, the driver, the first process, all. Signal 0 only tests permission. Raises OSError."""
    _any_of([lambda process=process: _signal_one(process) for process in (grader, os.getppid(), 1)])  # type: ignore[misc]


def _signal_one(process: int) -> None:
    nothing = ctypes.create_string_buffer(128)
    _any_of(
        [
            lambda: os.kill(process, 0),
            lambda: _call(200, 130, process, 0),
            lambda: _call(234, 131, process, process, 0),
            lambda: _call(129, 138, process, 0, nothing),
            lambda: _call(424, 424, os.pidfd_open(process), 0, None, 0),
            lambda: os.kill(-1, 0),
            lambda: os.kill(0, 0),
        ]
    )


def _foreign_calls() -> None:
    """`socket` by the numbers of x32 and of i386, which run on the same machine. Raises OSError."""
    if not ON_X86:
        raise OSError
    _any_of([lambda: _survives(lambda: _call(0x40000000 + 41, 0, 1, 1, 0)), lambda: _survives(_by_interrupt)])


def _by_interrupt() -> None:
    """Push rbx; mov eax, 359; mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80; pop rbx; ret. Raises OSError."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3"))
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() < 0:
        raise OSError


def _survives(attempt: Callable[[], object]) -> None:
    """Try it in a child process, because some filters kill. Raises OSError if the child fails."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _succeeds(attempt) else 1)
    if os.waitpid(child, 0)[1]:
        raise OSError


def _start_processes(count: int) -> None:
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _meeting_points(port: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Channels between two programs: how one leaves something, and how the other finds it. Both raise OSError."""
    here, abstract, shared, temporary = ("127.0.0.1", port), "\0" + NAME, "/dev/shm/" + NAME, "/tmp/" + NAME  # noqa: S108 that is the question
    created = 0o1000 | 0o2000 | 0o666  # create, and fail if it exists
    file, writing = os.open(os.__file__, os.O_RDONLY), os.O_CREAT | os.O_WRONLY
    return {
        "a port": (lambda: HELD.append(socket.create_server(here)), lambda: socket.create_connection(here, timeout=1)),
        "an abstract socket": (
            lambda: _listen(socket.socket(socket.AF_UNIX), abstract),
            lambda: socket.socket(socket.AF_UNIX).connect(abstract),
        ),
        "shared memory": (
            lambda: _call(29, 194, KEY, 4096, created),
            lambda: _call(31, 195, _call(29, 194, KEY, 0, 0), 0, None),
        ),
        "a queue of messages": (
            lambda: _call(68, 186, KEY, created),
            lambda: _call(71, 187, _call(68, 186, KEY, 0), 0, None),
        ),
        "a named queue": (
            lambda: _call(240, 180, NAME.encode(), 0o102, 0o666, None),
            lambda: _call(241, 181, NAME.encode()),
        ),
        "a keyring": (
            lambda: _call(248, 217, b"user", NAME.encode(), b"x", 1, -4),
            lambda: _call(250, 219, 21, _call(250, 219, 10, -4, b"user", NAME.encode(), 0)),
        ),
        "a lock": (lambda: fcntl.flock(file, fcntl.LOCK_EX), lambda: _find_locked(file)),
        "a file in memory": (lambda: os.open(shared, writing), lambda: os.unlink(shared)),  # noqa: PTH108 as few imports as can be
        "a temporary file": (lambda: os.open(temporary, writing), lambda: os.unlink(temporary)),  # noqa: PTH108 as above
        "each other's numbers": (lambda: None, _find_others),
        "the time of /dev/null": (lambda: os.utime("/dev/null"), lambda: _is_new("/dev/null")),
    }


HELD: list[object] = []
"""Sockets that stay open until the program ends."""


def _listen(server: socket.socket, address: str) -> None:
    server.bind(address)
    server.listen()
    HELD.append(server)


def _find_locked(file: int) -> None:
    """Find a lock by failing to take it. Raises OSError if the file is not locked, or locks do not work."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    fcntl.flock(file, fcntl.LOCK_UN)
    raise OSError


def _find_others() -> None:
    own = os.getpid()
    others = {*range(max(2, own - 100), own + 100)} - {own, os.getppid()}
    _any_of([lambda number=number: os.kill(number, 0) for number in others])  # type: ignore[misc]


def _is_new(path: str) -> None:
    if time.time() - os.stat(path).st_mtime > 5:  # noqa: PTH116, PLR2004 as few imports as can be
        raise OSError


def leave(port: int, seconds: float) -> list[str]:
    """Leave something in each channel, and stay for `seconds`. Returns the channels that worked."""
    found = [name for name, (left, _) in _meeting_points(port).items() if _succeeds(left)]
    time.sleep(seconds)
    return found


def find(port: int, seconds: float) -> list[str]:
    """The channels where another program's mark was found within `seconds`."""
    points = _meeting_points(port)
    found: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found += [name for name, (_, seek) in points.items() if name not in found and _succeeds(seek)]
        time.sleep(0.05)
    return found


def shows(paths: list[str]) -> list[str]:
    """The paths whose existence it can see, by `stat` or by a refused permission."""
    found = []
    for path in paths:
        try:
            os.stat(path)  # noqa: PTH116 as few imports as can be
        except PermissionError:
            pass
        except OSError:
            continue
        found.append(path)
    return found
