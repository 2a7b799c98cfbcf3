"""Sandboxes that are a command line in front of the interpreter's: bubblewrap, and plain namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from contracts.errors import Unavailable
from rewards.sandbox.port import BY_SIGNAL, OWN_PROCESSES, Ran, SandboxBroken, SandboxLimits, interpreter, pump

_GRACE_SECONDS = 5.0
_NOBODY = "65534"
_REMEDY = "install util-linux"
_SCRIPT = """
set -e
umask 022
cd /
mount -t tmpfs -o size=64k,mode=755 tmpfs /mnt
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "/mnt$1"; else mkdir -p "/mnt${1%/*}"; : > "/mnt$1"; fi
    mount --bind "$1" "/mnt$1"
    if [ "$1" != /dev/null ]; then mount -o remount,bind,ro,nosuid "/mnt$1"; fi
    shift
done
shift
mkdir /mnt/old
ln -s old/proc /mnt/proc
mount -o remount,bind,ro /mnt
cd /mnt
pivot_root . old
/old/usr/bin/umount -l /old
set +e
"$@"
exit $?
"""
# umask: another user has to enter these folders, even if our own umask forbids it.
# ln: `umount` reads /proc, which disappears with the old root.
# No `exec`: the shell is the first process of its namespace. It dies with us only if it does not change its rights.


class CommandSandbox:
    """Runs `prefix`, then the commands that drop rights and set limits, then the interpreter. The memory limit applies to each process."""

    def __init__(self, name: str, prefix: list[str]) -> None:
        self.name = name
        self._prefix = prefix

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """See `Sandbox`."""
        try:
            process = subprocess.Popen(  # noqa: S603 our own command
                [*self._prefix, *_lowered(limits), *interpreter().command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={},
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxBroken(f"{self.name} could not start a process: {error}") from error
        with process:
            try:
                ran = pump(process, stdin, limits)
            finally:
                process.kill()
                code = process.wait(_GRACE_SECONDS)
        return ran._replace(exit_code=code if code >= 0 else BY_SIGNAL - code)


def bubblewrap_sandbox() -> CommandSandbox:
    """A root folder with the interpreter and nothing else, in new namespaces. Raises Unavailable if a tool is missing."""
    as_root = os.geteuid() == 0
    prefix = [
        _tool("bwrap", "apt install bubblewrap"),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--clearenv", "--chdir", "/"),
        *("--cap-drop", "ALL"),
        # Root has to become another user inside. Any other user already gets an own user namespace.
        *(("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if as_root else ("--unshare-user",)),
    ]
    paths = _readable()
    for folder in sorted({str(parent) for path in paths for parent in Path(path).parents if str(parent) != "/"}):
        # By default, bubblewrap's folders are open to their owner only.
        prefix += ["--perms", "0755", "--dir", folder]
    for path in paths:
        prefix += ["--dev-bind" if path == "/dev/null" else "--ro-bind", path, path]
    return CommandSandbox("bubblewrap", [*prefix, "--remount-ro", "/", "--"])


def namespaces_sandbox() -> CommandSandbox:
    """Does the same as bubblewrap with only `unshare` of util-linux, slower. Raises Unavailable if a tool is missing."""
    as_root = os.geteuid() == 0
    prefix = [
        _tool("unshare", _REMEDY),
        *(() if as_root else ("--user", "--map-root-user")),
        *("--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private", "--fork", "--kill-child"),
        *("/bin/sh", "-c", _SCRIPT, "sh", *_readable(), "--"),
    ]
    return CommandSandbox("namespaces", prefix)


def _tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed; {remedy}")
    return os.path.realpath(found)


def _readable() -> list[str]:
    """Paths that must be visible inside, including the tools of `_lowered`."""
    return [*interpreter().readable, *(_tool(name, _REMEDY) for name in ("prlimit", "setpriv", "unshare"))]


def _lowered(limits: SandboxLimits) -> list[str]:
    """Commands that drop rights and set the kernel's limits. Processes are counted per user and user namespace, so it makes a new one."""
    options = [f"--{name.removeprefix('RLIMIT_').lower()}={value}" for name, value in limits.by_kernel().items()]
    processes = f"--nproc={limits.processes + OWN_PROCESSES}"
    chain = [_tool("unshare", _REMEDY), "--user", _tool("prlimit", _REMEDY), processes, *options]
    if os.geteuid() == 0:
        # The kernel does not count the processes of user 0, in any namespace.
        user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all"]
        chain = [_tool("setpriv", _REMEDY), *user, *chain]
    return chain
