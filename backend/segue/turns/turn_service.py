"""Turns as the API uses them: accept, dispatch, cancel, read. Knows nothing of HTTP. A request only watches its turn:
the process that claims the turn runs it, its row has the answer, and a client that leaves stops nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from segue.agent.render_messages import request_parts, with_texts
from segue.agent.tool_loop import plain_request
from segue.db.engine import Connection
from segue.db.outages import StorageUnavailable
from segue.db.redis_connection import RedisServer
from segue.db.redis_keys import plans_of_owner_key
from segue.domain.errors import AppError, app_error
from segue.domain.identity import Charge, Identity
from segue.domain.plan import Button
from segue.domain.session import Message, PromptReport, Turn, TurnKey
from segue.domain.telemetry import TurnEnded
from segue.domain.tool import ToolChoice
from segue.events.user_feed import session_event
from segue.log import log
from segue.memory import session_store, short_term
from segue.plans.store import get_plan
from segue.tools.attachment_store import attached
from segue.turns import queries, terminations
from segue.turns.admission import Admitted, accepted_before, admit, find_retry, retry
from segue.turns.approvals import Approval, Decider, begin_decision, decided_already, get_approval, list_approvals
from segue.turns.chat_request import ChatRequest, Once, Origin
from segue.turns.claims import claim_of_next
from segue.turns.maintenance import recover_forever
from segue.turns.presence import Presence
from segue.turns.queue import TurnQueue
from segue.turns.run_record import record_end
from segue.turns.runner import tools_of_turn
from segue.turns.snapshot import load_context
from segue.turns.turn_deps import Speaker, TurnDeps
from segue.turns.worker import TurnWorker

CANCEL_ANSWER_S = 4.5
MOST_WAITING = 200  # questions of one user, in all sessions
Begun = TypeVar("Begun", bound=Admitted | None)
StoreTurn = Callable[[Connection, str], Awaitable[Begun]]


class TurnService:
    """Runs turns while it is entered: `async with TurnService(deps, url) as turns: await turns.accept(…)`.
    `takes_turns` is False in a process that only accepts them; it still runs a turn that it cannot put into the queue.
    """

    def __init__(self, deps: TurnDeps, redis: RedisServer, *, takes_turns: bool = True) -> None:
        self._deps = deps
        self._redis = redis
        self._takes_turns = takes_turns
        self._presence = Presence(deps.database, lease_s=deps.settings.lease_s)
        self._worker = TurnWorker(deps, self._presence)
        self.queue = TurnQueue(redis, self._worker.run_session, concurrency=self.places)
        self._upkeep: list[asyncio.Task[None]] = []
        self._leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        present = asyncio.create_task(self._presence.keep(), name="presence")
        await self._presence.started()
        self.queue.start()
        recovering = recover_forever(
            self._deps, self._worker, self._presence, self.queue.send, lambda: self._takes_turns or self._redis.degraded
        )
        work = {"leases": self._worker.keep_leases(), "ends": self._worker.keep_ends(), "recovery": recovering}
        self._upkeep = [present, *(asyncio.create_task(each, name=name) for name, each in work.items())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        await self.queue.close()

    @property
    def worker(self) -> str:
        """`ok`, `down`, or `off` in a process that only accepts turns."""
        if self._leaving is not None or not self.queue.alive or any(task.done() for task in self._upkeep):
            return "down"
        return "ok" if self._takes_turns else "off"

    @property
    def running(self) -> int:
        """How many turns run here."""
        return self._worker.running

    @property
    def places(self) -> int:
        """How many may run here: 0 in a process that only accepts turns, though it runs one that it cannot dispatch."""
        return self._deps.settings.worker_concurrency if self._takes_turns else 0

    async def leave(self) -> None:
        """Ends turns within the grace, hands back the rest, ends all waiting. A second call waits for the first."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="leaving")
        await asyncio.shield(self._leaving)

    async def accept(self, owner: str, session_id: str, request: ChatRequest) -> Admitted:
        """Raises what `admit` raises, AppError `rate_limited`, `unknown_attachment`, `option_not_allowed`."""
        deps = self._deps
        known = await self._accepted_before(owner, session_id, request.once)
        if known is not None and not known.failed_for_now:
            await self._interrupt(owner, request, known)
            return known
        again = known.turn.turn_id if known else None
        if request.options.given:
            found = await deps.database.read(session_store.get_session, owner, session_id)
            speaker = deps.agents.speaker(found.agent, owner, request.origin.groups)
            speaker.agent.check_options(request.options.given)
            if request.options.model is not None:
                speaker.check_model(request.options.model)
        if request.attachment_ids:
            files = await deps.database.read(attached, owner, session_id, request.attachment_ids)
            request = replace(request, attachments=files)
        joins = session_id if request.on_busy in ("interrupt", "steer") else None
        async with deps.limiter.starting(owner, request.message, again=again, joins=joins) as turn_id:
            admitted = await self._admit(owner, session_id, replace(request, turn_id=turn_id))
        if admitted.claim is not None:
            return admitted
        await self._interrupt(owner, request, admitted)
        await self._dispatch(owner, turn_id, admitted)
        return admitted

    async def begin(self, owner: str, message: str, store: StoreTurn[Begun], *, again: str | None = None) -> Begun:
        """Begins a turn under the id that `store` is given, if that stores one, in one transaction with its other
        changes. `again` is the id of one that runs again. Raises AppError `rate_limited`, and what `store` raises.
        """
        starting = self._deps.limiter.starting(owner, message, again=again)
        async with starting as turn_id, self._deps.database.transaction() as connection:
            admitted = await store(connection, turn_id)
        if admitted is not None:
            if admitted.made is not None:
                self._deps.events.tell(owner, session_event("session_created", admitted.made))
            await self._dispatch(owner, turn_id, admitted)
        elif again is None:
            await self._deps.limiter.release(owner, turn_id)
        return admitted

    async def retry(self, owner: str, session_id: str, turn_id: str, request: ChatRequest) -> Admitted:
        """Runs the last turn again, which failed or was cancelled. Raises what `find_retry` raises."""
        # Before the limits, which count a turn that runs already.
        found = await self._deps.database.read(find_retry, owner, session_id, turn_id, request)
        if not found.fresh:
            return found
        store = partial(retry, owner=owner, session_id=session_id, request=request, now=self._deps.clock())
        return await self.begin(owner, "", store, again=found.turn.turn_id)  # perhaps that of the turn that has read it

    async def complete(
        self, owner: str, speaker: Speaker, instructions: str, text: str, *, session_id: str
    ) -> tuple[str, Charge]:
        """Asks an agent's small model outside of any turn. Charges the owner, and the session if it is one of theirs.
        Returns the reply and its charge. Raises AppError `model_unavailable`, `model_timeout`, `rate_limited`.
        """
        deps = self._deps
        async with deps.books.job(owner, session_id, lasts_s=deps.settings.turn_timeout_s) as account:
            reply = await speaker.models.small.complete(instructions, text, account=account)
        return reply, account.total

    async def next_request(self, owner: str, session_id: str, groups: Collection[str], *, texts: bool) -> PromptReport:
        """Returns the parts of the session's next request as far as they are known before the message: without it, the
        facts that it will call up, and what a plan that waits adds to its notes. With `texts` the parts say what they
        are. The owner is in `groups`. Raises NotFound.
        """
        deps, now = self._deps, self._deps.clock()
        claim = await deps.database.read(claim_of_next, owner, session_id)
        claim = replace(claim, request=replace(claim.request, origin=Origin(groups=tuple(groups))))
        speaker = deps.agents.speaker(claim.agent, owner, groups)
        guard, _ = tools = tools_of_turn(deps, claim, speaker, save=_forget)
        await guard.load_global_state()
        coming = Message("", claim.key.turn_seq, claim.key.turn_id, "user", "", now)
        start = await load_context(deps, claim, speaker, tools, now=now, coming=coming)
        messages, offered = plain_request(guard, guard.tools(), start["prompt"])
        report = request_parts(start["prompt_parts"], messages, deps.tool_tokens(offered), deps.count)
        plain = replace(report, parts=tuple(replace(each, text=None) for each in report.parts))
        return with_texts(report, messages, offered) if texts else plain

    async def decide(self, owner: str, session_id: str, button: Button, request: ChatRequest) -> TurnKey:
        """A button on the plan that waits: stores the decision, and dispatches the turn that carries it out. `request`
        has everything but the message. Raises AppError `no_open_plan`, `plan_changed`, `plan_expired`, `invalid_args`,
        `invalid_answer`, `unknown_tool`, `rate_limited`; then nothing was accepted.
        """
        known = await self._accepted_before(owner, session_id, request.once)
        if known is not None and not known.failed_for_now:
            return known.turn
        store, again = self._deciding(owner, session_id, button, request), known.turn.turn_id if known else None
        admitted = await self.begin(owner, button.message, store, again=again)
        if admitted is None:  # raised after the commit, since the plan is stored as expired
            raise app_error("plan_expired")
        return admitted.turn

    async def done_elsewhere(self, owner: str, key: str) -> None:
        """Goes on with each plan of a user that waits for the question of this key (`UserRequest.key`), since the thing
        it asks for was done elsewhere: by a login, or as its server says. A refusal, such as of a plan decided
        meanwhile, is ignored. The user is in the groups of the turn before.
        """
        read, now = self._deps.database.read, self._deps.clock()
        found = await read(list_approvals, Identity(owner), before=None, limit=MOST_WAITING, now=now, status="waiting")
        for each in found:
            if each.step is not None and each.step.asks is not None and each.step.asks.key == key:
                button = Button("confirm", each.version, plan_id=each.plan_id)
                try:
                    origin = Origin(groups=await read(queries.groups_of_last, each.session_id))
                    await self.decide(owner, each.session_id, button, ChatRequest("", origin=origin))
                except AppError as error:
                    log.warning("not_gone_on_with", session_id=each.session_id, code=error.code)

    async def decide_approval(self, by: Decider, plan_id: str, button: Button, *, origin: Origin) -> Approval:
        """Decides on a plan that waits in any session, as its user or as one of those whom a rule names. The turn that
        follows is its user's, in the groups of the turn before. Returns the approval as it is then.

        Raises NotFound, AppError `not_yours_to_decide`, `plan_changed`, which says who has decided, `plan_expired`,
        `invalid_args`, `unknown_tool`, `rate_limited`, InvalidRequest; then nothing was decided.
        """
        deps, identity, button = self._deps, by.identity, replace(button, plan_id=plan_id)
        found = await deps.database.read(get_approval, identity, plan_id, now=deps.clock())
        groups = await deps.database.read(queries.groups_of_last, found.session_id)
        owner, is_users = found.asker, found.step is None or found.step.waits_for == "self"
        try:
            if owner == identity.user and (is_users or button.decision == "reject"):
                await self.decide(owner, found.session_id, button, ChatRequest("", origin=origin))
            else:
                request = ChatRequest("", origin=replace(origin, groups=groups))
                await self.begin(owner, "", self._deciding(owner, found.session_id, button, request, by=by))
        except AppError as error:
            if error.code not in ("plan_changed", "no_open_plan"):
                raise
            raise decided_already((await deps.database.read(get_plan, plan_id)).plan) from None
        decided = await deps.database.read(get_approval, identity, plan_id, now=deps.clock())
        if decided.status == "expired":
            raise app_error("plan_expired")
        return decided

    async def decide_several(self, owner: str, buttons: Mapping[str, Button], *, origin: Origin) -> dict[str, Admitted]:
        """Decides on the versions of the plans of several sessions, by session: on all or, if it raises what `decide`
        raises or NotFound, on none. The error's `session_id` is the session that it is about.
        """
        admitted: dict[str, Admitted] = {}
        async with AsyncExitStack() as stack:
            starting = self._deps.limiter.starting
            ids = {each: await stack.enter_async_context(starting(owner, buttons[each].message)) for each in buttons}
            async with self._deps.database.transaction() as connection:
                for session_id in sorted(buttons):  # one order of locks for all
                    store = self._deciding(owner, session_id, buttons[session_id], ChatRequest("", origin=origin))
                    try:
                        accepted = await store(connection, ids[session_id])
                    except AppError as error:
                        raise error.with_extra(session_id=session_id) from None
                    if accepted is None:
                        raise app_error("plan_expired").with_extra(session_id=session_id)
                    admitted[session_id] = accepted
        for session_id, each in admitted.items():
            await self._dispatch(owner, ids[session_id], each)
        return admitted

    def _deciding(
        self, owner: str, session_id: str, button: Button, request: ChatRequest, *, by: Decider | None = None
    ) -> StoreTurn[Admitted | None]:
        async def store(connection: Connection, turn_id: str) -> Admitted | None:
            of, known = (connection, owner, session_id, button), replace(request, turn_id=turn_id)
            return await begin_decision(*of, tools=self._deps.tools, request=known, now=self._deps.clock(), by=by)

        return store

    async def cancel(self, owner: str, session_id: str, turn_id: str) -> Turn:
        """Returns the turn once it has ended, or as it is after CANCEL_ANSWER_S. Raises NotFound."""
        async with self._deps.database.autocommit() as connection:
            turn = await queries.find_turn(connection, owner, session_id, turn_id)
            await self._carry_out(connection, owner, await terminations.cancel_turn(connection, owner, turn))
        with suppress(TimeoutError, AppError):
            async with asyncio.timeout(CANCEL_ANSWER_S):
                await self._deps.events.answer(turn)
        return await self._deps.database.read(queries.get_turn, owner, session_id, turn_id)

    async def delete_session(self, owner: str, session_id: str) -> None:
        """A process that runs a turn of it notices within half a second, and can write nothing from now on."""
        async with self._deps.database.transaction() as connection:
            turns = await queries.turn_ids(connection, session_id)
            await terminations.cancel_open_turns(connection, owner, session_id)
            await session_store.delete_session(connection, owner, session_id)
        self._worker.stop_session(session_id)
        await self._deps.events.delete(session_id, turns, user=owner)
        await short_term.forget(self._deps.cache, session_id)
        await self._deps.cache.delete_listed(plans_of_owner_key(owner))  # made from what was said in any session

    async def _accepted_before(self, owner: str, session_id: str, once: Once | None) -> Admitted | None:
        """Asked before the limits: a request for a turn that exists counts for none."""
        return await self._deps.database.read(accepted_before, owner, session_id, once) if once else None

    async def _admit(self, owner: str, session_id: str, request: ChatRequest) -> Admitted:
        """If a place is free here, the statement that accepts the message claims its turn too, and it runs at once."""
        deps = self._deps
        expected = await self._worker.expect(owner, session_id) if self.queue.has_place else None
        admitting = partial(admit, deps.database, owner, session_id, request, now=deps.clock(), tools=deps.tools.tools)
        if expected is None:
            return await admitting()
        claim = None
        try:
            await self.queue.hold_place(expected.line)
            admitted = await admitting(claimer=expected.claimer)
            claim = admitted.claim
        except StorageUnavailable:
            self._worker.doubt(session_id, expected.claimer.worker)
            raise
        finally:
            if not expected.claim.done():  # else the process stops, and another one takes over what it has claimed
                expected.claim.set_result(claim)
        return admitted

    async def _interrupt(self, owner: str, request: ChatRequest, admitted: Admitted) -> None:
        """Also for a turn that was accepted before and still waits: its process may have died in between."""
        if request.on_busy == "interrupt" and admitted.status == "queued":
            async with self._deps.database.autocommit() as connection:
                before = await terminations.cancel_before(connection, owner, admitted.turn)
                await self._carry_out(connection, owner, before)

    async def _dispatch(self, owner: str, turn_id: str, admitted: Admitted) -> None:
        """Puts the turn into the queue. Without Redis it runs here, even in a process that takes no turns."""
        if not admitted.fresh:  # the same request came twice at the same moment
            if admitted.turn.turn_id != turn_id:
                await self._deps.limiter.release(owner, turn_id)
        elif not await self.queue.send(admitted.turn.session_id):
            self._worker.wake(admitted.turn.session_id)

    async def _carry_out(self, connection: Connection, owner: str, cancelled: Mapping[TurnKey, bool]) -> None:
        for turn, ended in cancelled.items():
            if ended:
                error = await terminations.note_approval(connection, turn.turn_id)
                record_end(self._deps.observe, turn, TurnEnded("cancelled", error.code))
                self._deps.events.end(turn, error, user=owner)
            else:
                self._worker.stop(turn.turn_id, "cancelled")

    async def _leave(self) -> None:
        until = time.monotonic() + (grace_s := self._deps.settings.grace_s)
        await self.queue.stop_taking()
        for claim in await self._worker.close(grace_s=grace_s):
            await self.queue.send(claim.key.session_id)
        while self._deps.events.awaits_others and time.monotonic() < until:  # noqa: ASYNC110 (of many turns)
            await asyncio.sleep(0.1)
        self._deps.events.shut_down()
        self._presence.close()
        present, *others = self._upkeep
        for task in others:
            task.cancel()
        await asyncio.gather(present, *others, return_exceptions=True)


async def _forget(_: ToolChoice) -> None:
    """Stores no choice of tools: the turn makes its own."""
