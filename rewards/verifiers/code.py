"""`code`: the program in the first fenced block of the answer gives the expected value for each input.

`metadata.reference` holds both (`rewards.sandbox.programs` has the format). A function may be a method of `class Solution`. Each input
runs in a process of its own, in a sandbox, which gets only that input; the result is compared here, outside. Failures of the program
are the model's fault; failures of the sandbox are ours.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from contracts.errors import InvalidTask, Unavailable
from contracts.tasks.section import TaskSection
from rewards.sandbox.choose import sandbox_named
from rewards.sandbox.port import Sandbox, SandboxBroken, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed, ProgramTest, Suite, read_suite, same, same_text
from rewards.verifiers.check import (
    Answer,
    BatchVerifier,
    Check,
    Context,
    after_reasoning,
    bad_reference,
    broken,
    read_config,
    right,
    unlabelled,
    wrong,
)
from weights.cores import num_cores

VERSION = 3
_NO_MODULE = "ModuleNotFoundError"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class CodeConfig(TaskSection):
    """Settings in the task file."""

    partial: bool = False
    """The value is the share of tests passed. Off by default, because a program can copy tests from the prompt."""
    tolerance: float = Field(default=0.0, ge=0, lt=1)
    """The accepted difference of two floats, relative or absolute."""
    sample_seconds: float = Field(default=30.0, gt=0, le=600)
    """The limit for all tests of an answer together. One test has the verifier's `deadline_seconds`."""
    memory_mb: int = Field(default=512, ge=64, le=16384)
    processes: int = Field(default=16, ge=1, le=256)
    output_bytes: int = Field(default=64 * 2**10, ge=1024, le=2**24)
    """The limit for standard output, for standard error, and for a value as JSON."""
    imports: tuple[str, ...] | None = None
    """The modules of Python's standard library that programs may import; by default all of them. The sandbox has no other packages."""
    sandbox: Literal["auto", "sandlock", "bubblewrap", "namespaces"] = "auto"

    @field_validator("imports")
    @classmethod
    def _in_the_library(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if odd := [name for name in names or () if name not in sys.stdlib_module_names]:
            raise ValueError(f"{odd[0]!r} is not a module of Python's standard library, and the sandbox has no others")
        return names


class ProgramGrader(NamedTuple):
    """Grades programs, one per call. Safe to use from many threads."""

    sandbox: Sandbox
    limits: SandboxLimits
    config: CodeConfig

    def grade(self, answer: Answer) -> Check:
        """Grade one answer."""
        if answer.reference is None:
            return unlabelled("no metadata.reference")
        try:
            suite = read_suite(answer.reference)
        except ValueError as error:
            return bad_reference(str(error))
        source = first_block(answer.text)
        if source is None:
            return wrong("no fenced block, or one that does not end")
        try:
            return self._run_all(Program(source, self.config.imports), suite)
        except SandboxBroken as error:
            return broken(error.message)

    def _run_all(self, program: Program, suite: Suite) -> Check:
        deadline = time.monotonic() + self.config.sample_seconds
        num_passed, problem = 0, ""
        for number, test in enumerate(suite.tests, 1):
            left = deadline - time.monotonic()
            if left <= 0:
                problem = problem or f"all tests together took longer than {self.config.sample_seconds:g} s"
                break
            limits = self.limits._replace(seconds=min(self.limits.seconds, left))
            found = self._run(program, suite.function, test, limits)
            num_passed += not found
            problem = problem or (f"test {number} of {len(suite.tests)}: {found}" if found else "")
            if found and not self.config.partial:
                break
        if not problem:
            return right()
        share = num_passed / len(suite.tests) if self.config.partial else 0.0
        return wrong(problem)._replace(value=share)

    def _run(self, program: Program, function: str | None, test: ProgramTest, limits: SandboxLimits) -> str:
        try:
            if function is None:
                passed = same_text(test.expected, program.feed(self.sandbox, test.given, limits))
            else:
                value = program.call(self.sandbox, function, test.given, limits)
                passed = same(test.expected, value, self.config.tolerance)
        except ProgramFailed as failure:
            said = str(failure)
            return f"{said}; there is Python's standard library alone" if said.startswith(_NO_MODULE) else said
        return "" if passed else "another value"


def build(
    config: Mapping[str, Any],
    context: Context = Context(),  # noqa: B008 immutable
    choose: Callable[[str], Sandbox] = sandbox_named,
) -> BatchVerifier:
    """See `Builder`. It raises InvalidTask if no sandbox works: code never runs without one."""
    wanted = read_config(CodeConfig, config)
    try:
        sandbox = choose(wanted.sandbox)
    except Unavailable as error:
        raise InvalidTask(error.message) from error
    limits = SandboxLimits(
        seconds=context.deadline_seconds,
        memory_bytes=wanted.memory_mb * 2**20,
        processes=wanted.processes,
        output_bytes=wanted.output_bytes,
    )
    judge = ProgramGrader(sandbox, limits, wanted)

    def check_all(answers: Sequence[Answer]) -> list[Check]:
        return list(_pool().map(judge.grade, answers))

    return after_reasoning(BatchVerifier(check_all))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """One pool for all tasks, because programs that wait for a core would only use up their time."""
    return ThreadPoolExecutor(num_cores(), thread_name_prefix="sandbox")


def first_block(text: str) -> str | None:
    """The text between the first fence and its closing fence, as in CommonMark; None if either is missing."""
    lines = [line + "\n" for line in text.split("\n")]
    for start, line in enumerate(lines):
        if (opening := _FENCE.match(line)) is None:
            continue
        fence, indent = opening[1], len(line) - len(line.lstrip(" "))
        for end in range(start + 1, len(lines)):
            closing = lines[end].strip()
            if len(closing) >= len(fence) and not closing.strip(fence[0]):
                inside = lines[start + 1 : end]
                return "".join(body[min(indent, len(body) - len(body.lstrip(" "))) :] for body in inside)
        return None
    return None
