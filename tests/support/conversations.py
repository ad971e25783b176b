"""Conversations with everything a recording has to hold, their recordings, and recordings played again."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segue.around.replay.fake_servers import replay_config
from segue.around.replay.run_replay import ReplayReport, RunningService, replay
from segue.config import Settings
from segue.domain.recording import read_recording
from tests.support.plans import ASK, THREE_STEPS, deletion, planned, reads
from tests.support.provider import Provider, Reply, calls, fails, says
from tests.support.server import serving
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf

SMALL_TALK = "How many items would you say there are altogether on the shelf in the hall downstairs?"


@asynccontextmanager
async def shelf_service(settings: Settings) -> AsyncIterator[Client]:
    """A service whose tools are a shelf, and a web search that always finds one page."""

    async def search(request: Request) -> JSONResponse:
        page = {"title": request.query_params["q"], "url": "https://example.com/found", "content": "Found."}
        return JSONResponse({"results": [page]})

    async with serving_shelf() as shelf, serving(Starlette(routes=[Route("/search", search)])) as searxng:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        searching = {"web_search_provider": "searxng", "searxng_url": searxng}
        async with running(settings.model_copy(update=searching)) as client:
            yield client


async def lamps(client: Client, provider: Provider) -> str:
    """A search, a plan that waits, talk beside it, a yes, a call that has to wait and its button."""
    session = await client.new_session(title="Inventory", metadata={"team": "hall"})
    provider.will(
        calls(("mcp_find_items", {"query": "lamps"}), text="Looking."),
        calls(("mcp_get_item", {"item_id": "itm-1"}), ("mcp_get_item", {"item_id": "itm-2"})),
        says("Three lamps; itm-1 and itm-2 are described above."),
    )
    await client.chat(session, "Which lamps are there?")
    provider.will(planned(THREE_STEPS))
    await client.chat(session, ASK)
    provider.will(says("Twelve."))
    await client.chat(session, SMALL_TALK)
    provider.will(says("Ho cancellato itm-1."))
    await client.chat(session, "va bene, grazie")
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-3"}), text="I would rather ask."))
    answer = await client.chat(session, "Delete item 3")
    provider.will(says("itm-3 is gone."))
    await decide(client, session, "confirm", answer["plan"]["version"])
    return session


async def changes_of_mind(client: Client, provider: Provider) -> str:
    """An amendment, a reply the rules cannot read, a no, a button that says no, messages to what runs."""
    session = await client.new_session()
    provider.will(planned([deletion(1), deletion(2)]))
    await client.chat(session, ASK)
    provider.will(reads("none"), planned([deletion(2), deletion(3)]))
    await client.chat(session, "sì, ma solo la seconda")
    provider.will(says('{"verdict": "question"}'), says("It deletes item 2."))
    await client.chat(session, "what would that do")
    provider.will(reads("none"), says("I cannot make sense of that."))
    await client.chat(session, "sì, ma solo la terza")
    await client.chat(session, "no, lascia stare")
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-9"})))
    answer = await client.chat(session, "Delete item 9")
    await decide(client, session, "reject", answer["plan"]["version"])
    lamps = {"query": "lamps"}
    provider.will(steered(client, session, calls(("mcp_find_items", lamps)), "the new ones"), says("Three are new."))
    await client.chat(session, "Which lamps are there?")
    finding = {"id": 1, "description": "Find", "tool": "mcp_find_items", "args": {"query": "desks"}}
    provider.will(steered(client, session, planned([finding, deletion(2)]), "leave the second"))
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"})), says("I have left it."))
    await client.chat(session, ASK)
    return session


def steered(client: Client, session: str, reply: Response, text: str) -> Reply:
    """A model whose user says this to the turn before it answers."""

    async def answer(_: dict[str, Any]) -> Response:
        assert (await client.send(session, text, on_busy="steer", background=True)).status_code == 202
        return reply

    return answer


async def buttons(client: Client, provider: Provider) -> str:
    """A button that changes the plan in words no rule reads as a change, and one with other arguments, for the rest of
    the session.
    """
    session = await client.new_session()
    provider.will(planned([deletion(4), deletion(5)]))
    answer = await client.chat(session, ASK)
    provider.will(planned([deletion(6)]))
    await decide(client, session, "amend", answer["plan"]["version"], message="I would much rather see the sixth go")
    version = (await client.get(f"/sessions/{session}/plan"))["version"]
    provider.will(says("itm-7 is gone."))
    await decide(client, session, "confirm", version, args={"item_id": "itm-7"}, remember="session")
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-8"})), says("itm-8 is gone."))
    await client.chat(session, "Delete itm-8")
    return session


async def troubles(client: Client, provider: Provider) -> str:
    """A step without a tool and one whose arguments are filled in, a tool that fails, one that is not there, arguments
    that do not fit, a plan that fails, a model that fails, and talk after all that.
    """
    session = await client.new_session()
    steps = [
        {"id": 1, "description": "Write a note", "tool": None},
        {"id": 2, "description": "Send it", "tool": "mcp_send_note", "args": {"to": "Ada"}},
    ]
    provider.will(
        planned(steps), says("Dear Ada, all is well."), calls(("mcp_send_note", {"to": "Ada", "text": "Dear Ada"}))
    )
    await client.chat(session, "Write a note to Ada, then send it")
    provider.will(says("Sent."))
    await client.chat(session, "yes")
    provider.will(
        calls(("mcp_broken", {"item_id": "itm-1"}), ("mcp_find", {"q": "x"}), ("mcp_get_item", {"number": 1})),
        says("None of that worked."),
    )
    await client.chat(session, "Read item 1")
    broken = [{"id": 1, "description": "Open", "tool": "mcp_broken", "args": {"item_id": "itm-1"}}, deletion(2)]
    provider.will(planned(broken), says("The shelf is closed."))
    await client.chat(session, ASK)
    provider.will(fails(500))
    assert (await client.send(session, "Read item 4")).status_code == 502
    provider.will(says("Good morning."))
    await client.chat(session, "Good morning to you")
    return session


async def searches(client: Client, provider: Provider) -> str:
    """A search that the user asked for, one that the toggle forced, and one, and the time, that the model asked for."""
    session = await client.new_session()
    provider.will(says("Found a page on ferries."))
    await client.chat(session, "Search the web for ferries from Trieste")
    provider.will(says("Found a page on trains."))
    await client.chat(session, "Trains from Trieste to Vienna on Sunday", force_web_search=True)
    provider.will(calls(("web_search", {"query": "buses"}), ("current_time", {})), says("Buses run too."))
    await client.chat(session, "And what about buses there?")
    return session


async def decide(client: Client, session: str, decision: str, version: int, **more: Any) -> None:
    body = {"decision": decision, "version": version, **more}
    response = await client.http.post(f"/sessions/{session}/plan/decision", json=body)
    assert response.status_code == 200, response.text


async def export(client: Client, session: str, **options: Any) -> str:
    response = await client.http.get(f"/sessions/{session}/export", params=options)
    assert response.status_code == 200, response.text
    return response.text


async def played(settings: Settings, *texts: str, model: str | None = None, **changed: Any) -> ReplayReport:
    """What a replay on a service in this process says of recordings; `changed` are settings of that service. A `model`
    is asked where the settings say.
    """
    folder = settings.mcp_config.parent
    files = [folder / f"recording-{number}.json" for number, _ in enumerate(texts, start=1)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, "utf-8")
    port = _free_port()
    base_url = f"http://127.0.0.1:{port}"
    asked = {"LLM_MODEL": model} if model else None
    recordings = {str(number): read_recording(text.encode()) for number, text in enumerate(texts)}
    config = replay_config(recordings, asked)
    settings.mcp_config.write_text(config.mcp_config(base_url))
    configured = {name.lower(): value for name, value in config.environment(base_url).items()}
    service = Settings.model_validate({**settings.model_dump(), **configured, **changed})
    async with running(service) as client:
        given = RunningService(str(client.http.base_url), None, ("127.0.0.1", port))
        return await replay(files, running=given, model=asked)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
