"""Programs that look for a way past a sandbox's own walls: sockets of every kind, locks, signals, and other tables of calls."""

from __future__ import annotations

from tests.adversary.attacks.cases.escapes import Escape, syscall


def _opens(family: str, kind: str, protocol: int = 0) -> Escape:
    """Whether such a socket can be opened. Most kernels have few of them without rights."""
    return Escape(
        f"import socket\nsocket.socket(socket.{family}, socket.{kind}, {protocol}).close()\nreturn True", outside=True
    )


def _locks(how: str) -> Escape:
    """A file that everybody reads."""
    return Escape(
        f"import fcntl, struct\nfile = os.open(os.__file__, os.O_RDONLY)\n{how}\nos.close(file)\nreturn True",
        outside=True,
    )


def _interrupt(code: str) -> str:
    """Machine code of x86-64, in a child, because the filter may kill it. The program returns True if the call succeeds."""
    return f"""
import ctypes, mmap
child = os.fork()
if child == 0:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex({code!r}))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    os._exit(0 if function() >= 0 else 1)
return os.waitpid(child, 0)[1] == 0
"""


def _made(made: str, removed: str) -> Escape:
    """By one system call; taken away again by another."""
    return Escape(
        f"import ctypes\ncall = ctypes.CDLL(None).syscall\nmade = call({made})\n"
        f"return made >= 0 and call({removed}) >= 0",
        outside=True,
    )


def _child(flags: int) -> Escape:
    """By `clone`."""
    return Escape(
        f"import ctypes\nmade = ctypes.CDLL(None).syscall(56, {flags} | 17, 0, 0, 0, 0)\n"
        "if made == 0:\n    os._exit(0)\nreturn made > 0",
        outside=True,
    )


