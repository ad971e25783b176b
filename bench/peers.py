"""Other servers of agents, where somebody has installed them: the same load and the same model, one short turn each.

`PEERS=/path/to/python make bench`, where that Python has `langchain-openai` and `langgraph-cli[inmem]` or `aegra-api`;
the latter needs an empty database too, PEERS_DATABASE_URL. Both speak the Agent Protocol. Their agent is the bare call.
"""

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from bench.load import Connection, Refused, connected
from bench.measure import Left, Measure, quarters
from bench.processes import NotStarted, Surroundings, free_port, listens, started
from bench.provider import MESSAGE

AGENT = """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="scripted", max_retries=0)


async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke([("system", "You are an assistant."), *state["messages"][-20:]])]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""
CONFIGURATION = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    program: str
    arguments: Sequence[str]
    settings: Mapping[str, str]


async def measured(within: Surroundings, *, turns: int, bare_ms: float) -> list[Measure | Left]:
    """Beside `bare_ms`, the median of the run's bare calls, since a peer must not wait for ours."""
    found: list[Measure | Left] = []
    for peer in _peers(within.provider_url):
        if isinstance(peer, Left):
            found.append(peer)
            continue
        try:
            async with _serving(within, peer) as port, connected(port) as connection:
                found += _measures(peer, await _turns(connection, turns), bare_ms)
        except (NotStarted, Refused) as error:
            found.append(Left(peer.name, str(error).strip().splitlines()[-1]))
    return found


def _peers(provider_url: str) -> Iterator[Peer | Left]:
    python = os.environ.get("PEERS")
    if python is None:
        yield Left("aegra-api, langgraph-cli[inmem]", "PEERS names no Python that has them")
        return
    settings = {"PYTHONPATH": "", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": provider_url}
    programs = str(Path(python).parent)
    langgraph, uvicorn = shutil.which("langgraph", path=programs), shutil.which("uvicorn", path=programs)
    database = os.environ.get("PEERS_DATABASE_URL")
    if langgraph:
        yield Peer("langgraph dev, in memory", langgraph, ("dev", "--no-browser", "--no-reload"), settings)
    else:
        yield Left("langgraph-cli[inmem]", "not installed")
    if uvicorn and database:
        yield Peer("aegra-api", uvicorn, ("aegra_api.main:app",), settings | {"DATABASE_URL": database})
    else:
        yield Left("aegra-api", "not installed, or PEERS_DATABASE_URL is not set")


@asynccontextmanager
async def _serving(within: Surroundings, peer: Peer) -> AsyncIterator[int]:
    folder = within.folder / peer.name
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    for name in ("langgraph.json", "aegra.json"):
        (folder / name).write_bytes(orjson.dumps(CONFIGURATION))
    port = free_port()
    arguments = (*peer.arguments, "--host", "127.0.0.1", "--port", str(port))
    async with started(*arguments, program=peer.program, folder=folder, settings=peer.settings) as process:
        await listens(process, port, folder)
        yield port


async def _turns(connection: Connection, count: int) -> list[float]:
    """Milliseconds of the turns of one thread."""
    thread = (await connection.post("/threads", {}))["thread_id"]
    order = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": MESSAGE}]}}
    times = []
    for _ in range(count):
        started_at = time.perf_counter()
        await connection.post(f"/threads/{thread}/runs/wait", order)
        times.append((time.perf_counter() - started_at) * 1000)
    return times


def _measures(peer: Peer, turns: Sequence[float], bare_ms: float) -> list[Measure]:
    first, last = quarters(turns)
    return [
        Measure(f"{peer.name}: turn ÷ bare call", median(turns) / bare_ms, digits=2),
        Measure(f"{peer.name}: time of a turn over {len(turns)}, last quarter ÷ first", last / first, digits=2),
    ]
