"""What the requests of long sessions cost: how much of each a provider has in its cache, tokens, calls and dollars.

    [PEERS=python] python -m bench.prompts [--program path/to/segue] [--turns 100] [--setting NAME=VALUE]

Starts the program on servers of its own, with the tools of an MCP server and a scripted model that keeps every request.
Talks through a plain session, one with tools, one whose results are short, and one with 200 tools, of which every turn
needs another: the model calls it if it is shown, else it looks for it. One message in ten asks for several steps, but
none where results are short: that session and the one with tools are then talked through with the agents of others
(`bench/prompt_peers.py`), which make no plans. `make bench` has all of it.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.client import Session, connected
from bench.prompt_peers import peer_costs
from bench.report import Measure, count, table
from bench.scripted_sessions import (
    LONG,
    MANY,
    SHORT,
    TOOLS,
    Cost,
    Requests,
    cost_of,
    message_of,
    reply,
    scripted,
)
from segue.memory.history_window import estimate

WITH_TOOL, WITH_SHORT, OF_MANY = "with a tool", "short results", "with a tool of many"
KINDS = {
    "plain": (TOOLS, None),
    WITH_TOOL: (TOOLS, LONG),
    WITH_SHORT: (TOOLS, SHORT),
    OF_MANY: (MANY, LONG),
}
CYCLE = 30  # turns in which a window of any of the sessions fills up once
FILLED = 41  # the turn from which on requests are compared
START_TIMEOUT_S = 60


@asynccontextmanager
async def segue(program: str, port: int, folder: Path, settings: dict[str, str], count: int) -> AsyncIterator[int]:
    """Starts the program with its own stores; yields the port it listens on once it has so many tools."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own: int = taken.getsockname()[1]
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"bench": {"url": f"http://127.0.0.1:{port}/mcp"}}}), "utf-8")
    given = {
        "PATH": os.environ["PATH"],
        "PORT": str(own),
        "DATA_DIR": str(folder / "data"),
        "MCP_CONFIG": str(config),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "LLM_MODEL": "scripted",
        "WEB_SEARCH_PROVIDER": "none",
        **settings,
    }
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, "serve", env=given, cwd=folder, stdout=log, stderr=log)
        try:
            await _ready(own, folder, count)
            yield own
        finally:
            process.terminate()
            await process.wait()


async def _ready(port: int, folder: Path, count: int) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                async with connected(port) as connection:
                    if len((await connection.get("/tools?limit=200"))["items"]) > min(count, 199):
                        return
            except OSError:
                await asyncio.sleep(0.1)
            if "Traceback" in (folder / "log").read_text("utf-8"):
                raise RuntimeError((folder / "log").read_text("utf-8"))


async def talk(program: str, count: int, *, turns: int, asks: str | None, settings: dict[str, str]) -> Cost:
    requests, ends = Requests(), []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        message = reply(requests, body, count, asks=asks)
        requests.written += estimate(json.dumps(message))
        return message

    with tempfile.TemporaryDirectory() as folder:
        async with (
            scripted(answer, count) as port,
            segue(program, port, Path(folder), settings, count) as own,
            connected(own) as connection,
        ):
            session = await Session.new(connection)
            for requests.turn in range(turns):
                await session.turn(message_of(requests.turn, count, plans=asks != SHORT))
                ends.append(len(requests.bodies))
    return cost_of(requests, ends)


async def prompt_costs(program: Path, *, turns: int = 100, **settings: str) -> dict[str, Cost]:
    """Returns what a session of plain turns costs, and those in which each calls a tool, by the kind of session."""
    costs = {
        name: await talk(str(program), count, turns=turns, asks=asks, settings=settings)
        for name, (count, asks) in KINDS.items()
    }
    for name, asks in ((WITH_TOOL, LONG), (WITH_SHORT, SHORT)):
        of_peers = await peer_costs(asks, turns=turns, plans=asks != SHORT)
        costs |= {f"{name}, {peer}": cost for peer, cost in of_peers.items()}
    return costs


def measures_of(costs: dict[str, Cost]) -> list[Measure]:
    measures = []
    for name, cost in costs.items():
        turns, by_turn = len(cost.turns), cost.by_turn()
        whole = cost.share(since=cost.turns[FILLED - 2])
        # Whole cycles: the largest of the turns is one that happens to ask for several steps before a full window.
        growing = sum(by_turn[-CYCLE:]) / sum(by_turn[FILLED - 1 : FILLED - 1 + CYCLE])
        title = f"{turns} turns, {MANY if name == OF_MANY else TOOLS} tools, {name}"
        measures += [
            count(f"{title}: input tokens a turn", sum(cost.tokens) / turns, digits=0),
            count(f"{title}: dollars of input for 1,000 turns", cost.dollars(), digits=2),
            count(f"{title}: dollars for 1,000 turns", cost.dollars(with_output=True), digits=2),
            count(f"{title}: requests that share less than half with one before", cost.breaks, digits=0),
        ]
        if name not in KINDS:
            measures.append(count(f"{title}: cacheable share of input, %", 100 * cost.share(), digits=1))
            continue
        if of_peers := [
            each.dollars(with_output=True) for other, each in costs.items() if other.startswith(f"{name}, ")
        ]:
            than_peers = cost.dollars(with_output=True) / min(of_peers)
            measures.append(Measure(f"{title}: dollars ÷ those of the cheapest peer", than_peers, digits=2, at_most=1))
        measures += [
            Measure(f"{title}: cacheable share of input", 100 * cost.share(), "%", at_least=90),
            Measure(f"{title}: the same from turn {FILLED} on", 100 * whole, "%", at_least=90),
            Measure(
                f"{title}: input tokens, last {CYCLE} turns ÷ from turn {FILLED} on", growing, digits=2, at_most=1.1
            ),
            *(
                count(f"{title}: calls for {kind} a turn", number / turns, digits=2)
                for kind, number in cost.kinds.items()
            ),
        ]
    return measures


def parts_of(cost: Cost) -> dict[str, list[float]]:
    """Returns the tokens of the first request of each turn by part, one series on top of the other."""
    stacked: dict[str, list[float]] = {}
    below = [0] * len(cost.parts)
    for name in cost.parts[0]:
        below = [under + parts[name] for under, parts in zip(below, cost.parts, strict=True)]
        stacked[name] = list(map(float, below))
    return stacked


async def main(program: Path, turns: int, settings: Sequence[str]) -> None:
    costs = await prompt_costs(program, turns=turns, **dict(setting.split("=", 1) for setting in settings))
    print("\n".join(table(measures_of(costs), {})))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("segue"))
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--setting", action="append", default=[])
    options = parser.parse_args()
    asyncio.run(main(options.program.absolute(), options.turns, options.setting))
