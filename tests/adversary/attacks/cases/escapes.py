"""Programs that want out. Each returns True if it got what it wanted; `outside` ones do so where there are no walls."""

from __future__ import annotations

from typing import NamedTuple


class Escape(NamedTuple):
    """`f(world)`, as its lines. `outside`: harmless enough to be run without a sandbox, to see that it works."""

    lines: str
    outside: bool = False
    but: str = ""
    """The one sandbox that is not meant to stop it."""

    @property
    def source(self) -> str:
        """The program: a function `f(world)` that returns True if it got out."""
        body = "\n".join("    " + line for line in self.lines.strip().split("\n"))
        return f"import os, sys\ndef f(world):\n{body}\n"


def syscall(number: int, *arguments: str) -> str:
    """True if the kernel lets it."""
    given = ", ".join((str(number), *arguments))
    return f"import ctypes\nreturn ctypes.CDLL(None, use_errno=True).syscall({given}) >= 0"


ESCAPES = {
    "read a secret file": Escape('return open(world["secret"]).read() == "secret"', outside=True),
    "read it by the root of its own process": Escape(
        'return open("/proc/self/root" + world["secret"]).read() == "secret"', outside=True
    ),
    "learn how large a file is": Escape('return os.stat(world["secret"]).st_size == 6', outside=True, but="sandlock"),
    "learn that a file is there": Escape(
        """
try:
    os.stat("/etc/shadow")
except PermissionError:
    pass
except OSError:
    return False
return True
""",
        outside=True,
        but="sandlock",
    ),
    "learn which processes there are": Escape(
        "os.stat(f\"/proc/{world['grader']}\")\nreturn True", outside=True, but="sandlock"
    ),
    "list a folder": Escape('return "secret" in os.listdir(world["folder"])', outside=True),
    "read /etc/shadow": Escape('return bool(open("/etc/shadow").read())'),
    "read the environment of its grader": Escape(
        'return bool(open(f"/proc/{world[\'grader\']}/environ", "rb").read())', outside=True
    ),
    "read the memory of its grader": Escape(
        "open(f\"/proc/{world['grader']}/maps\").read()\nreturn True", outside=True
    ),
    "list processes": Escape('return str(world["grader"]) in os.listdir("/proc")', outside=True),
    "read the source of its grader": Escape('return "VERSION" in open(world["source"]).read()', outside=True),
    "read an inherited descriptor": Escape(
        """
for number in range(3, 64):
    try:
        if os.pread(number, 6, 0) == b"secret":
            return True
    except OSError:
        pass
return False
"""
    ),
    "see the environment": Escape('return bool(os.environ.keys() - {"LC_CTYPE", "PWD", "OLDPWD"})', outside=True),
    "connect to a listener on this machine": Escape(
        'import socket\nsocket.create_connection(("127.0.0.1", world["tcp"]), timeout=1).close()\nreturn True',
        outside=True,
    ),
    "connect out": Escape(
        """
import errno, socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=0.5)
except OSError as error:
    return error.errno not in (errno.EPERM, errno.EACCES, errno.ENETUNREACH)
return True
"""
    ),
    "send a datagram": Escape(
        """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(b"x", ("127.0.0.1", world["udp"]))
return world["is_bare"]
""",
        outside=True,
    ),
    "connect to a unix socket": Escape(
        'import socket\nwith socket.socket(socket.AF_UNIX) as client:\n    client.connect(world["unix"])\nreturn True',
        outside=True,
    ),
    "connect to an abstract unix socket": Escape(
        "import socket\nwith socket.socket(socket.AF_UNIX) as client:\n"
        '    client.connect("\\0" + world["abstract"])\nreturn True',
        outside=True,
    ),
    "listen": Escape('import socket\nwith socket.create_server(("127.0.0.1", 0)):\n    return True', outside=True),
    "signal its grader": Escape('os.kill(world["grader"], 0)\nreturn True', outside=True),
    "trace its grader": Escape(syscall(101, "0x4206", 'world["grader"]', "0", "0")),
    "read its grader's memory by a call": Escape(
        """
import ctypes, errno
own = (ctypes.c_char * 8)()
here = (ctypes.c_uint64 * 2)(ctypes.addressof(own), 8)
there = (ctypes.c_uint64 * 2)(4096, 8)
done = ctypes.CDLL(None, use_errno=True).syscall(310, world["grader"], here, 1, there, 1, 0)
return done >= 0 or ctypes.get_errno() == errno.EFAULT
""",
    ),
    "change its grader's limits": Escape(
        'import resource\nresource.prlimit(world["grader"], resource.RLIMIT_CORE, (0, 0))\nreturn True', outside=True
    ),
    "slow its grader down": Escape('os.setpriority(os.PRIO_PROCESS, world["grader"], 1)\nreturn True'),
    "pin its grader to a core": Escape('os.sched_setaffinity(world["grader"], {0})\nreturn True'),
    "write a file": Escape('open(world["folder"] + "/written", "w").write("x")\nreturn True', outside=True),
    "write where programs may write": Escape(
        """
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", ".", "/", "/dev", "/mnt", "/home", os.path.expanduser("~")):
    try:
        with open(os.path.join(folder, world["marker"]), "wb") as file:
            file.write(bytes(1000))
            file.flush()
            os.unlink(file.name)
            return True
    except OSError:
        pass
return False
""",
        outside=True,
    ),
    "follow a symbolic link of its own": Escape(
        'link = world["folder"] + "/link"\nos.symlink(world["secret"], link)\nreturn open(link).read() == "secret"',
        outside=True,
    ),
    "make a hard link": Escape('os.link(world["secret"], world["folder"] + "/hard")\nreturn True', outside=True),
    "rename a file": Escape(
        'os.rename(world["secret"], world["secret"] + "2")\nos.rename(world["secret"] + "2", world["secret"])\n'
        "return True",
        outside=True,
    ),
    "truncate a file": Escape('os.truncate(world["secret"], 6)\nreturn True', outside=True),
    "make a file anybody's and setuid": Escape('os.chmod(world["secret"], 0o4777)\nreturn True', outside=True),
    "give a file away": Escape(
        'os.chown(world["secret"], os.stat(world["secret"]).st_uid, 65534)\nreturn True', outside=True
    ),
    "change the time of a file": Escape('os.utime(world["secret"], (0, 0))\nreturn True', outside=True),
    "change the attributes of a file": Escape('os.setxattr(world["secret"], "user.x", b"x")\nreturn True'),
    "change the standard library": Escape('open(os.__file__, "r+b").close()\nreturn True', outside=True),
    "add a package": Escape(
        'path = os.path.join(os.path.dirname(os.__file__), "site-packages")\n'
        "return bool(open(os.path.join(path, world['marker'] + '.py'), 'w'))"
    ),
    "fill memory that is a file": Escape(
        """
file = os.memfd_create("x")
for _ in range(100):
    os.write(file, bytes(2**20))
return os.fstat(file).st_size > 2**20
""",
        outside=True,
    ),
    "open devices": Escape(
        """
for device in ("/dev/tty", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/ptmx"):
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK))
        return True
    except OSError:
        pass
return False
"""
    ),
    "become root": Escape("os.setuid(0)\nreturn not world['is_bare'] and open('/etc/shadow').read() != ''"),
    "change its root": Escape('os.chroot("/dev")\nreturn True'),
    "make a user namespace": Escape(syscall(272, "0x10000000")),
    "make a mount namespace": Escape(syscall(272, "0x00020000")),
    "mount": Escape(syscall(165, 'b"x"', 'b"/"', 'b"tmpfs"', "0", "0")),
    "load a program into the kernel": Escape(syscall(321, "0", "(ctypes.c_uint32 * 32)(2, 4, 4, 1)", "128")),
    "use io_uring": Escape(syscall(425, "8", "(ctypes.c_char * 256)()")),
    "use the session's keyring": Escape(syscall(248, 'b"user"', 'b"a"', 'b"b"', "1", "-3")),
    "watch page faults": Escape(syscall(323, "0")),
    "count events": Escape(syscall(298, "(ctypes.c_uint32 * 32)(1, 128)", "0", "-1", "-1", "0")),
    "open a file by its handle": Escape(syscall(304, "-100", "(ctypes.c_uint32 * 4)(8, 1, 2, 0)", "0")),
    "set the clock": Escape(syscall(227, "0", "(ctypes.c_uint64 * 2)(1, 0)")),
    "switch address randomisation off": Escape(syscall(135, "0x0040000")),
}

