"""Continues the rolling summaries of sessions whose windows are about to be full, after a turn has been answered.

A summary that fails costs nothing but itself: the window is trimmed, the stored history stays whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson
import structlog

from segue.agent.llm.model import ChatModel
from segue.agent.render_messages import listed_reference
from segue.agent.summarizer import condensed, summarise
from segue.db.engine import Database
from segue.domain.session import Message
from segue.domain.tool import Reference
from segue.memory.history import load_turns
from segue.memory.sessions import count_gaps
from segue.memory.short_term import merge_results
from segue.memory.summary import DueSummary, claim_due, give_back, store_summary
from segue.memory.token_count import CountTokens
from segue.tools.results import recent_references
from segue.usage.account import Books

MAX_MESSAGES = 200

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Summaries:
    """A kind of job. One call to the model gets turns of about `max_tokens`; a job's lease lasts `lease_s` seconds.

    The results of the turns that a summary covers are listed in at most `max_listed_tokens`.
    """

    database: Database
    model: ChatModel
    count: CountTokens
    books: Books
    max_tokens: int
    max_listed_tokens: int
    lease_s: float

    name = "summaries that are due"
    slots = 2
    log_not_claimed = "summaries_not_found"
    log_failed = "summary_failed"
    log_raised = "summary_raised"

    async def claim(self) -> DueSummary | None:
        async with self.database.autocommit() as connection:
            return await claim_due(connection, lease_s=self.lease_s)

    async def run(self, job: DueSummary) -> bool:
        """Takes one step towards `job.until`. Returns True if it does not get there: the session is due again."""
        async with self.database.read_only() as connection:
            turns = await load_turns(connection, job.session_id, after=job.after, up_to=job.until, limit=MAX_MESSAGES)
        taken = self._one_step(turns)
        summary = job.summary
        if taken:
            messages = [message for turn in taken for message in turn]
            async with self.books.job(job.owner, job.session_id, lasts_s=self.lease_s) as account:
                summary = await summarise(self.model, summary, messages, account=account)
        covers = taken[-1][0].seq if taken else job.until
        async with self.database.autocommit() as connection:
            earlier = await recent_references(connection, job.session_id, up_to=covers)
            listed = self._listed(merge_results(earlier, ()))
            stored = await store_summary(connection, job, summary, covers=covers, references=listed)
            # Counting reads all messages: once they have doubled, that is two for each one that was ever said.
            has_doubled = covers.bit_length() > job.after.bit_length()
            await count_gaps(connection, job.session_id, again=has_doubled)
        log.info("summary_written", session_id=job.session_id, covers=covers, chars=len(summary or ""), stored=stored)
        return covers < job.until

    async def give_back(self, job: DueSummary, wait_s: float) -> None:
        async with self.database.autocommit() as connection:
            await give_back(connection, job, wait_s=wait_s)

    def ids(self, job: DueSummary) -> dict[str, str]:
        return {"session_id": job.session_id}

    def _listed(self, newest_first: Sequence[Reference]) -> list[str]:
        """The lines of the newest results, as far as `max_listed_tokens` go."""
        lines = [listed_reference(reference, expired=()) for reference in newest_first]
        sizes = accumulate(map(self.count, lines))
        return [line for line, size in zip(lines, sizes, strict=True) if size <= self.max_listed_tokens]

    def _one_step(self, turns: list[list[Message]]) -> list[list[Message]]:
        """The oldest turns that fit one call; at least one."""
        sizes = accumulate(
            sum(self.count(orjson.dumps(condensed(message)).decode()) for message in turn) for turn in turns
        )
        fitting = sum(size <= self.max_tokens for size in sizes)
        return turns[: max(fitting, 1)]
