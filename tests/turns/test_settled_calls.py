"""A call that did not answer is settled by the check that its tool names; only what stays open is unknown."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from segue import create_app, tool
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.tool import ToolLost
from segue.mcp.mcp_config import read_mcp_config
from segue.models.untrusted import unfenced
from segue.plans.store import StoredPlan, settle_step
from segue.tools.catalog import ToolCatalog
from segue.tools.native import native_tools
from tests.support.plans import planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import looking_into

TO_RUNNING = "UPDATE plans SET status = 'active', steps = jsonb_set(steps, '{0,status}', '\"running\"')"
CHECK = {"tool": "paid", "args": {"invoice": "invoice"}, "done": "state == 'paid'", "not_done": "state == 'open'"}


@dataclass(slots=True)
class Bank:
    """What it was told to pay, and what it says of that: by default the truth."""

    payments: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)  # paid once somebody has looked
    pays: bool = True
    says: str | None = None


BANK = Bank()


@tool(effect="destructive", confirm=False, timeout_s=0.05, verify=CHECK)
async def pay(invoice: str) -> str:
    """Pays an invoice, and takes for ever to say so."""
    if BANK.pays:
        BANK.payments.append(invoice)
    await asyncio.Event().wait()
    return "paid"


@tool(effect="read_only")
async def paid(invoice: str) -> dict[str, str]:
    """Says whether an invoice is paid."""
    state = BANK.says or ("paid" if invoice in BANK.payments else "open")
    BANK.payments, BANK.orders = [*BANK.payments, *BANK.orders], []
    return {"state": state}


@tool(effect="destructive", confirm=False, timeout_s=2, verify=CHECK)
async def order_payment(invoice: str) -> str:
    """Has an invoice paid a little later, and loses the connection at once."""
    BANK.orders.append(invoice)
    raise ToolLost("The connection is gone.")


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    BANK.payments, BANK.orders, BANK.pays, BANK.says = [], [], True, None
    async with running(settings, tools=[pay, paid, order_payment]) as client:
        yield client


async def paying(client: Client, provider: Provider, answer: str) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """A session in which an invoice is paid, the answer, and the ledger in the order of calls."""
    provider.will(calls(("pay", {"invoice": "A-7"})), says(answer))
    session = await client.new_session()
    said = await client.chat(session, "Pay the invoice A-7.")
    return session, said, await ledger(client, session)


async def ledger(client: Client, session: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"/sessions/{session}/tool-results"))["items"]
    return items[::-1]


def shown(provider: Provider, call: int = 0) -> dict[str, Any]:
    """A result as the last request showed it."""
    result: dict[str, Any] = orjson.loads(unfenced(provider.messages(role="tool")[call]["content"]))
    return result


async def test_a_call_that_took_effect_and_did_not_answer_has_succeeded(client: Client, provider: Provider) -> None:
    _, answer, (call, check) = await paying(client, provider, "It is paid.")
    assert (call["status"], call["settled_by"], call["error"]) == ("succeeded", check["tool_call_id"], None)
    assert (check["tool_name"], check["args"], check["settled_by"]) == ("paid", {"invoice": "A-7"}, None)
    assert [each["status"] for each in answer["tool_calls"]] == ["succeeded", "succeeded"]
    assert shown(provider)["took_effect"] is True
    assert BANK.payments == ["A-7"]


async def test_a_call_that_took_no_effect_has_failed_and_may_be_made_again(client: Client, provider: Provider) -> None:
    BANK.pays = False
    session, _, (call, check, *_) = await paying(client, provider, "It is not paid.")
    assert (call["status"], call["settled_by"]) == ("failed", check["tool_call_id"])
    assert "has taken no effect" in shown(provider)["error"]
    BANK.pays = True
    provider.will(calls(("pay", {"invoice": "A-7"})), says("Now it is."))
    await client.chat(session, "Then again.")
    assert BANK.payments == ["A-7"]


async def test_that_nothing_was_done_counts_once_the_call_has_had_its_time(client: Client, provider: Provider) -> None:
    provider.will(calls(("order_payment", {"invoice": "B-1"})), says("It is paid."))
    session = await client.new_session()
    await client.chat(session, "Have the invoice B-1 paid.")
    call, first, second = await ledger(client, session)
    assert (call["status"], call["settled_by"]) == ("succeeded", second["tool_call_id"])
    assert (first["tool_name"], second["tool_name"]) == ("paid", "paid")


async def test_an_unknown_call_is_settled_though_one_like_it_has_succeeded_before(
    client: Client, provider: Provider
) -> None:
    session, *_ = await paying(client, provider, "It is paid.")
    BANK.says = "pending"
    provider.will(calls(("pay", {"invoice": "A-7"})), says("Whether it was paid again is unknown."))
    await client.chat(session, "Pay it once more.")
    BANK.says = None
    provider.will(says("It is paid after all."))
    await client.chat(session, "And now?")
    assert [each["status"] for each in await ledger(client, session) if each["tool_name"] == "pay"] == ["succeeded"] * 2


async def test_what_a_check_cannot_tell_is_unknown_and_the_next_turn_asks_it_again_before_the_model(
    client: Client, provider: Provider
) -> None:
    BANK.says = "pending"
    session, _, (call, _) = await paying(client, provider, "Whether it is paid is unknown.")
    assert (call["status"], call["settled_by"]) == ("unknown", None)
    BANK.says = None
    provider.will(says("It is paid after all."))
    answer = await client.chat(session, "And now?")
    settled, _, again = await ledger(client, session)
    assert (settled["status"], settled["settled_by"]) == ("succeeded", again["tool_call_id"])
    assert [each["tool_call_id"] for each in answer["tool_calls"]] == [again["tool_call_id"]]
    assert shown(provider)["took_effect"] is True
    rows = await client.messages(session)
    [told] = [row["content"] for row in rows if row.get("tool_call_id") == call["tool_call_id"]]
    assert told["status"] == "succeeded"
    provider.will(says("Yes."))
    await client.chat(session, "Sure?")
    assert len(await ledger(client, session)) == 3


async def test_a_tool_whose_check_may_change_something_is_refused() -> None:
    @tool(effect="write")
    async def paid(invoice: str) -> str:
        """Says whether an invoice is paid, and notes that."""
        return invoice

    with pytest.raises(AppError, match="Pay is verified by paid, which does not only read"):
        ToolCatalog(native_tools([pay, paid]), None)
    with pytest.raises(AppError, match="Pay is verified by paid, which does not exist"):
        ToolCatalog(native_tools([pay]), None)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"verify": {**CHECK, "done": "state =="}}, "is not JMESPath"),
        ({"verify": {**CHECK, "args": {"invoice": "["}}}, "is not JMESPath"),
        ({"verify": {"tool": "paid", "args": {}}}, "done"),
        ({"verify": {**CHECK, "sure": "true"}}, "sure is unknown"),
        ({"idempotency_arg": "key"}, "'key' is none of its arguments"),
    ],
)
def test_a_tool_that_could_not_be_settled_is_refused_where_it_is_made(given: dict[str, Any], why: str) -> None:
    async def buy(thing: str) -> str:
        """Buys a thing."""
        return thing

    with pytest.raises(TypeError, match=why):
        tool(effect="write", **given)(buy)


async def shelf_with(settings: Settings, folder: Path, shelf: Shelf, **keys: Any) -> None:
    path = folder / "mcp.json"
    path.write_bytes(orjson.dumps({"mcpServers": {"shelf": {"url": shelf.url, **keys}}}))
    app = create_app(settings.model_copy(update={"mcp_config": path}))
    async with app.router.lifespan_context(app):
        pass


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("set_aside", "burn_item is verified by set_aside, which does not only read"),
        ("nothing", "burn_item is verified by nothing, which does not exist"),
    ],
)
async def test_the_service_does_not_start_with_a_check_that_may_change_something(
    settings: Settings, tmp_path: Path, by: str, why: str
) -> None:
    check = {"tool": by, "args": {"item_id": "item_id"}, "done": "id"}
    async with serving_shelf() as shelf:
        with pytest.raises(AppError, match=why):
            await shelf_with(settings, tmp_path, shelf, verify={"burn_item": check})


def test_a_check_in_mcp_json_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path, check = tmp_path / "mcp.json", {"tool": "get", "args": {}, "done": "a b"}
    path.write_bytes(orjson.dumps({"mcpServers": {"a": {"url": "http://localhost/", "verify": {"burn": check}}}}))
    with pytest.raises(AppError, match=r"verify\.burn: 'a b' is not JMESPath"):
        read_mcp_config(path)


@pytest.mark.sweep
@pytest.mark.parametrize("status", ["unknown", "running"])
async def test_a_step_of_a_plan_that_has_moved_on_meanwhile_is_not_settled(
    status: str, client: Client, provider: Provider, settings: Settings, database_url: str
) -> None:
    BANK.says = "pending"
    provider.will(planned([{"id": 1, "description": "Pay", "tool": "pay", "args": {"invoice": "A-7"}}] * 2))
    provider.will(says("Whether it is paid is unknown."))
    plan = (await client.chat(await client.new_session(), "Pay the invoice A-7, then pay it again"))["plan"]
    assert [step["status"] for step in plan["steps"]] == ["unknown", "skipped"]
    database = Database(database_url)

    async def settles() -> StoredPlan | None:
        async with database.transaction() as connection:
            return await settle_step(connection, plan["id"], 1, "complete")

    async with looking_into(settings) as stores, looking_into(settings) as others:
        if status == "running":
            await stores.database.execute(TO_RUNNING)
        async with stores.database.transaction():
            await stores.database.execute("UPDATE plans SET version = version + 1")
            settling = asyncio.create_task(settles())
            await others.until_locked()
        assert await settling is None
        steps = orjson.loads(await stores.database.fetchval("SELECT steps FROM plans"))
    assert steps[0]["status"] == status
    await database.close()


async def test_a_call_that_may_have_taken_effect_is_made_again_only_after_a_yes(
    settings: Settings, provider: Provider
) -> None:
    """Also if it had succeeded before that; with other arguments it runs, and again once it has succeeded since."""
    taken: list[str] = []

    @tool(effect="write", timeout_s=0.05)
    async def note(text: str) -> str:
        """Notes a text, and takes for ever to say so the second time."""
        taken.append(text)
        if taken == ["x", "x"]:
            await asyncio.Event().wait()
        return "noted"

    async with running(settings, tools=[note]) as client:
        session = await client.new_session()
        for status in ("succeeded", "unknown"):
            provider.will(calls(("note", {"text": "x"})), says("I tried."))
            assert [each["status"] for each in (await client.chat(session, "note x"))["tool_calls"]] == [status]
        provider.will(calls(("note", {"text": "y"})), calls(("note", {"text": "x"})))
        body = {"message": "thanks. What time is it?", "stream": True}
        asked = (await client.http.post(f"/sessions/{session}/chat", json=body)).text
        assert asked.count("TOOL_CALL_START") == 1  # none that is held is shown while it is written
        assert "note: it is unknown whether this took effect" in asked
        assert ((await client.get(f"/sessions/{session}/plan"))["status"], taken) == ("waiting", ["x", "x", "y"])
        provider.will(says("Noted."))
        assert (await client.chat(session, "yes"))["plan"]["status"] == "completed"
        provider.will(calls(("note", {"text": "x"})), says("Noted once more."))
        assert (await client.chat(session, "note x again"))["plan"] is None
        assert taken == ["x", "x", "y", "x", "x"]
