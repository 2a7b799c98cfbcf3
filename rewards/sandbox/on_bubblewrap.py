"""The sandbox with `bubblewrap`: namespaces, and a root folder with the interpreter and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from rewards.sandbox.command import CommandSandbox, readable, tool


def bubblewrap_sandbox() -> CommandSandbox:
    """Raises Unavailable if a tool is missing."""
    as_root = os.geteuid() == 0
    prefix = [
        tool("bwrap", "apt install bubblewrap"),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--clearenv", "--chdir", "/"),
        *("--cap-drop", "ALL"),
        # Root has to become another user inside. Any other user already gets an own user namespace.
        *(("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if as_root else ("--unshare-user",)),
    ]
    paths = readable()
    for folder in sorted({str(parent) for path in paths for parent in Path(path).parents if str(parent) != "/"}):
        # By default, bubblewrap's folders are open to their owner only.
        prefix += ["--perms", "0755", "--dir", folder]
    for path in paths:
        prefix += ["--dev-bind" if path == "/dev/null" else "--ro-bind", path, path]
    return CommandSandbox("bubblewrap", [*prefix, "--remount-ro", "/", "--"])
