"""The two ways to run an answer: call its function with one input, or run it as a script. Results are compared outside.

A run knows only its one input and a nonce. It never knows the expected value.
"""

from __future__ import annotations

import json
import marshal
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from rewards.sandbox.port import BY_SIGNAL, Ran, Sandbox, SandboxBroken, SandboxLimits

_READY = b"+"


class ProgramFailed(Exception):
    """The program gave no result, through its own fault. The message says how it ended."""


class Program(NamedTuple):
    """Python source, as the model wrote it."""

    source: str
    imports: Sequence[str] | None = None
    """The modules that it may import; None: any that the interpreter has."""

    def call(self, sandbox: Sandbox, function: str, arguments: Sequence[Any], limits: SandboxLimits) -> Any:
        """The value of `function(*arguments)`, in a process of its own; JSON values in, a JSON value out.

        Raises:
            ProgramFailed, SandboxBroken.
        """
        nonce = secrets.token_hex(16)
        request = self._request(nonce, function, list(arguments))
        answer = _output(_run(sandbox, request, limits), limits)
        if not answer.startswith(nonce.encode()):
            raise ProgramFailed(
                "it ended without returning a value" if not answer else "it wrote to the channel of the result"
            )
        try:
            return json.loads(answer[len(nonce) :], parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ProgramFailed("what it returned is not JSON") from error

    def feed(self, sandbox: Sandbox, text: str, limits: SandboxLimits) -> str:
        """The program's output with `text` as its standard input.

        Raises:
            ProgramFailed, SandboxBroken.
        """
        request = self._request("", None, [])
        ran = _run(sandbox, request + text.encode("utf-8", "surrogatepass"), limits)
        return _output(ran, limits).decode("utf-8", "replace")

    def _request(self, nonce: str, function: str | None, arguments: list[Any]) -> bytes:
        # The driver is the same interpreter, and has `marshal` without an import.
        imports = None if self.imports is None else list(self.imports)
        content = marshal.dumps([nonce, self.source, function, arguments, imports])
        return b"%08d" % len(content) + content


def _run(sandbox: Sandbox, stdin: bytes, limits: SandboxLimits) -> Ran:
    """Run, and once more if the driver was killed before it was ready, as under heavy load: nothing of the program had run."""
    ran = sandbox.run(stdin, limits)
    if ran.stdout.startswith(_READY) or ran.exit_code <= BY_SIGNAL:
        return ran
    return sandbox.run(stdin, limits)


def _output(ran: Ran, limits: SandboxLimits) -> bytes:
    """The output after the driver was ready. A failure before that cannot be the program's fault, because none of it had run."""
    if not ran.stdout.startswith(_READY):
        raise SandboxBroken(f"the interpreter did not start ({ran.ending}, {ran.exit_code}): {_last_line(ran.stderr)}")
    if ran.ending == "deadline":
        raise ProgramFailed(f"it took longer than {limits.seconds:g} s")
    if ran.ending == "flood":
        raise ProgramFailed(f"it wrote more than {limits.output_bytes} bytes")
    if ran.exit_code:
        ended = (
            f"it was killed by signal {ran.exit_code - BY_SIGNAL}"
            if ran.exit_code > BY_SIGNAL
            else f"it ended with {ran.exit_code}"
        )
        raise ProgramFailed(_last_line(ran.stderr) or ended)
    return ran.stdout[len(_READY) :]


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
