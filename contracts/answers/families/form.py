"""The form in which a family writes calls: how they are found, read, and forced by a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from contracts.answers.marks import Marks
from contracts.answers.parts import Reader, Sink
from contracts.answers.source import CallText, Reading

Schema = Mapping[str, Any]


class Forced(NamedTuple):
    """The calls of a grammar, as rules of llguidance's Lark: marker, before, call, between, call, ..., after.

    `call`: by the name of the tool, what writes one call. `marker` is empty for bare calls. `rules`: further ones that these use.
    """

    call: dict[str, str]
    marker: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    rules: str = ""


class CallForm:
    """One form. `openers` begin a call, and the reader reads on from there; they are among the `markers`.

    Markers that are `dropped` mean nothing by themselves. A form that `is_bare` has calls only where the answer begins.
    """

    openers: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    is_bare: bool = False

    def reader(self, marks: Marks) -> Reader:
        """A reader of one call, or of all calls behind one opener."""

        def read(source: CallText, sink: Sink) -> Reading[None]:
            yield from self.read(source, sink, marks)

        return read

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """Read what follows an opener. Raises NotACall if it is no call."""
        raise NotImplementedError

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """The rules that force a call."""
        raise NotImplementedError
