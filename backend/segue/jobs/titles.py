"""Gives a session a title of the model's in the place of the first words, after its first answer.

One call, tried once more only if the process dies: a title that fails stays the first words.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from segue.agent.llm.model import ChatModel
from segue.agent.session_title import propose_title
from segue.db.causes import StorageUnavailable
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.events.user_feed import session_titled
from segue.memory.history import MAX_SEQ, load_turns
from segue.memory.sessions import first_words, get_session
from segue.memory.titles import DueTitle, claim_due, give_back, settle
from segue.usage.account import Books

MAX_MESSAGES = 50  # of the first turn, and of what came since

log = structlog.get_logger()


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
    log_not_claimed = "titles_not_found"
    log_failed = "title_failed"
    log_raised = "title_raised"

    async def claim(self) -> DueTitle | None:
        async with self.database.autocommit() as connection:
            return await claim_due(connection, lease_s=self.lease_s)

    async def run(self, job: DueTitle) -> bool:
        """Returns False: no other title waits for this one."""
        title = None
        try:
            title = await self._proposed(job)
        except StorageUnavailable:
            raise
        except AppError as error:
            log.warning(self.log_failed, code=error.code, **self.ids(job))
        async with self.database.autocommit() as connection:
            stored = await settle(connection, job, title)
            if stored:
                self.tell(job.owner, session_titled(await get_session(connection, job.owner, job.session_id)))
        log.info("title_written", stored=stored, **self.ids(job))
        return False

    async def give_back(self, job: DueTitle, wait_s: float) -> None:
        async with self.database.autocommit() as connection:
            await give_back(connection, job, wait_s=wait_s)

    def ids(self, job: DueTitle) -> dict[str, str]:
        return {"session_id": job.session_id}

    async def _proposed(self, job: DueTitle) -> str | None:
        """Returns None if the title is not of the first message any more, or the model has none."""
        async with self.database.read_only() as connection:
            turns = await load_turns(connection, job.session_id, after=0, up_to=MAX_SEQ, limit=MAX_MESSAGES)
        said = str(turns[0][0].content) if turns else ""
        if first_words(said) != job.title:
            return None
        answer = str(turns[0][-1].content) if turns[0][-1].role == "assistant" else ""
        async with self.books.job(job.owner, job.session_id, lasts_s=self.lease_s) as account:
            return await propose_title(self.model, said, answer, language=job.language, account=account)
