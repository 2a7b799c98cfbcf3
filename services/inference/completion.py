"""One request being answered.

Flows in: tokens of the engine, one stream for each choice. Flows out: what the client may see (`deltas`), then one
durable record of all choices (`record`). Waits for: the engine, then the log. A client that leaves (`abandon`) stops the
engine at once, and what was said so far is recorded as cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from tokenizers import Tokenizer

from contracts.errors import MillraceError, VersionNotResident
from contracts.records import Generation
from services.inference.answer import Choice, Delta
from services.inference.engine.client import EngineClient
from services.inference.engine.wire import Piece
from services.inference.plan import RequestPlan
from services.inference.recorder import Recorder, generation_of


class Completion:
    """See the module. Starts at once; belongs to one event loop."""

    def __init__(self, plan: RequestPlan, tokenizer: Tokenizer, engine: EngineClient, recorder: Recorder) -> None:
        self.plan = plan
        self.choices = [Choice(index, tokenizer, plan.stops) for index in range(plan.num_choices)]
        self._engine = engine
        self._recorder = recorder
        self._recorded = False
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._generation = asyncio.create_task(self._generate())

    async def deltas(self) -> AsyncGenerator[list[Delta]]:
        """What is added to any choice, until all have ended; together what has come meanwhile.

        Raises:
            MillraceError: the engine refused, or did not come back; what was said so far is recorded as failed.
        """
        ended = False
        while not ended:
            waiting = [await self._deltas.get()]
            while not self._deltas.empty():
                waiting.append(self._deltas.get_nowait())
            ended = waiting[-1] is None
            if deltas := [delta for delta in waiting if delta is not None]:
                yield deltas
        try:
            await self._generation
        except MillraceError:
            self._leave("error")
            raise

    async def finish(self) -> bool:
        """Wait for all choices and their record; see `record`."""
        try:
            await asyncio.shield(self._generation)
        except MillraceError:
            self._leave("error")
            raise
        return await self.record()

    async def record(self) -> bool:
        """Make the ended choices durable; False if the log could not take them. Consent may forbid it: then True."""
        self._recorded = True
        return await self._recorder.record(self._generations())

    def abandon(self) -> None:
        """The client has left. Nothing happens if everything is recorded already."""
        if not self._recorded:
            self._leave("cancelled")

    def _leave(self, reason: Literal["cancelled", "error"]) -> None:
        self._recorded = True
        self._generation.cancel()
        for choice in self.choices:
            choice.cut(reason)
        self._recorder.record_later(self._generations())

    def _generations(self) -> list[Generation]:
        system, now = self._engine.system, time.time()
        if system is None or not self.plan.logged:
            return []
        # A choice without a token was seen by nobody, and holds nothing that could be learned or judged.
        return [generation_of(self.plan, choice, system, now) for choice in self.choices if choice.tokens]

    async def _generate(self) -> None:
        try:
            if len(self.choices) == 1:
                await self._generate_choice(self.choices[0])
            else:
                await self._generate_together()
        finally:
            self._deltas.put_nowait(None)

    async def _generate_together(self) -> None:
        parts = [asyncio.create_task(self._generate_choice(choice)) for choice in self.choices]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()  # one refused: the answer as a whole fails

    async def _generate_choice(self, choice: Choice) -> None:
        plan = self.plan
        pieces = self._engine.generate(
            plan.arm.model,
            plan.prompt_ids,
            plan.sampling_of(choice.index),
            f"{plan.completion_id}:{choice.index}",
            background=plan.purpose != "user",
        )
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if not plan.requirement.any_will_do:
                        _check_versions(plan, choice, piece)
                    self._deltas.put_nowait(choice.add(*piece))
                    if choice.finish_reason is not None:
                        return
        except VersionNotResident as error:
            if plan.requirement.any_will_do:
                raise
            raise plan.requirement.refusal(f"the engine says: {error.message}") from error


def _check_versions(plan: RequestPlan, choice: Choice, piece: Piece) -> None:
    # Before the tokens are added: those of a version that was not asked for are neither shown nor recorded.
    if piece.tokens:
        plan.requirement.check([span.version for span in piece.spans] or [choice.version])
