"""Two kinds of jobs: summaries of sessions whose windows are almost full, and titles after first answers.

A failed summary costs only itself: the window is trimmed, the history stays whole. A title is asked for once, and again
only if the process dies or a cap left no room. Messages and summaries are data to every model, never orders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import sqlalchemy as sa

from segue.agent.prompts import TEXTS, as_json
from segue.agent.render_messages import listed_reference
from segue.db.engine import Connection, Database
from segue.db.models import sessions
from segue.db.outages import StorageUnavailable
from segue.db.rows import claim_row, claiming, due_in, postpone_row
from segue.domain.errors import NO_ROOM, AppError
from segue.domain.ids import local_time
from segue.domain.session import Message, first_words
from segue.events.user_feed import session_event
from segue.log import log
from segue.memory import summary as summaries
from segue.memory.history import MAX_SEQ, load_turns
from segue.memory.history_window import SUMMARY_LISTED, CountTokens
from segue.memory.session_store import TITLE_IS_DUE, count_gaps, get_session
from segue.memory.short_term import merge_results
from segue.models.chat_model import ChatModel
from segue.models.refusals import unavailable
from segue.models.untrusted import neutralised
from segue.tools.normalize import clean
from segue.tools.results import recent_references
from segue.users.usage import Account, Books

MAX_TEXT_CHARS = 2000
_AROUND = " *#`.。\u200e\u200f\u061c"  # the last three say in which direction a text is written
_QUOTES = dict(zip("\"'‘“„«「『《", "\"'’”“»」』》", strict=True))
MAX_TITLED_MESSAGES = 50  # of the first turn, and of what came since
MAX_ARGS_CHARS = 300
KEPT_OF_A_RESULT = ("tool_call_id", "tool_name", "status", "summary", "identifiers")
MAX_MESSAGES = 200


@dataclass(frozen=True, slots=True)
class DueTitle:
    """`title` are the first words, `language` is the one to answer in, None for the user's."""

    owner: str
    session_id: str
    title: str
    language: str | None


@dataclass(frozen=True, slots=True)
class Titles:
    """A kind of job; `lease_s` seconds after its claim another process may claim it. `tell` adds to a user's feed."""

    database: Database
    model: ChatModel
    books: Books
    tell: Callable[[str, bytes], None]
    lease_s: float

    name = "titles that are due"
    slots = 2

    async def claim(self) -> DueTitle | None:
        row = await self.database.write(claim_row, _CLAIM_TITLE, lease_s=self.lease_s)
        return DueTitle(row.owner, row.id, row.title or "", row.language) if row else None

    async def run(self, job: DueTitle) -> bool:
        """Returns False: no other title waits for this one."""
        title = None
        try:
            title = await self._proposed(job)
        except AppError as error:
            if isinstance(error, StorageUnavailable) or error.code in NO_ROOM:
                raise
            log.warning("title_failed", code=error.code, **self.ids(job))
        async with self.database.autocommit() as connection:
            if stored := await _store_title(connection, job, title):
                titled = await get_session(connection, job.owner, job.session_id)
                self.tell(job.owner, session_event("session_titled", titled))
        log.info("title_written", stored=stored, **self.ids(job))
        return False

    async def give_back(self, job: DueTitle, wait_s: float) -> None:
        await self.database.write(postpone_row, sessions, "title_due_at", job.session_id, title_due_at=due_in(wait_s))

    def ids(self, job: DueTitle) -> dict[str, str]:
        return {"session_id": job.session_id}

    async def _proposed(self, job: DueTitle) -> str | None:
        """Returns a title of one short line. None if the present one is no longer that of the first message, or the
        model has none. Raises AppError if the model cannot be asked.
        """
        turns = await self.database.read(load_turns, job.session_id, after=0, up_to=MAX_SEQ, limit=MAX_TITLED_MESSAGES)
        first_message = str(turns[0][0].content) if turns else ""
        if first_words(first_message) != job.title:
            return None
        answer = str(turns[0][-1].content) if turns[0][-1].role == "assistant" else ""
        exchange = {"user": first_message[:MAX_TEXT_CHARS], "assistant": answer[:MAX_TEXT_CHARS]}
        prompt = as_json(exchange | ({"language": job.language} if job.language else {}))
        async with self.books.job(job.owner, job.session_id, lasts_s=self.lease_s) as account:
            text: str = clean(await self.model.complete(TEXTS["titler"], neutralised(prompt), account=account))
        title = text.strip().partition("\n")[0].strip(_AROUND)
        while title and title[-1] == _QUOTES.get(title[0]) and title[0] not in title[1:-1]:  # those within it stay
            title = title[1:-1].strip(_AROUND)
        return first_words(title) or None


_CLAIM_TITLE = claiming(sessions, "title_due_at", TITLE_IS_DUE, read=sessions.c["owner", "id", "title", "language"])


async def _store_title(connection: Connection, job: DueTitle, title: str | None) -> bool:
    """Stores a title; None keeps the first words for good. False if it is None, or another title was given."""
    still_due = (sessions.c.id == job.session_id, sessions.c.title_due_at.is_not(None))
    if title is None:
        await connection.execute(sa.update(sessions).where(*still_due).values(title_due_at=None))
        return False
    query = sa.update(sessions).where(*still_due, sessions.c.title == job.title).values(title=title, title_due_at=None)
    return await connection.scalar(query.returning(sessions.c.id)) is not None


