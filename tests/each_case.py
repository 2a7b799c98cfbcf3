"""One test for many small cases: what a test of its own costs each of them is more than most take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from _pytest.mark import ParameterSet

Test = Callable[..., None]


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, in one test: it ends at the first case that fails, and the failure names that case.

    Fixtures are made once for all cases, so that these must only read them.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    known = [_values(case, len(wanted)) for case in cases]
    assert known, "no cases"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def through_all(**fixtures: Any) -> None:
            for case in known:
                named = dict(zip(wanted, case, strict=True))
                try:
                    test(**fixtures, **named)
                except BaseException as error:
                    error.add_note(f"in the case {named!r}")
                    raise

        whole = inspect.signature(test)
        rest = [parameter for name, parameter in whole.parameters.items() if name not in wanted]
        through_all.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined] # read by pytest
        return through_all

    return decorate


def _values(case: Any, num_names: int) -> Sequence[Any]:
    if isinstance(case, ParameterSet):
        assert not case.marks, "a mark is of a whole test"
        return case.values
    return case if num_names > 1 else (case,)
