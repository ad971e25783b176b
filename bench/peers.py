"""Other agent servers under the same load and model, if they are installed; each costs at most its own line.

`PEERS=/path/to/python make bench`: that Python has `langchain-openai` and `langgraph-cli[inmem]` or `aegra-api`; the
latter needs an empty database as well, PEERS_DATABASE_URL. Both speak the Agent Protocol. Their agent is the bare call.
"""

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from bench.client import Connection, connected
from bench.processes import BareCaller, Setup, free_port, listens, started
from bench.provider import MESSAGE
from bench.report import Measure, growth, ratio

AGENT = """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="scripted", max_retries=0)


async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke([("system", "You are an assistant."), *state["messages"][-20:]])]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""
CONFIGURATION = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}
BATCH = 5


@dataclass(frozen=True, slots=True)
class Peer:
    """`missing` says what is not installed or set, if it cannot be measured."""

    name: str
    program: str | None
    arguments: Sequence[str]
    missing: str = ""


def peers() -> Iterator[Peer]:
    python = os.environ.get("PEERS")
    programs = str(Path(python).parent) if python else ""
    langgraph, uvicorn = shutil.which("langgraph", path=programs), shutil.which("uvicorn", path=programs)
    without = "not installed" if python else "PEERS names no Python that has it"
    yield Peer(
        "langgraph dev, in memory", langgraph, ("dev", "--no-browser", "--no-reload"), "" if langgraph else without
    )
    if uvicorn and "PEERS_DATABASE_URL" not in os.environ:
        without = "PEERS_DATABASE_URL is not set"
        uvicorn = None
    yield Peer("aegra-api", uvicorn, ("aegra_api.main:app",), "" if uvicorn else without)


async def measure_peer(within: Setup, peer: Peer, bare: BareCaller, *, rounds: int) -> list[Measure]:
    """Returns the measures of the turns of one thread, each batch after a batch of bare calls."""
    ratios = []
    async with _serving(within, peer) as port, connected(port) as connection:
        thread = (await connection.post("/threads", {}))["thread_id"]
        await _turn_ms(connection, thread)
        for _ in range(rounds):
            bare_ms = median(await bare.milliseconds(BATCH))
            ratios.append(median([await _turn_ms(connection, thread) for _ in range(BATCH)]) / bare_ms)
    return [
        ratio(f"{peer.name}: turn ÷ bare call", ratios),
        growth(f"{peer.name}: time of a turn, last quarter of the thread ÷ first", ratios),
    ]


async def _turn_ms(connection: Connection, thread: str) -> float:
    order = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": MESSAGE}]}}
    started_at = time.perf_counter()
    await connection.post(f"/threads/{thread}/runs/wait", order)
    return (time.perf_counter() - started_at) * 1000


@asynccontextmanager
async def _serving(within: Setup, peer: Peer) -> AsyncIterator[int]:
    folder = within.folder / peer.name
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    for name in ("langgraph.json", "aegra.json"):
        (folder / name).write_bytes(orjson.dumps(CONFIGURATION))
    port = free_port()
    settings = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": within.provider_url}
    if "PEERS_DATABASE_URL" in os.environ:
        settings["DATABASE_URL"] = os.environ["PEERS_DATABASE_URL"]
    arguments = (*peer.arguments, "--host", "127.0.0.1", "--port", str(port))
    async with started(str(peer.program), *arguments, folder=folder, settings=settings) as process:
        await listens(process, port, folder)
        yield port
