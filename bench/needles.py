"""What a long session still knows: facts told over 400 turns, of which the model sees the end.

    python -m bench.needles [--program path/to/segue] [--setting NAME=VALUE]

Tells 40, 80 and 160 facts between other words, and looks for each in the next request, then with `search_conversation`
if it is offered. The model is scripted as a small one that keeps to what it is told: it writes what it is asked for in
the order in which it was told it, a line for each fact, and stops where the tokens it may write are used up.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.client import Session, connected
from bench.prompts import segue
from bench.scripted_sessions import TOOLS, scripted, words
from segue.agent.prompts import TEXTS
from segue.memory.history_window import estimate

TURNS, FACTS = 400, (40, 80, 160)
CHARS = 1500  # what a summariser may write that is told no tokens
_FACT = re.compile(r"(?:The code of the warehouse )?(\w+-\d+)(?: is|:) (\d{6})")


def told(number: int) -> str:
    return f"The code of the warehouse {words(number, 1)}-{number} is {code(number)}."


def code(number: int) -> str:
    return str(100_003 + number * 7919)


class SmallModel:
    """Writes summaries of facts, and looks for what it is asked about if it can. `last` is the last request for an
    answer, `found` the results of its searches.
    """

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.found: list[str] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        system, said = str(body["messages"][0]["content"]), body["messages"][-1]
        if TEXTS["extractor"] in system:
            return _says('{"facts": []}')
        if system.startswith(("You keep the summary", "You condense")):
            return _says(self._summary(json.loads(said["content"])))
        if said["role"] == "tool":
            self.found.append(str(said["content"]))
            return _says("I looked it up.")
        self.last = body
        asked = str(said["content"]).partition("Which code has ")[2]
        if asked and any(tool["function"]["name"] == "search_conversation" for tool in body["tools"]):
            call = {"name": "search_conversation", "arguments": json.dumps({"query": asked})}
            return {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": call}],
            }
        return _says(f"{words(len(self.found), 20)}.")

    def _summary(self, given: dict[str, Any]) -> str:
        most = given.get("most_tokens")
        messages = "\n".join(str(each.get("user", "")) for each in given.get("messages", ()))
        if "lines" in given:  # to condense
            lines = (f"- {name}: {number}" for name, number in _FACT.findall(given["lines"]))
        elif most:  # what is new
            lines = (f"- The code of the warehouse {name} is {number}" for name, number in _FACT.findall(messages))
        else:  # all of it
            both = _FACT.findall(f"{given['summary']}\n{messages}")
            lines = (f"- The code of the warehouse {name} is {number}" for name, number in both)
        return "## Facts\n" + "\n".join(_within(lines, most)) if most else "\n".join(lines)[:CHARS]


def _within(lines: Iterable[str], most: int) -> Iterable[str]:
    for line in lines:
        most -= estimate(line)
        if most < 0:
            return
        yield line


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def known(program: str, facts: int, settings: dict[str, str]) -> tuple[int, int]:
    """Returns how many of the facts stand in the request after the last turn, and how many of all a search finds."""
    model, every = SmallModel(), TURNS // facts
    with tempfile.TemporaryDirectory() as folder:
        async with (
            scripted(model.answer, TOOLS) as port,
            segue(program, port, Path(folder), settings, TOOLS) as own,
            connected(own) as connection,
        ):
            session = await Session.new(connection)
            for turn in range(TURNS):
                is_fact = turn % every == 0 and turn // every < facts
                await session.turn(told(turn // every) if is_fact else f"What about {words(turn, 20)}?")
            await session.turn("Well?")
            seen = json.dumps(model.last["messages"])
            for number in range(facts):
                await session.turn(f"Which code has {words(number, 1)}-{number}?")
    in_request = sum(code(number) in seen for number in range(facts))
    return in_request, sum(code(number) in found for number, found in enumerate(model.found))


async def main(program: Path, settings: Sequence[str]) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    print("| facts | in the request after 400 turns | found by `search_conversation` |\n|---:|---:|---:|")
    for facts in FACTS:
        in_request, found = await known(str(program), facts, given)
        print(f"| {facts} | {in_request} | {found} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("segue"))
    parser.add_argument("--setting", action="append", default=[])
    options = parser.parse_args()
    asyncio.run(main(options.program.absolute(), options.setting))
