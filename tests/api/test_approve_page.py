"""The page behind a signed link: what it shows, what it refuses, and that only the last of its forms decides."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from segue import tool
from segue.config import Settings
from segue.domain.ids import utc_now
from tests.support.commands import ROOT
from tests.support.identity import new_key, speaking
from tests.support.plans import Frozen, planned
from tests.support.provider import Provider, calls, says
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.service import Client, running
from tests.support.stores import looking_into

pytestmark = pytest.mark.usefixtures("long_leases")

RULE = """
[[agents.segue.approvals]]
tool = "pay"
who = "{who}"
group = "approver"
"""
PAGE = (ROOT / "docs/approvals.md").read_text("utf-8")
DESCRIBED = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
HOSTILE = "</pre><script>alert(1)</script>\u202e"
ASKS = {
    "Pay 800 euros to the shop of Rossi, please": "asks for a yes",
    "Paga 800 euro al negozio di Rossi, per favore": "chiede un’approvazione",
    "请向 Rossi 的商店支付 800 欧元": "请求批准",
    "ادفع 800 يورو إلى متجر روسي من فضلك": "يطلب موافقة",
}


@dataclass(slots=True)
class Desk:
    """A clerk, what they have paid, and the approvers, of whom the webhook is told."""

    service: Client
    carl: Client
    root: Client
    provider: Provider
    receiver: Receiver
    clock: Frozen
    settings: Settings
    paid: list[str] = field(default_factory=list)

    async def asks(self, message: str = "Pay 800 euros", to: str = "shop") -> tuple[dict[str, Any], dict[str, str]]:
        """The answer that waits, and the links by user."""
        self.provider.will(calls(("pay", {"to": to, "amount": 800})))
        answer = await self.carl.chat(await self.carl.new_session(), message)
        return answer, await self.links(answer["plan"]["id"], answer["plan"]["version"])

    async def links(self, plan_id: str, version: int) -> dict[str, str]:
        def is_it(post: Any) -> bool:
            return (post.data.get("plan_id"), post.data.get("plan_version")) == (plan_id, version)

        posts = await self.receiver.until(lambda posts: any(map(is_it, posts)))
        [post] = filter(is_it, posts)
        return {each["user"]: urlsplit(each["url"]).path for each in post.data["links"]}

    async def presses(self, link: str, **form: str) -> httpx2.Response:
        return await self.service.http.post(link, data=form)

    async def refuses(self, link: str, status: int) -> None:
        """However it is asked."""
        for answer in (
            await self.service.http.get(link),
            await self.presses(link, decision="confirm"),
            await self.presses(link, decision="confirm", sure="yes"),
            await self.presses(link, decision="reject", sure="yes"),
        ):
            assert (answer.status_code, "<form" in answer.text) == (status, False), answer.text


@pytest.fixture
def who() -> str:
    return "other"


@pytest.fixture
async def desk(settings: Settings, provider: Provider, tmp_path: Path, who: str) -> AsyncIterator[Desk]:
    clock, path, paid = Frozen(), tmp_path / "agents.toml", list[str]()
    clock.now = utc_now()  # PostgreSQL looks at the times of keys
    path.write_text(RULE.format(who=who))

    @tool(effect="destructive")
    async def pay(to: str, amount: float) -> str:
        """Pays."""
        paid.append(f"{amount:g} to {to}")
        return "paid"

    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        hook = {"webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET), "turn_lease_s": 1}
        guarded = settings.model_copy(update={**hook, "agents_config": path, "auth": "api_key"})
        service = await stack.enter_async_context(running(guarded, clock=clock, tools=[pay]))
        for user in ("sara", "zoe"):
            await new_key(guarded, user, roles=["approver"])
        carl, root = await new_key(guarded, "carl", roles=["approver"]), await new_key(guarded, "root", ["ops"])
        clerk, operator = [await stack.enter_async_context(speaking(service, each)) for each in (carl, root)]
        yield Desk(service, clerk, operator, provider, receiver, clock, guarded, paid)


async def test_the_page_is_open_runs_nothing_and_shows_a_hostile_call_to_the_letter(desk: Desk) -> None:
    _, links = await desk.asks(to=HOSTILE)
    assert links.keys() == {"sara", "zoe"}
    told, described = desk.receiver.posts[-1].data, DESCRIBED["data"]
    assert described.keys() - {"…"} <= told.keys()
    assert described["waits_for"].keys() == told["waits_for"].keys()
    assert described["links"][0].keys() == told["links"][0].keys()
    page = await desk.service.http.get(links["sara"])
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert (page.headers["cache-control"], page.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "<script" not in page.text
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page.text
    assert "\u202e" not in page.text
    assert "carl" in page.text
    assert (await desk.service.http.head(links["sara"])).status_code == 200


@pytest.mark.sweep
async def test_a_decision_that_cannot_be_taken_now_says_so_on_the_page_and_can_be_taken_later(desk: Desk) -> None:
    form = {"decision": "reject", "sure": "yes"}
    assert (await desk.root.http.put("/ops/users/carl/limits", json={"turns_per_minute": 1})).status_code == 200
    _, links = await desk.asks()
    refused = await desk.presses(links["sara"], **form)
    assert (refused.status_code, refused.headers["content-type"]) == (429, "text/html; charset=utf-8")
    assert "Nothing was done: " in refused.text
    await desk.root.http.delete("/ops/users/carl/limits")
    async with looking_into(desk.settings) as stores, stores.database.transaction():
        await stores.database.execute("LOCK TABLE plans IN EXCLUSIVE MODE")
        unknown = await desk.presses(links["sara"], **form)
    assert (unknown.status_code, "The database cannot be used" in unknown.text) == (503, True)
    assert "Nothing was done" not in unknown.text
    assert (await desk.presses(links["sara"], **form)).status_code == 200


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("message", "said"), ASKS.items())
async def test_the_page_is_in_the_language_of_the_question(desk: Desk, message: str, said: str) -> None:
    _, links = await desk.asks(message)
    page = (await desk.service.http.get(links["sara"])).text
    assert said in page
    assert ('dir="rtl"' in page) == ("يورو" in message)


@pytest.mark.sweep
async def test_a_no_with_its_reason_ends_the_plan_and_is_told_to_the_asker(desk: Desk) -> None:
    asked, links = await desk.asks()
    page = await desk.presses(links["sara"], decision="reject", reason='Not "ours" <b>')
    assert 'value="Not &quot;ours&quot; &lt;b&gt;"' in page.text
    desk.provider.always("", says("Sara said no."))
    assert (await desk.presses(links["sara"], decision="reject", reason="Not ours", sure="yes")).status_code == 200
    [plan] = (await desk.carl.get(f"/sessions/{asked['session_id']}/plans"))["items"]
    assert (plan["status"], desk.paid) == ("cancelled", [])
    assert (plan["steps"][0]["others"]["no_by"], plan["steps"][0]["others"]["reason"]) == ("sara", "Not ours")


async def test_a_link_of_an_older_version_of_an_expired_question_or_of_a_revoked_key_does_nothing(desk: Desk) -> None:
    asked, links = await desk.asks()
    token = links["sara"].rpartition("/")[2]
    forged = [token[:-1] + ("A" if token[-1] != "A" else "B"), token.replace(".", ".9", 1), f"{token}x", "x"]
    for each in forged:
        await desk.refuses(f"/approve/{each}", 404)
    other_version = re.sub(r"\.(\d+)\.(\d+)\.", lambda found: f".{int(found[1]) + 1}.{found[2]}.", token)
    await desk.refuses(f"/approve/{other_version}", 404)  # the number is signed

    async with looking_into(desk.settings) as stores:  # and so is the key of its person
        change_key = "UPDATE api_keys SET digest = translate(digest, $1, $2) WHERE owner = 'sara'"
        await stores.database.execute(change_key, "0123456789", "1234567890")
        await desk.refuses(links["sara"], 404)
        await stores.database.execute(change_key, "1234567890", "0123456789")
    assert (await desk.service.http.get(links["sara"])).status_code == 200
    keys = (await desk.root.get("/ops/keys", user="sara"))["items"]
    assert (await desk.root.http.delete(f"/ops/keys/{keys[0]['id']}")).status_code == 204
    await desk.refuses(links["sara"], 404)

    less = {"id": 1, "description": "Pay the shop", "tool": "pay", "args": {"to": "shop", "amount": 700}}
    desk.provider.will(planned([less]))
    change = {"decision": "amend", "version": asked["plan"]["version"], "message": "Only 700"}
    changed = (await desk.carl.http.post(f"/sessions/{asked['session_id']}/plan/decision", json=change)).json()
    await desk.refuses(links["zoe"], 410)
    newer = await desk.links(changed["plan"]["id"], changed["plan"]["version"])
    assert newer.keys() == {"zoe"}  # sara has no key any more
    assert "amount: 700" in (await desk.service.http.get(newer["zoe"])).text
    desk.clock.now += timedelta(days=2)
    await desk.refuses(newer["zoe"], 410)
    _, again = await desk.asks()
    assert "<form" in (await desk.service.http.get(again["zoe"])).text
    assert desk.paid == []


@pytest.mark.parametrize("who", ["two"])
async def test_where_two_have_to_agree_each_has_a_link_of_their_own_and_the_first_yes_runs_nothing(desk: Desk) -> None:
    asked, links = await desk.asks()
    assert links.keys() == {"carl", "sara", "zoe"}
    assert (await desk.presses(links["sara"], decision="confirm", sure="yes")).status_code == 200
    assert desk.paid == []
    plan = (await desk.carl.get(f"/sessions/{asked['session_id']}"))["pending_plan"]
    newer = await desk.links(plan["id"], plan["version"])
    assert newer.keys() == {"carl", "zoe"}
    await desk.refuses(links["sara"], 410)
    await desk.refuses(links["zoe"], 410)
    desk.provider.will(says("Paid."))
    assert (await desk.presses(newer["zoe"], decision="confirm", sure="yes")).status_code == 200
    await desk.carl.ended(asked["session_id"], 2)
    assert desk.paid == ["800 to shop"]


@pytest.mark.sweep
async def test_a_form_that_no_page_sends_is_refused_and_one_with_control_characters_is_read(desk: Desk) -> None:
    asked, links = await desk.asks()
    hostile = {
        "reason=" + "x" * 16_384: (413, "body_too_large"),
        "reason=" + "%41" * 300_000: (413, "body_too_large"),
        "a=b&" * 4_000: (422, "invalid_request"),
        "a=b&" * 250_000: (413, "body_too_large"),
        "decision=confirm&sure=yes&" + "&" * 7: (422, "invalid_request"),
        "x" * 2_000_000: (413, "body_too_large"),
    }
    of_form = {"content-type": "application/x-www-form-urlencoded"}
    for body, refused in hostile.items():
        answer = await desk.service.http.post(links["sara"], content=body, headers=of_form)
        assert (answer.status_code, answer.json()["code"]) == refused, body[:40]
    assert "<form" in (await desk.service.http.post(links["sara"], content=b"\xff\x00", headers=of_form)).text
    desk.provider.always("", says("Sara said no."))
    answer = await desk.presses(links["sara"], decision="reject", reason="Not\0 \x1b[31mours", sure="yes")
    assert answer.status_code == 200
    [plan] = (await desk.carl.get(f"/sessions/{asked['session_id']}/plans"))["items"]
    assert (plan["status"], plan["steps"][0]["others"]["reason"]) == ("cancelled", "Not [31mours")


async def test_a_link_is_not_logged(desk: Desk) -> None:
    _, links = await desk.asks()
    async with looking_into(desk.settings) as stores, stores.hidden("plans"):
        with capture_logs() as failed:
            assert (await desk.service.http.get(links["sara"])).status_code == 500
    raised = [each["path"] for each in failed if each["event"] == "request_raised"]
    assert (raised, links["sara"].rpartition("/")[2] in str(failed)) == (["/approve/…"], False)
    with capture_logs() as logs:
        assert (await desk.service.http.get(links["sara"])).status_code == 200
        await desk.presses(links["sara"], decision="confirm")
        await desk.service.http.get(links["sara"] + "/more")
    told = [each["path"] for each in logs if each["event"] == "request"]
    assert (told, links["sara"].rpartition("/")[2] in str(logs)) == (["/approve/…"] * 3, False)
