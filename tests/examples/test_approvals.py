"""The story of docs/approvals.md with the rule and the receiver that stand there: a refund that finance decides on,
from a link that came in Slack or by mail.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_string, policy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from segue import tool
from segue.config import Settings
from tests.support.commands import ROOT, segue
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, calls, says
from tests.support.receiver import SECRET
from tests.support.server import serving
from tests.support.service import Client, running

pytestmark = pytest.mark.usefixtures("long_leases")

PAGE = (ROOT / "docs/approvals.md").read_text("utf-8")
[RULE] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PEOPLE = {"sara": {"slack": "U012AB3CD", "mail": "sara@acme.example"}, "zoe": {"mail": "zoe@acme.example"}}


@dataclass(slots=True)
class Office:
    """Slack and a mail server as the receiver meets them, and the accounts: what was posted, sent and refunded."""

    posted: list[dict[str, Any]] = field(default_factory=list)
    mails: list[Any] = field(default_factory=list)
    refunds: list[float] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def slack(self, request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer xoxb-test"
        await self._note(self.posted, await request.json())
        return JSONResponse({"ok": True})

    async def smtp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode():
            command = line[:4].strip().upper()
            if command == "DATA":
                writer.write(b"354 go on\r\n")
                text = (await reader.readuntil(b"\r\n.\r\n")).decode().removesuffix(".\r\n")
                await self._note(self.mails, message_from_string(text, policy=policy.default))
            writer.write(b"221 bye\r\n" if command == "QUIT" else b"250 yes\r\n")
        writer.close()

    async def _note(self, where: list[Any], what: Any) -> None:
        async with self.came:
            where.append(what)
            self.came.notify_all()

    async def told(self, count: int) -> tuple[str, str]:
        """The links of the question of this number: sara's in Slack and zoe's by mail."""
        async with self.came, asyncio.timeout(30):
            await self.came.wait_for(lambda: min(len(self.posted), len(self.mails)) >= count)
        [button] = self.posted[count - 1]["blocks"][-1]["elements"]
        [address] = re.findall(r"^http\S+", self.mails[count - 1].get_content(), re.MULTILINE)
        return urlsplit(button["url"]).path, urlsplit(address).path


@asynccontextmanager
async def receiving(office: Office, folder: Path) -> AsyncIterator[str]:
    """The URL of examples/approvals/receiver.py as a process of its own."""
    (folder / "people.json").write_text(json.dumps(PEOPLE))
    smtp = await asyncio.start_server(office.smtp, "127.0.0.1", 0)
    async with (
        smtp,
        serving(Starlette(routes=[Route("/api/chat.postMessage", office.slack, methods=["POST"])])) as slack,
    ):
        own = {"WEBHOOK_SECRET": SECRET, "PEOPLE": str(folder / "people.json"), "PORT": "0", "SLACK_TOKEN": "xoxb-test"}
        sends = {
            "SLACK_API": f"{slack}/api",
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(smtp.sockets[0].getsockname()[1]),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "examples/approvals/receiver.py"),
            env={**os.environ, **own, **sends},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            yield (await process.stdout.readline()).decode().split()[-1]
        finally:
            process.kill()
            await process.wait()


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
async def told(settings: Settings, office: Office, tmp_path: Path) -> AsyncIterator[Settings]:
    path = tmp_path / "agents.toml"
    path.write_text(RULE)
    async with receiving(office, tmp_path) as url:
        hook = {"webhook_url": SecretStr(url), "webhook_secret": SecretStr(SECRET), "webhook_content": True}
        yield settings.model_copy(update={**hook, "agents_config": path, "auth": "api_key", "turn_lease_s": 1})


@pytest.fixture
async def service(told: Settings, office: Office) -> AsyncIterator[Client]:
    @tool(effect="destructive")
    async def refund(order: str, amount: float) -> str:
        """Refunds an order."""
        office.refunds.append(amount)
        return f"refunded {order}"

    async with running(told, tools=[refund]) as served:
        yield served


@pytest.fixture
async def carl(service: Client, settings: Settings) -> AsyncIterator[Client]:
    """A clerk, who is in finance too."""
    for user in PEOPLE:
        await new_key(settings, user, groups=["finance"])
    async with speaking(service, await new_key(settings, "carl", groups=["finance"])) as client:
        yield client


async def asks(carl: Client, provider: Provider, amount: float, session: str | None = None) -> dict[str, Any]:
    provider.will(calls(("refund", {"order": "A-17", "amount": amount})))
    answer = await carl.chat(session or await carl.new_session(), f"Refund {amount} euros of order A-17")
    assert answer["plan"]["status"] == "waiting"
    return answer


async def press(service: Client, link: str, **form: str) -> httpx2.Response:
    return await service.http.post(link, data=form)


async def test_a_refund_of_80_runs_with_the_clerks_yes_and_one_of_800_once_with_saras_from_a_link(
    service: Client, carl: Client, provider: Provider, office: Office
) -> None:
    small = await asks(carl, provider, 80)
    provider.will(says("Done."))
    await press_yes(carl, small, 200)
    assert office.refunds == [80]

    large = await asks(carl, provider, 800)
    await press_yes(carl, large, 403)
    link, zoes = await office.told(1)
    assert office.posted[0]["channel"] == PEOPLE["sara"]["slack"]
    assert [mail["to"] for mail in office.mails] == [PEOPLE["zoe"]["mail"]]
    shown = [(block["type"], block.get("text", {}).get("text")) for block in office.posted[0]["blocks"]]
    assert shown[:2] == [
        ("section", "*carl asks for a yes: refund*"),
        ("section", '```{\n "order": "A-17",\n "amount": 800\n}```'),
    ]

    for _ in range(3):
        seen = await service.http.get(link)
    assert (seen.status_code, office.refunds) == (200, [80])
    assert "script" not in seen.text
    assert "amount: 800" in seen.text
    once_more = await press(service, link, decision="confirm")
    assert (once_more.status_code, office.refunds) == (200, [80])
    provider.will(says("Done too."))
    assert (await press(service, link, decision="confirm", sure="yes")).status_code == 200
    await carl.ended(large["session_id"], 2)
    assert office.refunds == [80, 800]
    for each in (link, zoes):
        assert (await press(service, each, decision="confirm", sure="yes")).status_code == 410
        assert (await service.http.get(each)).status_code == 410
    assert office.refunds == [80, 800]


async def press_yes(client: Client, asked: dict[str, Any], status: int) -> None:
    body = {"decision": "confirm", "version": asked["plan"]["version"]}
    answer = await client.http.post(f"/sessions/{asked['session_id']}/plan/decision", json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.sweep
async def test_in_the_terminal_what_waits_is_shown_and_approved_or_rejected_with_a_reason(
    service: Client, told: Settings, carl: Client, provider: Provider, office: Office
) -> None:
    sara = await new_key(told, "sara", groups=["finance"])
    environment = {"SEGUE_URL": str(service.http.base_url), "SEGUE_API_KEY": sara}

    async def approvals(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(segue, "approvals", *words, **environment)

    assert (await approvals())[1].endswith("Nothing waits for your yes.\n")
    for amount, words, said in ((900, ("reject", "--reason", "Not ours"), "rejected"), (800, ("approve",), "approved")):
        asked = await asks(carl, provider, amount)
        plan = asked["plan"]["id"]
        code, shown = await approvals("list")
        assert (code, f"amount: {amount}" in shown, "carl asks" in shown) == (0, True, True)
        decision, *options = words
        assert (await approvals(decision, plan, *options))[0] == 2  # there is no terminal to ask on
        provider.always("", says("Done."))
        assert (await approvals(decision, plan, *options, "--yes"))[1].endswith(f"{plan} is {said}.\n")
        await carl.ended(asked["session_id"], 2)
        assert (await approvals(decision, plan, "--yes"))[0] == 1
        provider.habits.clear()
    assert office.refunds == [800]
