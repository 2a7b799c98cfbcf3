"""The two ways to run an answer, call its function or run it as a script; and its tests, whose results are compared outside.

A run knows only its one input and a nonce. It never knows the expected value.
"""

from __future__ import annotations

import json
import marshal
import math
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
        """The value of `function(*arguments)`, in a process of its own; JSON values in and out. Raises ProgramFailed, SandboxBroken."""
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
        """The program's output with `text` as its standard input. Raises ProgramFailed, SandboxBroken."""
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
    return ran if ran.stdout.startswith(_READY) or ran.exit_code <= BY_SIGNAL else sandbox.run(stdin, limits)


def _output(ran: Ran, limits: SandboxLimits) -> bytes:
    """The output after the driver was ready. A failure before that cannot be the program's fault, because none of it had run."""
    if not ran.stdout.startswith(_READY):
        raise SandboxBroken(f"the interpreter did not start ({ran.ending}, {ran.exit_code}): {_last_line(ran.stderr)}")
    if ran.ending == "deadline":
        raise ProgramFailed(f"it took longer than {limits.seconds:g} s")
    if ran.ending == "flood":
        raise ProgramFailed(f"it wrote more than {limits.output_bytes} bytes")
    if ran.exit_code:
        by_signal = ran.exit_code - BY_SIGNAL
        ended = f"it was killed by signal {by_signal}" if by_signal > 0 else f"it ended with {ran.exit_code}"
        raise ProgramFailed(_last_line(ran.stderr) or ended)
    return ran.stdout[len(_READY) :]


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class ProgramTest(NamedTuple):
    """One run. `given` is the list of arguments of a call, or the standard input of a script."""

    given: Any
    expected: Any


class Suite(NamedTuple):
    """All tests of a program. `function` is None for scripts. Held-out tests come last and count like the others."""

    function: str | None
    tests: tuple[ProgramTest, ...]


def read_suite(reference: str) -> Suite:
    """The suite of `metadata.reference`. Raises ValueError; the message says what the app must correct.

    `{"function": NAME, "tests": [[input, expected], ...], "held_out": [...]}`: an input that is a list holds the arguments, any
    other input is the only argument; so a function of one list has inputs like `[[1, 2, 3]]`.
    `{"stdin_tests": [[stdin, stdout], ...], "held_out": [...]}`: texts.
    """
    try:
        found = json.loads(reference, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"metadata.reference is not JSON: {error}") from error
    try:
        marshal.dumps(found)
    except ValueError as error:
        raise ValueError("metadata.reference is nested too deeply") from error
    if not isinstance(found, dict) or ("function" in found) == ("stdin_tests" in found):
        raise ValueError('metadata.reference needs "function" with "tests", or "stdin_tests"')
    visible = "tests" if "function" in found else "stdin_tests"
    if unknown := found.keys() - {"function", visible, "held_out"}:
        raise ValueError(f"metadata.reference has {sorted(unknown)}, which are unknown; remove them")
    function = found.get("function")
    if "function" in found and not (isinstance(function, str) and function.isidentifier()):
        raise ValueError(f"metadata.reference.function is {'null' if function is None else repr(function)}, not a name")
    tests: list[ProgramTest] = []
    for name in (visible, "held_out"):
        pairs = found.get(name, [])
        if not isinstance(pairs, list):
            raise ValueError(f"metadata.reference.{name} is not a list")  # noqa: TRY004 as for all that is wrong with it
        tests += [_test(f"{name}[{index}]", pair, function is None) for index, pair in enumerate(pairs)]
    if not tests:
        raise ValueError("metadata.reference has no tests")
    return Suite(function, tuple(tests))


def _test(place: str, pair: Any, is_script: bool) -> ProgramTest:
    match pair:
        case [str(), str()] if is_script:
            return ProgramTest(*pair)
        case [given, expected] if not is_script:
            return ProgramTest(given if isinstance(given, list) else [given], expected)
        case [_, _]:
            raise ValueError(f"metadata.reference.{place} is not a pair of texts")
    raise ValueError(f"metadata.reference.{place} is not a pair of input and expected")


def same(expected: Any, given: Any, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are equal, types included: true is not 1, and 1 is not 1.0. A tuple comes back as a list.

    Two floats may differ by `tolerance`, relative or absolute. It recurses only as deep as `expected`, which the app wrote.
    """
    if type(expected) is not type(given):
        return False
    if isinstance(expected, list):
        return len(expected) == len(given) and all(
            same(one, other, tolerance) for one, other in zip(expected, given, strict=True)
        )
    if isinstance(expected, dict):
        return expected.keys() == given.keys() and all(same(expected[key], given[key], tolerance) for key in expected)
    if isinstance(expected, float):
        return math.isclose(expected, given, rel_tol=tolerance, abs_tol=tolerance)
    return bool(expected == given)


def same_text(expected: str, given: str) -> bool:
    """Whether two outputs are equal line by line; white space at the end of lines and of the whole does not count."""
    return _lines(expected) == _lines(given)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
