"""What was asked before a restart goes on after it: in four languages, offline, and with Redis emptied."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from tests.support.logs import awaiting
from tests.support.mailbox import write_mailbox_config
from tests.support.server import serving
from tests.support.service import Client, running

pytestmark = pytest.mark.sweep  # tests/examples/test_plan_conversation.py goes through kill -9 in CI

FOLLOW_UPS = [
    ("find the emails from Helen", "ok, read the second one", "eml-3074a9"),
    ("cerca le mail di Rossi", "sì, leggi", "eml-30b431"),
    ("搜索李伟的邮件", "好的，打开吧", "eml-896327"),
    ("ابحث عن رسائل ليلى", "نعم، افتحها", "eml-ca29f8"),
]
DELETIONS = [
    ("find the mails from Rossi and delete the oldest", "yes please", "eml-9d8f9b"),
    ("cerca le mail di Sara ed elimina la più vecchia", "sì, grazie", "eml-641eff"),
    ("搜索李伟的邮件并删除最旧的一封", "好的", "eml-21b26b"),
    ("ابحث عن رسائل ليلى واحذف أقدمها", "نعم", "eml-0a67af"),
]
LOOKED_UP = [
    "search the web for info on the sender of the last message",
    "cerca sul web info sul mittente dell'ultimo messaggio",
    "上网搜一下最后一封邮件的发件人",
    "ابحث في الإنترنت عن معلومات عن مرسل آخر رسالة",
]


@pytest.fixture
def searches() -> list[str]:
    return []


@pytest.fixture
async def offline(settings: Settings, tmp_path: Path, searches: list[str]) -> AsyncIterator[Settings]:
    async def search(request: Request) -> Response:
        searches.append(request.query_params["q"])
        return JSONResponse({"results": [{"url": "https://people.example/", "title": "People", "content": "many"}]})

    config, _ = write_mailbox_config(tmp_path)
    async with serving(Starlette(routes=[Route("/search", search)])) as url:
        yield settings.model_copy(
            update={
                "openai_base_url": None,
                "mcp_config": config,
                "web_search_provider": "searxng",
                "searxng_url": url,
            }
        )


async def ask(client: Client, message: str, session: str | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
    opened = session or await client.new_session()
    return opened, await client.chat(opened, message, **options)


def called(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["tool_name"], call["args"].get("email_id")) for call in answer["tool_calls"]]


async def test_a_yes_after_a_restart_does_what_was_asked_before_it(
    offline: Settings, servers: ServerUrls, searches: list[str]
) -> None:
    async with awaiting("mcp_server_ready") as ready, running(offline) as client:
        await ready.wait()
        reads = [(await ask(client, request))[0] for request, _, _ in FOLLOW_UPS]
        waiting = [await ask(client, request) for request, _, _ in DELETIONS]
        assert {answer["plan"]["status"] for _, answer in waiting} == {"waiting"}
    async with Redis.from_url(servers.redis_url, protocol=2) as redis:
        await redis.flushall()
    async with awaiting("mcp_server_ready") as ready, running(offline) as client:
        await ready.wait()
        for session, (_, yes, email_id) in zip(reads, FOLLOW_UPS, strict=True):
            assert called((await ask(client, yes, session))[1]) == [("mcp_get_email", email_id)], yes
        for (session, _), (_, yes, email_id) in zip(waiting, DELETIONS, strict=True):
            _, answer = await ask(client, yes, session)
            assert called(answer) == [("mcp_delete_email", email_id)], yes
            assert answer["plan"]["status"] == "completed"
        for message in LOOKED_UP:
            session, answer = await ask(client, message, force_web_search=True)
            assert [name for name, _ in called(answer)] == ["mcp_search_emails", "mcp_get_email", "web_search"]
            assert answer["web_search"] == {"requested": True, "performed": True, "reason": "asked_for"}
        assert searches == ["ليلى حداد noor design"] * len(LOOKED_UP)
        _, answer = await ask(client, "che impegni ho domani?", session, force_web_search=True)
        assert answer["web_search"] == {"requested": True, "performed": False, "reason": "private"}
        assert len(searches) == len(LOOKED_UP)
