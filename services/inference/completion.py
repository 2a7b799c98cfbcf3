"""One request while it is answered.

    engine ─▶ _generate_choice(), one task per choice ─▶ _new ─▶ deltas(): the client, if it streams
                          └─▶ choices, when all have ended ─▶ record(): one durable record

In: tokens of the engine, one stream per choice. Out: visible text (`deltas`), then one durable record of all choices (`record`).
Waits for: the engine, then the log. If the client leaves (`abandon`), the engine is stopped at once, and the answer so far is
recorded as cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from contracts.errors import GrammarStuck, InvalidRequest, InvalidSchema, MillraceError, VersionNotResident
from contracts.records import Generation
from engines.wire import EngineRequest, Piece, together
from services.inference.answer import Choice, Delta
from services.inference.engine.pool import EnginePool
from services.inference.plan import RequestPlan
from services.inference.recorder import Recorder, failure_of, generation_of
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.turns import Turns

_LONG_PROMPTS = 4096
"""Tokens of the prompts of all choices."""


class Completion:
    """See the module. Starts at once. Belongs to one event loop.

    `plans`: one for each prompt; a chat has one. `plan`: the first; all have caller, task and options in common. `choices`: of all prompts, in
    order; `plan_of`: the plan of each.
    """

    def __init__(
        self,
        plans: Sequence[RequestPlan],
        engine: EnginePool,
        recorder: Recorder,
        turns: Turns,
        budgets: SessionBudgets,
    ) -> None:
        self.plan, self.plans = plans[0], plans
        self.plan_of = [plan for plan in plans for _ in range(plan.request.num_choices)]
        stops, indices = self.plan.request.stops, range(self.plan.request.num_choices)
        self.choices = [Choice(index, self.plan.new_parser(), stops) for _ in plans for index in indices]
        self._engine, self._recorder = engine, recorder
        self._turns, self._budgets = turns, budgets
        self._recorded = False
        self._new: list[Delta] = []
        self._changed = asyncio.Event()
        self._has_ended = False
        self._generation = asyncio.create_task(self._generate())

    async def deltas(self) -> AsyncGenerator[list[Delta]]:
        """The additions to all choices until they have ended; those that arrive together are one list. Raises what the engine raised."""
        has_ended = False
        while not has_ended:
            await self._changed.wait()
            self._changed.clear()
            has_ended = self._has_ended
            if self._new:
                new, self._new = self._new, []
                yield new
        try:
            await self._generation
        except MillraceError as error:
            self._leave("error", error)
            raise

    def unread(self) -> list[Delta]:
        """The additions that `deltas` has not given: all of them, if nobody streams the answer."""
        return self._new

    async def finish(self) -> bool:
        """Wait for all choices, then `record` them."""
        try:
            await asyncio.shield(self._generation)
        except MillraceError as error:
            self._leave("error", error)
            raise
        return await self.record()

    async def record(self) -> bool:
        """Make the ended choices durable. False if the log could not take them; True also if consent forbids logging."""
        made = await self._made()
        self._recorded = True  # not before: a client that leaves meanwhile is recorded by `abandon`
        plan, recording = self.plan, self._recorder.record(made)
        if plan.turn is None and plan.budget is None:
            return await recording
        # Before the answer ends: the next call may come at once, and at another replica.
        spending = self._budgets.spend(plan.budget, self._num_tokens)
        if plan.turn is None:
            return (await asyncio.gather(recording, spending))[0]
        keeping = self._turns.keep(plan.turn, plan.completion_id, self.choices, logged=plan.terms.logged)
        return (await asyncio.gather(recording, spending, keeping))[0]

    def abandon(self) -> None:
        """The client has left. Nothing happens if the answer is recorded already."""
        if not self._recorded:
            self._leave("cancelled")

    def _leave(self, reason: Literal["cancelled", "error"], error: MillraceError | None = None) -> None:
        self._recorded = True
        self._generation.cancel()
        for choice in self.choices:
            choice.cut(reason)
        # A request that no arm can answer says nothing about the arms.
        self._recorder.record_later(self._made(with_failed=not isinstance(error, InvalidRequest)))
        if self.plan.budget is not None:
            self._budgets.spend_later(self.plan.budget, self._num_tokens)

    async def _made(self, *, with_failed: bool = False) -> list[Generation]:
        """The records; those of long prompts are made on another thread, because each is packed and compressed."""
        if sum(len(plan.prompt_ids) for plan in self.plan_of) <= _LONG_PROMPTS:
            return self._generations(with_failed=with_failed)
        return await asyncio.to_thread(self._generations, with_failed=with_failed)

    @property
    def _num_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    def _generations(self, *, with_failed: bool = False) -> list[Generation]:
        """The records of the choices. One without a token has nothing to learn from, but its drawn arm has failed to answer."""
        if not self.plan.terms.logged:
            return []
        now = time.time()
        pairs = list(zip(self.plan_of, self.choices, strict=True))
        made = [generation_of(plan, choice, now) for plan, choice in pairs if choice.tokens]
        failed = [pair for pair in pairs if with_failed and not pair[1].tokens and pair[0].drawn.draw is not None]
        return made + [failure_of(plan, choice, now) for plan, choice in failed]

    async def _generate(self) -> None:
        parts = list[asyncio.Task[None]]()
        try:
            if len(self.choices) == 1:
                await self._generate_choice(0)
            else:
                parts += [asyncio.create_task(self._generate_choice(place)) for place in range(len(self.choices))]
                await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()  # if one choice fails, the whole answer fails
            self._has_ended = True
            self._changed.set()

    async def _generate_choice(self, position: int) -> None:
        plan, choice = self.plan_of[position], self.choices[position]
        terms, arm = plan.terms, plan.drawn.arm
        request = EngineRequest(
            arm.model,
            plan.prompt_ids,
            plan.sampling_of(choice.index),
            f"{plan.completion_id}:{choice.index}",
            background=terms.purpose != "user",
            constraint=plan.grammar,
            num_top=plan.request.top_logprobs or 0,
            with_support=terms.logged and plan.sampling.is_truncated,
            arm=arm.name,
            session=plan.request.labels.get("session_id"),
            cache_scope=terms.cache_scope,
            any_version=plan.request.model == plan.policy and terms.requirement.exact is None,
        )
        held: Piece | None = None
        any_will_do = terms.requirement.any_will_do
        try:
            async with aclosing(self._engine.generate(request)) as pieces:
                async for arrived in pieces:
                    piece = arrived
                    if not any_will_do:
                        held = piece = together(held, piece)
                        # Some engines name the versions of tokens only at the end; until then nobody may see the tokens.
                        if not piece.spans and choice.version is None and piece.finish_reason is None:
                            continue
                        # Checked before they are added: tokens of a wrong version are neither shown nor recorded.
                        if piece.tokens:
                            terms.requirement.check([span.version for span in piece.spans] or [choice.version])
                        held = None
                    delta = choice.add(piece)
                    self._new.append(delta if position == delta.choice else delta._replace(choice=position))
                    self._changed.set()
                    if choice.finish_reason is not None:
                        return
        except VersionNotResident as error:
            if any_will_do:
                raise
            raise terms.requirement.refusal(f"the engine says: {error.message}") from error
        except (InvalidSchema, GrammarStuck) as error:
            # The engine names its own field, which the caller did not send.
            raise type(error)(error.message, param=plan.grammar_param) from error
