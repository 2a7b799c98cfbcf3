"""`code`: which answers pass, which fail, and who owns each fault."""

from __future__ import annotations

import json
import time

import pytest

from contracts.errors import InvalidTask
from rewards.sandbox.choose import sandbox_named
from rewards.sandbox.port import Ran, SandboxBroken, SandboxLimits
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context
from rewards.verifiers.code import CodeConfig, ProgramGrader, build, first_block
from tests.unit.rewards.verifiers.tampers import HONEST, SUITE, TAMPERS

pytestmark = pytest.mark.slow

ECHO = json.dumps({"stdin_tests": [["3 4\n", "7\n"]], "held_out": [["10 -1\n", "9"]]})


@pytest.fixture(scope="module")
def verifier() -> BatchVerifier:
    built = build({}, Context(deadline_seconds=5.0))
    assert isinstance(built, BatchVerifier)
    return built


def fenced(source: str) -> str:
    return f"Here it is:\n\n```python\n{source}\n```\nDone."


def answer(source: str, reference: str = SUITE) -> Answer:
    return Answer(fenced(source), metadata={"reference": reference})


def check(source: str, reference: str = SUITE, **config: object) -> Check:
    built = build(config, Context(deadline_seconds=5.0))
    assert isinstance(built, BatchVerifier)
    return built.check_all([answer(source, reference)])[0]


def suite(*tests: tuple[object, object]) -> str:
    return json.dumps({"function": "f", "tests": tests})


def test_the_honest_program_passes() -> None:
    assert check(HONEST) == Check(1.0)


def test_the_battery_is_as_large_as_it_claims() -> None:
    assert len(TAMPERS) >= 30


@pytest.mark.parametrize("name", TAMPERS)
def test_a_tamper_earns_nothing_and_is_the_models_fault(verifier: BatchVerifier, name: str) -> None:
    (found,) = verifier.check_all([answer(TAMPERS[name])])
    assert found[:3] == (0.0, "scored", "model"), found


def test_tampers_in_scripts_earn_nothing() -> None:
    for source in (
        "import os\nos._exit(0)",
        "print(7)\nraise SystemExit(1)",
        "print(7)",
        "print(7, 9)",
        "print('7\\n9')",
    ):
        assert check(source, ECHO)[:3] == (0.0, "scored", "model")


def test_a_script_reads_and_prints() -> None:
    assert check("print(sum(map(int, input().split())))\nexit()", ECHO) == Check(1.0)
    assert check(
        "import sys\ndef main(): print(sum(map(int, sys.stdin.read().split())))\nif __name__ == '__main__': main()",
        ECHO,
    ) == Check(1.0)


def test_what_a_script_prints_at_its_exit_counts() -> None:
    source = "import atexit, sys\natexit.register(lambda: print(sum(map(int, sys.stdin.read().split()))))"
    assert check(source, ECHO) == Check(1.0)


def test_many_answers_come_back_in_order(verifier: BatchVerifier) -> None:
    sources = [HONEST, "def f(x): return 0", HONEST, "def f(x", HONEST]
    assert [found.value for found in verifier.check_all([answer(source) for source in sources])] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x", "SyntaxError"),
        ("def g(x): return 1", "KeyError: 'f'"),
        ("def f(x): return x / 0", "ZeroDivisionError"),
        ("def f(x): return {1, 2}", "the value is not JSON: set"),
        ("def f(x): return {1: 2}", "the value is not JSON: dict"),
        ("def f(x): return 10 ** 5000", "digits"),
        ("\0", "null bytes"),
        ("x = '\ud800'", "UnicodeEncodeError"),
    ],
)
def test_the_reason_says_what_happened(source: str, reason: str) -> None:
    found = check(source)
    assert found.fault == "model"
    assert reason in found.reason


def test_no_block_is_the_models_fault(verifier: BatchVerifier) -> None:
    (found,) = verifier.check_all([Answer("def f(x): return x", metadata={"reference": SUITE})])
    assert (found.value, found.fault) == (0.0, "model")


