"""Posts the due events of the outbox to the operator's webhook, signed as https://www.standardwebhooks.com says. At
least once, each try under the event's id, and in order per session: the next event waits until this one has a 2xx or is
given up. A receiver that fails, hangs or redirects holds at most `slots` requests.
"""

import asyncio
import base64
import hashlib
import hmac
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import httpx2
import orjson

from segue.db.engine import Database
from segue.db.redis_keys import Cache
from segue.domain.ids import Clock
from segue.domain.telemetry import Observe, WebhookOutcome, WebhookTried
from segue.events import outbox
from segue.events.outbox import DueEvent
from segue.log import log
from segue.net.addresses import NoSuchHost, NotPublic
from segue.net.http_client import retry_after_s
from segue.tools import tool_states
from segue.users.api_keys import ApprovalLinks

TIMEOUT_S: Final = 15.0  # of a try, as the specification has it
LEASE_S: Final = 2 * TIMEOUT_S
GIVE_UP_S: Final = 86_400.0
FIRST_WAIT_S: Final = 5.0  # then four times as long after each try
LONGEST_WAIT_S: Final = 10_800.0
DELIVERED: Final = range(200, 300)
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Webhooks:
    """A kind of job. Each of the `secrets`, raw bytes, signs every event: while one is replaced there are two."""

    database: Database
    cache: Cache
    client: httpx2.AsyncClient
    url: str
    secrets: Sequence[bytes]
    links: ApprovalLinks
    clock: Clock
    observe: Observe

    name = "webhook events that are due"
    slots = 4

    async def claim(self) -> DueEvent | None:
        """Redis lists the event of a tool that has failed for all until it is stored here."""
        claim = partial(outbox.claim_due, lease_s=LEASE_S)
        event = await self.database.write(claim)
        if event is None and (untold := await tool_states.unstored_failures(self.cache)):
            for event_id, tool in untold.items():
                await self.database.write(outbox.tool_failed, event_id, tool)
            await tool_states.failures_stored(self.cache, untold)
            event = await self.database.write(claim)
        return event

    async def run(self, job: DueEvent) -> bool:
        """Returns True: the next event of its session may be due."""
        answer, asked_s = await self._post(job)
        if answer in DELIVERED:
            return await self._settle(job, "delivered")
        failure = f"HTTP {answer}" if isinstance(answer, int) else answer
        if answer == GONE:
            return await self._settle(job, "gone", failure)
        if job.age_s >= GIVE_UP_S:
            return await self._settle(job, "given_up", failure)
        # Grows with the tries; without its random part the events of an outage would all come back at once.
        longest = min(FIRST_WAIT_S * 4.0 ** min(job.tries - 1, 10), LONGEST_WAIT_S)
        own = longest * random.uniform(0.5, 1)  # noqa: S311 (no secret)
        wait_s = max(own, min(asked_s, LONGEST_WAIT_S))
        await self.database.write(outbox.postpone, job, failure, wait_s=wait_s)
        log.warning("webhook_failed", failure=failure, tries=job.tries, again_in_s=round(wait_s), **self.ids(job))
        self.observe(WebhookTried("failed"))
        return True

    async def give_back(self, job: DueEvent, wait_s: float) -> None:
        await self.database.write(outbox.give_back, job, wait_s=wait_s)

    def ids(self, job: DueEvent) -> dict[str, str]:
        return {"event_id": job.id, "type": job.type}

    async def _settle(self, job: DueEvent, outcome: WebhookOutcome, failure: str | None = None) -> bool:
        if await self.database.write(outbox.drop, job):
            self.observe(WebhookTried(outcome))
            if outcome == "delivered":
                log.info("webhook_delivered", tries=job.tries, **self.ids(job))
            else:
                log.error("webhook_dropped", why=outcome, failure=failure, tries=job.tries, **self.ids(job))
        return True

    async def _post(self, job: DueEvent) -> tuple[int | str, float]:
        """Returns the status, or why there is none, and the seconds that the receiver wants to be left alone."""
        data = job.data
        if job.type == "approval.requested" and (waits_for := data.get("waits_for")) is not None:
            until, group = datetime.fromisoformat(data["expires_at"]), waits_for["group"]
            but = [*waits_for["yes_by"], *([data["user"]] if waits_for["who"] == "other" else [])]
            links = await self.links.make(data["plan_id"], data["plan_version"], until, group=group, but=but)
            data = {**data, "links": links}  # one for each of those who are asked; stored nowhere
        event = {"type": job.type, "timestamp": job.created_at.isoformat(), "data": data}
        body, at = orjson.dumps(event), int(self.clock().timestamp())
        headers = {"content-type": "application/json", "webhook-id": job.id, "webhook-timestamp": str(at)}
        headers["webhook-signature"] = signatures(self.secrets, job.id, at, body)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self.client.stream("POST", self.url, content=body, headers=headers) as response,
            ):
                return response.status_code, retry_after_s(response.headers) or 0.0
        except TimeoutError:
            return "timeout", 0.0
        except (httpx2.HTTPError, NotPublic, NoSuchHost) as error:
            return type(error).__name__, 0.0


def signatures(secrets: Sequence[bytes], event_id: str, at: int, body: bytes) -> str:
    """Returns one signature for each secret; a receiver takes any that is of its own."""
    signed = b".".join((event_id.encode(), str(at).encode(), body))
    digests = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