DOORS = {
    "fetch its answer by MPTCP": Escape(
        'import socket\nclient = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\nclient.settimeout(1)\n'
        'client.connect(("127.0.0.1", world["tcp"]))\nreturn True',
        outside=True,
    ),
    "fetch its answer by TCP Fast Open": Escape(
        'import socket\nclient = socket.socket()\n'
        'return client.sendto(b"x", 0x20000000, ("127.0.0.1", world["tcp"])) == 1',
        outside=True,
    ),
    "listen by MPTCP": Escape(
        "import socket\nserver = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n"
        'server.bind(("127.0.0.1", 0))\nserver.listen()\nreturn True',
        outside=True,
    ),
    "listen by an abstract unix socket": Escape(
        'import socket\nserver = socket.socket(socket.AF_UNIX)\nserver.bind("\\0" + world["marker"] + "2")\n'
        "server.listen()\nreturn True",
        outside=True,
    ),
    "send from a pair of datagram sockets": Escape(
        'import socket\none, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\none.bind("\\0" + world["marker"] + "3")\n'
        "return True",
        outside=True,
    ),
    "ask netlink for the network cards": Escape(
        "import socket, struct\nasking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\nasking.settimeout(1)\n"
        'asking.send(struct.pack("=IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0))\nreturn len(asking.recv(65536)) > 0',
        outside=True,
    ),
    "hear of the kernel's events": Escape(
        "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15).bind((0, 0))\nreturn True", outside=True
    ),
    "open a vsock socket": Escape("import socket\nsocket.socket(40, socket.SOCK_STREAM)\nreturn True"),
    "open a raw socket": _opens("AF_INET", "SOCK_RAW", 1),
    "open a socket of packets": _opens("AF_PACKET", "SOCK_RAW", 0x0300),
    "open a socket of the kernel's ciphers": Escape("import socket\nsocket.socket(38, 5)\nreturn True"),
    "open an IPv6 socket": _opens("AF_INET6", "SOCK_STREAM"),
    "open a socket for datagrams": _opens("AF_INET", "SOCK_DGRAM"),
    "open a socket by the calls of i386": Escape(
        _interrupt("53b867010000bb01000000b90100000031d2cd805bc3"), outside=True
    ),
    "signal by the calls of i386": Escape(_interrupt("53b825000000bbffffffff31c9cd805bc3")),
    "open a socket by the calls of x32": Escape(
        "child = os.fork()\nif child == 0:\n    import ctypes\n"
        "    os._exit(0 if ctypes.CDLL(None).syscall(0x40000029, 1, 1, 0) >= 0 else 1)\n"
        "return os.waitpid(child, 0)[1] == 0"
    ),
    "lock a file of the system": _locks("fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
    "share a lock of a file of the system": _locks("fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)"),
    "lock an open file": _locks('fcntl.fcntl(file, 37, struct.pack("hhqqi4x", 0, 0, 0, 0, 0))'),
    "be told who writes to a file": _locks("fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)"),
    "be told who changes a folder": Escape(
        "import fcntl\nfile = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\n"
        "fcntl.fcntl(file, fcntl.F_NOTIFY, fcntl.DN_ACCESS)\nreturn True",
        outside=True,
    ),
    "watch a folder": Escape(syscall(294, "0"), outside=True),
    "signal its parent": Escape("os.kill(os.getppid(), 0)\nreturn True", outside=True),
    "signal everybody": Escape("os.kill(-1, 0)\nreturn True", outside=True),
    "signal its group": Escape("os.kill(0, 0)\nreturn True", outside=True),
    "signal a thread of its parent": Escape(syscall(200, "os.getppid()", "0"), outside=True),
    "signal its grader's thread": Escape(syscall(234, 'world["grader"]', 'world["grader"]', "0"), outside=True),
    "queue a signal for its parent": Escape(
        syscall(129, "os.getppid()", "0", "(ctypes.c_int * 32)(0, 0, -1)"), outside=True
    ),
    "signal by a handle of its parent": Escape(
        "import signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)\nreturn True", outside=True
    ),
    "have the kernel signal its grader": Escape(
        'import fcntl\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, world["grader"])\nreturn True', outside=True
    ),
    "make its parent bear its children": _child(0x8000),
    "slow everybody down": Escape(syscall(141, "2", "0", "0"), outside=True),
    "make shared memory": _made("29, 0, 4096, 0x3b6", "31, made, 0, 0"),
    "make a queue of messages": _made("68, 0, 0x3b6", "71, made, 0, 0"),
    "make semaphores": _made("64, 0, 1, 0x3b6", "66, made, 0, 0"),
    "make a named queue": _made('240, b"millrace-2", 0x42, 0x1b6, 0', '241, b"millrace-2"'),
    "join another's namespace": Escape(syscall(308, "0", "0")),
    "make a namespace by a child": _child(0x10000000),
    "change the attributes of a file by a new call": Escape(
        "import ctypes\nvalue = ctypes.create_string_buffer(b'x')\ngiven = (ctypes.c_uint64 * 2)(ctypes.addressof(value), 1)\n"
        'return ctypes.CDLL(None).syscall(463, -100, world["secret"].encode(), 0, b"user.x", given, 16) == 0'
    ),
    "set attributes by a new call": Escape(syscall(469, "-100", 'b"/dev/null"', "0", "24", "0")),
    "touch what everybody has": Escape('os.utime("/dev/null")\nreturn True', outside=True),
}  # fmt: skip

_MPTCP = "import socket, time\none = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n"
_PAIR = "import socket, time\none, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
_LOCK = "import fcntl, time\nfile = os.open(os.__file__, os.O_RDONLY)\n"


def _until(condition: str, error: str) -> str:
    """Lines that try for half a second."""
    return (
        f"for _ in range(25):\n    try:\n        {condition}\n    except {error}:\n        pass\n    time.sleep(0.02)\n"
        "return False"
    )


MEETINGS = {
    "a port of MPTCP": (
        Escape(_MPTCP + 'one.bind(("127.0.0.1", world["free"]))\none.listen()\ntime.sleep(0.8)\nreturn True'),
        Escape(_MPTCP + _until('one.connect(("127.0.0.1", world["free"])); return True', "OSError")),
    ),
    "an abstract socket of a pair": (
        Escape(_PAIR + 'one.bind("\\0" + world["marker"])\ntime.sleep(0.8)\nreturn True'),
        Escape(_PAIR + _until('one.sendto(b"x", "\\0" + world["marker"]); return True', "ConnectionRefusedError")),
    ),
    "a lock": (
        Escape(_LOCK + "fcntl.flock(file, fcntl.LOCK_EX)\ntime.sleep(0.8)\nreturn True"),
        Escape(
            _LOCK
            + _until(
                "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB); fcntl.flock(file, fcntl.LOCK_UN)",
                "BlockingIOError:\n        return True\n    except PermissionError",
            )
        ),
    ),
}
"""What one run leaves, and how another finds it."""