def test_without_a_reference_there_is_nothing_to_say(verifier: BatchVerifier) -> None:
    assert verifier.check_all([Answer(fenced(HONEST))])[0].status == "unlabelled"


@pytest.mark.parametrize(
    "reference",
    [
        "not JSON",
        "[]",
        "{}",
        '{"function": "f"}',
        '{"function": "f", "tests": []}',
        '{"function": "f; import os", "tests": [[1, 2]]}',
        '{"function": null, "tests": [[1, 2]]}',
        '{"function": "f", "tests": [[1]]}',
        '{"function": "f", "tests": [[1, NaN]]}',
        '{"function": "f", "tests": {}}',
        '{"function": "f", "tests": [[1, 2]], "stdin_tests": []}',
        '{"function": "f", "tests": [[1, 2]], "heldout": []}',
        '{"stdin_tests": [[1, 2]]}',
        "[" * 100_000,
    ],
)
def test_a_bad_reference_is_the_users_fault(verifier: BatchVerifier, reference: str) -> None:
    (found,) = verifier.check_all([answer(HONEST, reference)])
    assert (found.value, found.status, found.fault) == (None, "unscored", "user")
    assert found.reason


def test_a_list_is_the_arguments_and_all_else_is_the_argument() -> None:
    reference = suite(([2, 3], 5), ([[2, 3]], [3, 2]), ("ab", "ba"), ({"a": 1}, ["a"]), ([], None))
    source = """
def f(*given):
    if not given: return None
    if len(given) == 2: return given[0] + given[1]
    return list(given[0]) if isinstance(given[0], dict) else given[0][::-1]
"""
    assert check(source, reference) == Check(1.0)


@pytest.mark.parametrize(
    ("value", "expected", "passes"),
    [
        ("1", 1, True),
        ("True", 1, False),
        ("1", True, False),
        ("1.0", 1, False),
        ("1", 1.0, False),
        ("None", False, False),
        ("(1, [2])", [1, [2]], True),
        ("[1, True]", [1, 1], False),
        ("{'a': [1.5], 'b': None}", {"b": None, "a": [1.5]}, True),
        ("{'a': 1}", {"a": 1.0}, False),
        ("'\\u00e9\\ud83d\\ude00\\n\"'.encode('utf-16', 'surrogatepass').decode('utf-16')", 'é😀\n"', True),
        ("0.1 + 0.2", 0.3, False),
        ("2 ** 80", 2**80, True),
    ],
)
def test_types_count(value: str, expected: object, passes: bool) -> None:
    assert check(f"def f(): return {value}", suite(([], expected))).value == float(passes)


def test_a_tolerance_is_for_floats_alone() -> None:
    assert check("def f(): return [0.1 + 0.2]", suite(([], [0.3])), tolerance=1e-9) == Check(1.0)
    assert check("def f(): return 1", suite(([], 1.0)), tolerance=0.5).value == 0.0


def test_partial_gives_the_share() -> None:
    assert check("def f(x): return {1: 2, 2: 5}[x]", partial=True)[:3] == (0.5, "scored", "model")
    assert check(HONEST, partial=True) == Check(1.0)


def test_all_tests_together_have_a_limit() -> None:
    started = time.monotonic()
    found = check("import time\ndef f(x):\n    time.sleep(0.5)\n    return x * x + 1", sample_seconds=0.8)
    assert found[:3] == (0.0, "scored", "model")
    assert time.monotonic() - started < 60.0


def test_what_it_prints_is_not_its_value() -> None:
    assert check("def f(x):\n    print('debugging', x)\n    return x * x + 1") == Check(1.0)


class Broken:
    name = "broken"

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        del stdin, limits
        raise SandboxBroken("no processes left")


class Silent:
    """Its interpreter dies before the program has begun."""

    name = "silent"

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        del stdin, limits
        return Ran("exit", 127, b"", b"cannot execute")


