"""The sandbox by `unshare` of util-linux alone: what bubblewrap does, by a script, slower."""

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
# Whoever started us keeps files to himself; another user has to enter these folders.
# `umount` looks into /proc, which goes with the old root.
# Not `exec`: the shell is the first process of its namespace, and it dies with us only as long as it changes no rights.


def namespaces_sandbox() -> CommandSandbox:
    """Raises Unavailable where a tool is missing."""
    as_root = os.geteuid() == 0
    prefix = [
        tool("unshare", "install util-linux"),
        *(() if as_root else ("--user", "--map-root-user")),
        *("--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private", "--fork", "--kill-child"),
        *("/bin/sh", "-c", _SCRIPT, "sh", *readable(), "--"),
    ]
    return CommandSandbox("namespaces", prefix)
