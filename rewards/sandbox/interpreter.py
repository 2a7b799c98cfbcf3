"""The Python that runs inside, and the paths that it must be able to read."""

from __future__ import annotations

import functools
import marshal
import os
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from rewards.sandbox.filter import program_of

_START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv[1])))"


class Interpreter(NamedTuple):
    """The command that starts the driver, and the paths that it reads. The command's last word is the filter in hex."""

    command: tuple[str, ...]
    readable: tuple[str, ...]


@functools.cache
def interpreter() -> Interpreter:
    """The interpreter of this process, without its environment, its site packages and its user's settings.

    Raises:
        Unavailable: there is no filter for this machine.
    """
    binary = os.path.realpath(sys.executable)
    source = (Path(__file__).parent / "driver.py").read_text()
    # Compiled once here, by the same interpreter. It takes a millisecond, which every run would pay.
    driver = marshal.dumps(compile(source, "<driver>", "exec", dont_inherit=True, optimize=2)).hex()
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    shared = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")  # noqa: PTH118 both may be empty
    wanted = (
        binary,
        paths["stdlib"],
        paths["platstdlib"],
        shared,
        "/usr/lib",
        "/usr/lib64",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
        "/dev/null",
    )
    readable = tuple(dict.fromkeys(path for path in wanted if os.path.lexists(path)))
    return Interpreter((binary, "-I", "-S", "-c", _START, driver, program_of().hex()), readable)