BOMBS = {
    "forks": "while True:\n    os.fork()",
    "forks that ignore errors": "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "threads": "import threading, time\nthreading.stack_size(32768)\nwhile True:\n    threading.Thread(target=time.sleep, args=(99,)).start()",
    "six gigabytes": "return len(bytearray(6 * 2**30))",
    "memory by and by": "kept = []\nwhile True:\n    kept.append(bytes(2**22))",
    "memory of many processes": "for _ in range(3):\n    os.fork()\nkept = []\nwhile True:\n    kept.append(bytearray(os.urandom(2**12)) * 2**8)",
    "spinning": "while True:\n    pass",
    "spinning against signals": "import signal\nfor number in (1, 2, 15, 24, 30):\n    signal.signal(number, signal.SIG_IGN)\nwhile True:\n    pass",
    "sleeping": "import time\ntime.sleep(99)",
    "stopping itself": "os.kill(os.getpid(), 19)",
    "closing all and spinning": "os.closerange(0, 64)\nwhile True:\n    pass",
    "flooding its output": "while True:\n    print('x' * 1000)",
    "flooding its errors": "while True:\n    os.write(2, b'x' * 4096)",
    "flooding every descriptor": "while True:\n    for number in range(64):\n        try:\n            os.write(number, b'x' * 4096)\n        except OSError:\n            pass",
    "returning a lot": "return 'x' * 2**22",
    "returning something deep": "value = []\nfor _ in range(10**5):\n    value = [value]\nreturn value",
    "recursion without end": "sys.setrecursionlimit(10**9)\nreturn f(world)",
    "opening without end": "kept = []\nwhile True:\n    kept.append(open('/dev/null'))",
    "children for its grader": (
        "import ctypes\nnumber = 0\nwhile number < 200:\n"
        "    child = ctypes.CDLL(None).syscall(56, 0x8000 | 17, 0, 0, 0, 0)\n"
        "    if child == 0:\n        os._exit(0)\n    number += child > 0\nraise SystemExit(1)"
    ),
    "an orphan that works on": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'while True: pass #' + world['marker']])\n"
        "    os._exit(0)\nimport time\ntime.sleep(0.2)\nraise SystemExit(1)"
    ),
    "a process group of its own": (
        "if os.fork() == 0:\n    os.setsid()\n"
        "    os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'while True: pass #' + world['marker']])\n"
        "import time\ntime.sleep(99)"
    ),
}
"""All are the model's fault, and nothing of them is left."""
