"""The sandbox with only `unshare` of util-linux: a script that does the same as bubblewrap, slower."""

from __future__ import annotations

import os

from rewards.sandbox.command import CommandSandbox, readable, tool

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


def namespaces_sandbox() -> CommandSandbox:
    """Raises Unavailable if a tool is missing."""
    as_root = os.geteuid() == 0
    prefix = [
        tool("unshare", "install util-linux"),
        *(() if as_root else ("--user", "--map-root-user")),
        *("--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private", "--fork", "--kill-child"),
        *("/bin/sh", "-c", _SCRIPT, "sh", *readable(), "--"),
    ]
    return CommandSandbox("namespaces", prefix)