def condensed(message: Message, time_zone: str) -> dict[str, Any]:
    """Returns a message as the summariser sees it: long texts shortened, a result as its reference describes it."""
    match message.content:
        case dict() as reference:
            return {"result": {name: reference[name] for name in KEPT_OF_A_RESULT if name in reference}}
        case text:
            shown: dict[str, Any] = {message.role: _without_middle(text, MAX_TEXT_CHARS)}
            if message.role == "user":
                said_on = local_time(message.created_at, time_zone)
                shown["said_on"] = f"{said_on:%A}, {said_on.date()}"
            if note := message.metadata.get("note"):
                shown["note"] = _without_middle(note, MAX_TEXT_CHARS)
            calls = [{call.name: _without_middle(as_json(call.args), MAX_ARGS_CHARS)} for call in message.tool_calls]
            return {**shown, "calls": calls} if calls else shown


def _without_middle(text: str, max_chars: int) -> str:
    half = max_chars // 2
    return text if len(text) <= max_chars else f"{text[:half]} […] {text[-half:]}"


@dataclass(frozen=True, slots=True)
class Summaries:
    """A kind of job. A call to the model gets turns of about `max_tokens`; a summary has at most `most_tokens`."""

    database: Database
    model: ChatModel
    books: Books
    count: CountTokens
    most_tokens: int
    max_tokens: int
    lease_s: float

    name = "summaries that are due"
    slots = 2

    async def claim(self) -> summaries.DueSummary | None:
        return await self.database.write(summaries.claim_summary, lease_s=self.lease_s)

    async def run(self, job: summaries.DueSummary) -> bool:
        """Takes one step towards `job.until`. Returns True if it does not get there: the session is due again."""
        async with self.database.read_only() as connection:
            turns = await load_turns(connection, job.session_id, after=job.after, up_to=job.until, limit=MAX_MESSAGES)
        # The oldest turns that fit one call; at least one.
        rendered = [[condensed(message, job.time_zone) for message in turn] for turn in turns]
        tokens_until = accumulate(sum(self.count(as_json(message)) for message in turn) for turn in rendered)
        taken = turns[: max(sum(tokens <= self.max_tokens for tokens in tokens_until), 1)]
        summary = job.summary
        if taken:
            messages = list(chain.from_iterable(rendered[: len(taken)]))
            async with self.books.job(job.owner, job.session_id, lasts_s=self.lease_s) as account:
                summary = await self._carried_on(summary, messages, account=account)
        covers = taken[-1][0].seq if taken else job.until
        async with self.database.autocommit() as connection:
            earlier = await recent_references(connection, job.session_id, up_to=covers)
            # The lines of the newest results, as far as SUMMARY_LISTED of the tokens go.
            lines = [listed_reference(reference, expired=()) for reference in merge_results(earlier, ())]
            sizes = zip(lines, accumulate(map(self.count, lines)), strict=True)
            listed = [line for line, size in sizes if size <= int(self.max_tokens * SUMMARY_LISTED)]
            stored = await summaries.store_summary(connection, job, summary, covers=covers, references=listed)
            # Counting reads all messages: once they have doubled, that is two for each one that was ever said.
            await count_gaps(connection, job.session_id, again=covers.bit_length() > job.after.bit_length())
        log.info("summary_written", session_id=job.session_id, covers=covers, chars=len(summary or ""), stored=stored)
        return covers < job.until

    async def give_back(self, job: summaries.DueSummary, wait_s: float) -> None:
        await self.database.write(summaries.give_back_summary, job, wait_s=wait_s)

    def ids(self, job: summaries.DueSummary) -> dict[str, str]:
        return {"session_id": job.session_id}

    async def _carried_on(self, summary: str | None, messages: Sequence[object], *, account: Account) -> str:
        """Returns the summary with these messages added; its oldest lines are condensed if it gets too long. Raises
        AppError if the model cannot be asked, or returns nothing about the messages.
        """
        request = {"summary": summary or "", "messages": messages}
        if not (added := await self._ask(TEXTS["summariser"], request, account)):
            raise unavailable("The model gave an empty summary.")
        lines = summaries.carried_on(summaries.read_lines(summary or ""), added)
        if self.count(summaries.written(lines)) > self.most_tokens:
            old, new = summaries.parted(lines)
            if oldest := summaries.written(old):
                shorter = await self._ask(TEXTS["condenser"], {"lines": oldest}, account)
                old = {name: of and (shorter.get(name) or of) for name, of in old.items()}  # it may have refused
            lines = {name: [*old[name], *of] for name, of in new.items()}
        return summaries.fitting(lines, self.most_tokens, self.count)

    async def _ask(self, instructions: str, request: Mapping[str, Any], account: Account) -> summaries.SummaryLines:
        prompt = neutralised(as_json({**request, "most_tokens": int(self.most_tokens * summaries.SHARE)}))
        text: str = clean(await self.model.complete(instructions, prompt, account=account))
        max_chars = self.most_tokens * summaries.CHARS_PER_TOKEN
        return summaries.read_lines(text[:max_chars]) if summaries.says_anything(text) else {}
