"""The first code that runs inside the sandbox: it reads one request and becomes the program.

Millrace never imports it: `port.py` compiles it. In: eight digits, that many bytes of `marshal`, then the program's standard
input. Out, on the original standard output: "+" when all is ready; then for a function call the nonce and the value as JSON, for a
script its output. It imports only built-in modules and what the filter needs, because the start is most of a run's cost.
"""

import marshal
import os
import sys

NOT_INSTALLED = 91
SET_SECCOMP, MODE_FILTER, SET_NO_NEW_PRIVS = 22, 2, 38
"""linux/prctl.h and linux/seccomp.h."""
CLOSE_RANGE = 436
"""The call's number on every machine."""
FIRST, OUTER = 0x7FFFFFFE, 0x7FFFFFFD
"""As in `filter.py`."""


def read_exactly(size: int) -> bytes:
    """Reads without a buffer, because the rest of the input belongs to the program."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 16))
        if not part:
            sys.exit(90)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def close_doors(instructions: bytes, first: int, outer: int) -> None:
    """Close all descriptors except the pipes, and install the filter for this process and all its children.

    `first` and `outer` are the ids of our own processes. It uses `_ctypes`, because importing `ctypes` takes three milliseconds.
    """
    try:
        from _ctypes import call_function, dlopen, dlsym  # noqa: PLC0415 it may be missing
    except ImportError as error:
        refuse(str(error))
    library = dlopen(None, 0)  # type: ignore[arg-type]  # the process itself
    if call_function(dlsym(library, "syscall"), (CLOSE_RANGE, 3, -1, 0)):
        os.closerange(3, 4096)  # an older kernel
    for stands_for, process in ((FIRST, first), (OUTER, outer)):
        instructions = instructions.replace(stands_for.to_bytes(4, "little"), process.to_bytes(4, "little"))
    # `struct sock_fprog`: their number and address. The content of a bytes object ends one byte before the object.
    where = id(instructions) + bytes.__basicsize__ - 1
    described = (len(instructions) // 8).to_bytes(8, "little") + where.to_bytes(8, "little")
    control = dlsym(library, "prctl")
    if call_function(control, (SET_NO_NEW_PRIVS, 1, 0, 0, 0)):
        refuse("no_new_privs was refused")
    if call_function(control, (SET_SECCOMP, MODE_FILTER, described)):
        refuse("seccomp was refused")


def refuse(reason: str) -> None:
    """End the process, because nothing may run without the filter."""
    os.write(2, ("the filter of system calls cannot be installed: " + reason).encode())
    os._exit(NOT_INSTALLED)


def become_child() -> None:
    """Let the program run in a child process.

    A program can leave its children to its own parent, which would be the grader, so this process stands between and collects
    them.
    """
    child = os.fork()
    if child == 0:
        return
    os.closerange(0, 3)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def allow_imports(names: list[str]) -> None:
    """Let the program import these modules alone; what they import is free. A rule for answers: the filter is what keeps programs in."""
    builtins = sys.modules["builtins"].__dict__
    usual, own = builtins["__import__"], globals()

    def imported(name: str, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]  # noqa: A002, ANN001, ANN202
        is_program = globals is not None and globals is not own and globals.get("__name__") == "__main__"
        if is_program and name.split(".", maxsplit=1)[0] not in names:
            raise ImportError(name + " may not be imported; this task allows " + (", ".join(names) or "nothing"))
        return usual(name, globals, locals, fromlist, level)

    builtins["__import__"] = imported


def function_named(name: str, program: dict[str, object]) -> object:
    """The program's function, or the method of its class `Solution`."""
    if name not in program and hasattr(program.get("Solution"), name):
        return getattr(program["Solution"](), name)  # type: ignore[operator]
    return program[name]


def as_json(value: object) -> str:
    """The value as JSON. Exact types only, because a subclass can pretend any value."""
    kind = type(value)
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if kind is int:
        return int.__repr__(value)
    if kind is float and value - value == 0.0:  # type: ignore[operator]
        return float.__repr__(value)
    if kind is str:
        return quote(value)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        return "[" + ",".join([as_json(item) for item in value]) + "]"  # type: ignore[attr-defined]
    if kind is dict and all(type(key) is str for key in value):  # type: ignore[attr-defined]
        pairs = [quote(key) + ":" + as_json(item) for key, item in value.items()]  # type: ignore[attr-defined]
        return "{" + ",".join(pairs) + "}"
    raise TypeError("the value is not JSON: " + (repr(value) if kind is float else kind.__name__))


def quote(text: str) -> str:
    """A JSON string in ASCII."""
    try:
        from _json import encode_basestring_ascii  # noqa: PLC0415 only for texts
    except ImportError:
        from json.encoder import encode_basestring_ascii  # noqa: PLC0415 as above
    return encode_basestring_ascii(text)


def main() -> None:
    """Serve one request."""
    nonce, source, function, arguments, imports = marshal.loads(read_exactly(int(read_exactly(8))))  # noqa: S302 the grader wrote it
    outer, first = os.getppid(), os.getpid()
    become_child()
    close_doors(bytes.fromhex(sys.argv[2]), first, outer)
    channel = 1
    if function is not None:
        # Keep the program's output apart from its return value.
        channel = os.dup(1)
        os.dup2(2, 1)
    sys.modules["builtins"].__dict__.update(
        exit=sys.exit, quit=sys.exit
    )  # a script may expect them, `-S` left them out
    if imports is not None:
        allow_imports(imports)
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    os.write(channel, b"+")
    exec(compile(source, "<answer>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 what we are here for
    if function is None:
        return
    value = function_named(function, module.__dict__)(*arguments)  # type: ignore[operator]
    answer = (nonce + as_json(value)).encode()
    while answer:
        answer = answer[os.write(channel, answer) :]
    os._exit(0)


if __name__ == "__main__":
    main()
