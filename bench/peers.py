"""Other agent servers under the same load and model, if they are installed; each costs at most its own line.

`make peers` installs them for `make bench`, and `PEERS=/path/to/python:/path/to/another` names others. Both speak the
Agent Protocol. Their agent is the bare call; what they store gets an empty database.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import orjson

from bench.client import Connection, Session, connected
from bench.load import load
from bench.processes import BareCaller, Group, Setup, free_port, listens, started
from bench.provider import MESSAGE
from bench.report import Results, growth, ratio

AGENT = """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="scripted", max_retries=0)


async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke([("system", "You are an assistant."), *state["messages"][-20:]])]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""
CONFIGURATION = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}
OFFLINE = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
BATCH = 5
SESSIONS = 16
HAS = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


@dataclass(frozen=True, slots=True)
class Peer:
    """`python -m` runs its `command`; None if it is installed nowhere."""

    name: str
    command: Sequence[str]
    python: str | None


@dataclass(frozen=True, slots=True)
class PeerSizes:
    """Rounds of turns of one thread, and rounds of SESSIONS threads at once, each of so many seconds."""

    rounds: int = 10
    loads: int = 4
    load_s: float = 2.5


class Thread(Session):
    """A session, as the Agent Protocol has it."""

    @classmethod
    async def new(cls, connection: Connection) -> Self:
        return cls(connection, (await connection.post("/threads", {}))["thread_id"])

    async def turn(self, message: str = MESSAGE, **options: Any) -> Any:
        order = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": message}]}, **options}
        return await self.connection.post(f"/threads/{self.id}/runs/wait", order)


def peers() -> Iterator[Peer]:
    at_once = ("--n-jobs-per-worker", str(SESSIONS))
    for name, package, *command in (
        ("langgraph dev, in memory", "langgraph_cli", "langgraph_cli", "dev", "--no-browser", "--no-reload", *at_once),
        ("aegra-api", "aegra_api", "uvicorn", "aegra_api.main:app"),
    ):
        yield Peer(name, command, python_with(package))


def python_with(module: str) -> str | None:
    """Returns the first Python of PEERS that has a module; None if no one has."""
    pythons = [each for each in os.environ.get("PEERS", "").split(os.pathsep) if each]

    def has(python: str) -> bool:
        return subprocess.run([python, "-c", HAS, module], check=False).returncode == 0  # noqa: S603 (the caller names it)

    return next(filter(has, pythons), None)


async def measure_peer(within: Setup, peer: Peer, bare: BareCaller, results: Results, sizes: PeerSizes) -> None:
    """Adds the turns of one thread, each batch after a batch of bare calls, and those of SESSIONS threads at once."""
    ratios = []
    async with _serving(within, peer) as group:
        async with connected(group.ports[0]) as connection:
            thread = await Thread.new(connection)
            await thread.turn()
            for _ in range(sizes.rounds):
                bare_ms = median(await bare.milliseconds(BATCH))
                ratios.append(median([await thread.timed_turn() for _ in range(BATCH)]) / bare_ms)
        results.measures += [
            ratio(f"{peer.name}: turn ÷ bare call", ratios),
            growth(f"{peer.name}: time of a turn, last quarter of the thread ÷ first", ratios),
        ]
        async with load(results, group, sessions=SESSIONS, kind=Thread) as threads:
            for _ in range(sizes.loads):
                await threads.round(bare, seconds=sizes.load_s)
            threads.record()


@asynccontextmanager
async def _serving(within: Setup, peer: Peer) -> AsyncIterator[Group]:
    folder = within.folder / peer.name
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    for name in ("langgraph.json", "aegra.json"):
        (folder / name).write_bytes(orjson.dumps(CONFIGURATION))
    port, stores = free_port(), await within.new_stores()
    model = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": within.provider_url}
    settings = {**OFFLINE, **model, "DATABASE_URL": stores.database_url}
    arguments = ("-m", *peer.command, "--host", "127.0.0.1", "--port", str(port))
    async with started(str(peer.python), *arguments, folder=folder, settings=settings) as process:
        await listens(process, port, folder)
        yield Group(peer.name, stores, [port], [process.pid])
