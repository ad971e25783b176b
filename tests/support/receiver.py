"""A receiver of webhooks, which checks each signature as the specification is written, and answers as it is told."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.patience import PATIENCE_S
from tests.support.server import serving

SECRET = "whsec_" + base64.b64encode(b"a secret that signs what is sent").decode()


def is_signed(secret: str, headers: Any, body: bytes) -> bool:
    """Standard Webhooks 1.0.0, "Signature scheme" and "Webhook headers"."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [each.partition(",") for each in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(digest, expected) for version, _, digest in given)


@dataclass(frozen=True, slots=True)
class Post:
    id: str
    at: int
    type: str
    timestamp: str
    data: dict[str, Any]
    headers: dict[str, str]
    body: bytes


def _accepts(_: Post) -> Response:
    return Response(status_code=204)


@dataclass(slots=True)
class Receiver:
    """`posts` are all tries, in the order in which they came. `answer` is asked for each; `hangs` keeps it back."""

    url: str = ""
    posts: list[Post] = field(default_factory=list)
    answer: Callable[[Post], Response] = _accepts
    hangs: asyncio.Event | None = None
    at_once: int = 0
    most_at_once: int = 0
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        assert is_signed(SECRET, request.headers, body)
        said, headers = orjson.loads(body), dict(request.headers)
        at = int(headers["webhook-timestamp"])
        post = Post(headers["webhook-id"], at, said["type"], said["timestamp"], said["data"], headers, body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self.came:
            self.posts.append(post)
            self.came.notify_all()
        try:
            if self.hangs is not None:
                await self.hangs.wait()
            return self.answer(post)
        finally:
            self.at_once -= 1

    async def until(self, enough: Callable[[list[Post]], bool]) -> list[Post]:
        async with self.came, asyncio.timeout(PATIENCE_S):
            await self.came.wait_for(lambda: enough(self.posts))
        return self.posts

    async def until_told_of(self, turn_id: str) -> None:
        await self.until(lambda posts: any(post.data.get("turn_id") == turn_id for post in posts))

    async def first(self, count: int) -> list[Post]:
        return (await self.until(lambda posts: len(posts) >= count))[:count]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with serving(Starlette(routes=[Route("/hook", receiver.receive, methods=["POST"])])) as url:
        receiver.url = f"{url}/hook"
        yield receiver
