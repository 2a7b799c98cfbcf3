"""An answer as engines make it: what one has made is in the prompt of the next. Pure."""

from __future__ import annotations

from contracts.errors import EngineFailed
from contracts.sampling import Span
from engines.wire import EngineRequest, Piece, System, new_spans


class Progress:
    """The tokens of one answer so far, and which versions made them.

    `begin` before each engine's work, `add` with each of its pieces.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.made: list[int] = []
        self.spans: list[Span] = []
        self._began_at = 0
        self._is_told = True
        self._is_lost = False
        self._system: System | None = None

    @property
    def is_full(self) -> bool:
        """True if the answer has all tokens that were asked for."""
        return len(self.made) >= self.request.sampling.max_tokens

    def begin(self, system: System | None) -> None:
        """An engine begins to work on the answer. `system`: what it is, if that is known."""
        self._note_loss()
        self._began_at, self._is_told, self._system = len(self.made), False, system

    def add(self, piece: Piece) -> Piece:
        """Take a piece, with spans as the engine told them. Returns it with the spans that are new.

        Raises:
            EngineFailed: an answer cannot have so many tokens, or these versions.
        """
        self.made += [token.id for token in piece.tokens]
        if self.is_full or not self.made:
            self._check_amount()
        if piece.spans:
            if not self._is_told and piece.spans[0].start != self._began_at:
                self._is_lost = True
            self._is_told = True
            spans = new_spans(self.spans, piece.spans)
            self.spans += spans
            piece = piece._replace(spans=spans)
        if piece.system is None and self._system is not None:
            piece = piece._replace(system=self._system)
        self._system = None
        if piece.num_cached is not None:  # an engine that continues an answer may have had more than the prompt
            piece = piece._replace(num_cached=min(piece.num_cached, len(self.request.prompt_ids)))
        if piece.finish_reason is not None:
            self._note_loss()
            if self._began_at > 0 and piece.experts is not None:
                piece = piece._replace(experts=None)  # those of the first part were computed by another engine
        return piece._replace(lost_versions=True) if self._is_lost else piece

    def cut(self) -> Piece:
        """The last piece of an answer that has all its tokens, although the engine did not end it."""
        self._note_loss()
        return Piece([], [], "length", lost_versions=self._is_lost)

    def _note_loss(self) -> None:
        # Versions that were not told before an engine was lost are never told.
        if not self._is_told and len(self.made) > self._began_at:
            self._is_lost = True

    def _check_amount(self) -> None:
        longest = self.request.sampling.max_tokens
        if len(self.made) > longest:
            raise EngineFailed(f"the engine made more than the {longest} tokens that were requested")
        if not self.made:
            raise EngineFailed("the engine ended an answer without a token")
