"""How often the tool that a conversation needs is in its requests at once, or after one `find_tools`.

    python -m bench.tool_choice bfcl_multi_turn_base.jsonl

Reads the tool definitions from bfcl_tools.json in the same folder: all of them are one catalogue. Goes through the
user's messages of each conversation and lets Segue choose, as a turn does. A tool that is missing is looked for by the
words of the message, then by what its description says it does, as a model would that knows what it wants.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from bench.bfcl import Definitions, read_definitions
from segue.agent.tool_choice import ToolChooser, ToolNeeds, ToolSearch, ToolTokens
from segue.config import Settings
from segue.domain.agent import Agent
from segue.domain.session import TurnKey
from segue.domain.tool import Tool, ToolChoice, ToolSpec
from segue.memory.history_window import estimate
from segue.memory.long_term import Embeddings, LongTermMemory
from segue.tools.availability import ToolAvailability, ToolGuard
from segue.tools.builtin.builtin_tools import builtin_tools
from segue.tools.catalog import ToolCatalog
from segue.tools.tool_states import GlobalToolState
from segue.turns.jobs.learn_facts import cancel_extraction
from segue.users.usage import Payer

NO_STORE = cast("Any", None)  # choosing reads and writes none


async def no_embeddings(texts: Sequence[str], *, payer: Payer | None, urgent: bool = False) -> Embeddings | None:  # noqa: ARG001 (the protocol's)
    return None


def availability(builtin: tuple[Tool, ...], offered: Iterable[Tool], settings: Settings) -> ToolAvailability:
    return ToolAvailability(
        ToolCatalog((*offered, *builtin)),
        NO_STORE,
        GlobalToolState(NO_STORE, settings, lambda _: None),
        settings,
        clock=lambda: datetime.now(UTC),
        observe=lambda _: None,
    )


class Measurement:
    """Plays conversations. `counts` are of tools needed, each counted once a turn."""

    def __init__(self, tools: ToolAvailability, definitions: Definitions, settings: Settings) -> None:
        self.counts: Counter[str] = Counter()
        self.offered: list[int] = []
        self.seconds: list[float] = []
        self._tools = tools
        self._definitions = definitions
        self._rank = partial(ToolSearch(no_embeddings).rank, payer=("", ""))
        self._settings = settings
        self._tokens = ToolTokens(estimate)

    async def play(self, conversation: Mapping[str, Any]) -> None:
        stored: ToolChoice | None = None
        said: list[str] = []
        whole = True

        async def save(choice: ToolChoice) -> None:
            nonlocal stored
            stored = choice

        for seq, turn in enumerate(conversation["turns"], start=1):
            guard = ToolGuard(
                self._tools, TurnKey("ses", f"turn_{seq}", seq), {}, holds={}, agent=Agent(), who=("", (), "")
            )
            chooser = ToolChooser(self._rank, guard, self._settings, self._tokens, stored=stored, seq=seq, save=save)
            started = time.perf_counter()
            await chooser.choose(ToolNeeds(turn["user"], tuple(said), turns=range(seq + 1)))
            self.seconds.append(time.perf_counter() - started)
            self.offered.append(len(guard.chosen(guard.tools())))
            for name in dict.fromkeys(call["name"] for call in turn["calls"]):
                self.counts["needed"] += 1
                if name in (guard.chosen_names or ()):
                    self.counts["at once"] += 1
                    continue
                whole = False
                await self._look_for(name, turn["user"], chooser)
            said.append(turn["user"])
        self.counts["conversations"] += 1
        self.counts["whole"] += whole

    async def _look_for(self, name: str, message: str, chooser: ToolChooser) -> None:
        described = self._definitions[name]["description"].partition("Tool description: ")[2].partition(". ")[0]
        if name in {found["name"] for found in await chooser.find(message)}:
            self.counts["by the message"] += 1
        elif name in {found["name"] for found in await chooser.find(described)}:
            self.counts["by what it does"] += 1
        await chooser.add([name])

    def table(self) -> Iterable[str]:
        counts, needed = self.counts, self.counts["needed"]
        found = counts["at once"] + counts["by the message"]
        yield "| what | |\n|---|---:|"
        yield f"| tools in the catalogue, Segue's own included | {len(self._tools.tools())} |"
        yield f"| tools needed, once a turn | {needed} |"
        yield f"| in the request at once | {counts['at once'] / needed:.1%} |"
        yield f"| or after one `find_tools` with the user's message | {found / needed:.1%} |"
        yield f"| or after one with what the tool does | {(found + counts['by what it does']) / needed:.1%} |"
        whole, mean = counts["whole"] / counts["conversations"], sum(self.offered) / len(self.offered)
        yield f"| conversations with no need of `find_tools` | {whole:.1%} |"
        yield f"| tools in a request, mean and most | {mean:.1f}, {max(self.offered)} |"
        yield f"| time to choose, median | {sorted(self.seconds)[len(self.seconds) // 2] * 1000:.1f} ms |"


async def main(definitions: Definitions, conversations: Iterable[Mapping[str, Any]]) -> None:
    settings = Settings(_env_file=None)
    async with AsyncExitStack() as stack:
        memory = LongTermMemory(NO_STORE, stop_learning=cancel_extraction)
        builtin = await builtin_tools(stack, settings, NO_STORE, memory, NO_STORE, NO_STORE)
        offered = (
            Tool(ToolSpec(name, each["description"], each["parameters"], source="mcp:bfcl"), NO_STORE)
            for name, each in definitions.items()
        )
        measurement = Measurement(availability(builtin, offered, settings), definitions, settings)
        for conversation in conversations:
            await measurement.play(conversation)
    print("\n".join(measurement.table()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    asyncio.run(main(read_definitions(path.with_name("bfcl_tools.json")), map(json.loads, path.open("rb"))))