@pytest.mark.parametrize("sandbox", [Broken(), Silent()])
def test_a_broken_sandbox_is_our_fault(sandbox: Broken | Silent) -> None:
    found = ProgramGrader(sandbox, SandboxLimits(), CodeConfig()).grade(answer(HONEST))
    assert (found.value, found.status, found.fault) == (None, "unscored", "infra")


def test_the_program_never_sees_what_is_expected_of_it() -> None:
    seen = []

    class Recorder:
        name = "recorder"

        def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
            seen.append(stdin)
            return sandbox_named("auto").run(stdin, limits)

    reference = json.dumps({"function": "f", "tests": [["in0", "EXPECTED0"]], "held_out": [["in1", "EXPECTED1"]]})
    ProgramGrader(Recorder(), SandboxLimits(), CodeConfig()).grade(
        answer("def f(x): return 'EXPECTED' [:8] + x[2:]", reference)
    )
    assert len(seen) == 2
    assert all(b"EXPECTED0" not in stdin and b"EXPECTED1" not in stdin for stdin in seen)
    assert b"in1" not in seen[0]


def test_a_bad_config_is_refused_by_field() -> None:
    with pytest.raises(InvalidTask) as refused:
        build({"memory_mb": 1})
    assert refused.value.param == "memory_mb"


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```\na\n```\n```\nb\n```", "a\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("````\na\n```\nb\n````", "a\n```\nb\n"),
        ("  ```py\n  if a:\n      b\n  ```", "if a:\n    b\n"),
        ("```\na", None),
        ("a `b` c", None),
        ("", None),
        ("```\n" * 3, ""),
        ("1. so:\n   ```py\n   a\n   ```", "a\n"),
    ],
)
def test_the_first_fenced_block_is_the_answer(text: str, block: str | None) -> None:
    assert first_block(text) == block


@pytest.mark.parametrize(
    ("source", "config", "value", "says"),
    [
        ("class Solution:\n    def f(self, x):\n        return 2 * x", {}, 1.0, ""),
        ("class Solution:\n    def f(self, x):\n        return 0\ndef f(x):\n    return 2 * x", {}, 1.0, ""),
        ("class Solution:\n    def g(self, x):\n        return 2 * x", {}, 0.0, "KeyError"),
        ("import math\ndef f(x):\n    return int(math.ldexp(x, 1))", {}, 1.0, ""),
        ("import math\ndef f(x):\n    return int(math.ldexp(x, 1))", {"imports": ["math"]}, 1.0, ""),
        ("import json\ndef f(x):\n    return json.loads('2') * 1", {"imports": ["json"]}, 1.0, ""),
        ("def f(x):\n    return str(x)", {"imports": []}, 0.0, "another value"),
        ("import collections, math\ndef f(x):\n    return 2 * x", {"imports": ["math"]}, 0.0, "this task allows math"),
        ("def f(x):\n    from os.path import join\n    return 2 * x", {"imports": []}, 0.0, "this task allows nothing"),
        ("import collections\ndef f(x):\n    return 2 * x", {"imports": ["collections"]}, 1.0, ""),
        ("import numpy as np\ndef f(x):\n    return int(np.int64(x) * 2)", {}, 0.0, "Python's standard library alone"),
        ("try:\n    import numpy\nexcept ImportError:\n    pass\ndef f(x):\n    return 2 * x", {}, 1.0, ""),
    ],
)
def test_solutions_and_imports(source: str, config: dict[str, object], value: float, says: str) -> None:
    found = check(source, suite((1, 2)), **config)
    assert found.value == value
    assert says in found.reason


def test_imports_are_of_the_standard_library() -> None:
    with pytest.raises(InvalidTask, match="'numpy' is not a module of Python's standard library") as caught:
        build({"imports": ["math", "numpy"]})
    assert caught.value.param == "imports"
