"""Plays recorded dialogues with a customer through real processes, and counts what is asked a first and a second time.

    python -m bench.dialogues airline_dialogues.jsonl [--kill 10] [--instances 2] [--confirm never] [--reader yes]

Reads the tools from airline_tools.json in the same folder; tests/support/dialogues.py says what both hold. Prints a
markdown table; exits with 1 if a dialogue ends in another state than recorded, or a change is doubled or not recorded.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from segue.around.embedded.server_urls import server_urls
from tests.support import fork_server
from tests.support.commands import forks
from tests.support.dialogues import (
    ERROR,
    Call,
    Desk,
    Dialogue,
    Kills,
    Playing,
    Service,
    environment,
    read_dialogues,
    serving_desk,
)

AT_ONCE: Final = 4
# How the last paragraph of a recorded answer asks for a yes; behind another the service's question is the first.
_WANTS_YES: Final = re.compile(
    r"\bconfirm\b(?! (?:which|what))|\bwould you like to proceed\b|\bif you(?:'d| would) like to proceed\b"
    r"|\blike me to\b|\bshall I\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Report:
    played: list[Playing]
    desk: Desk
    kills: int
    seconds: float

    @property
    def is_right(self) -> bool:
        return all(each.is_right for each in self.played) and not self.desk.foreign

    def table(self) -> Iterable[str]:
        played = self.played
        replies = [(answers_offer(each, part), part in dict(each.asked)) for each in played for part in each.agreements]
        offers, others = (sum(answers is each for answers, _ in replies) for each in (True, False))
        recorded = sum(len(each.recorded) for each in played)
        yield "| what | |\n|---|---:|"
        yield f"| dialogues that end in the right state | {sum(each.is_right for each in played)} of {len(played)} |"
        yield f"| recorded calls that change something and were made | {sum(map(_made, played))} of {recorded} |"
        yield f"| doubled | {sum(len(each.doubled) for each in played)} |"
        yield f"| not in the recording | {len(self.desk.foreign)} |"
        yield f"| replies that agree, asked about a second time | {replies.count((True, True))} of {offers} |"
        yield f"| other replies before a change, asked about | {replies.count((False, True))} of {others} |"
        yield f"| questions of the service's own | {sum(len(each.asked) for each in played)} |"
        yield f"| turns without an answer | {sum(len(each.failed) for each in played)} |"
        yield f"| kill -9 and restart | {self.kills} |"
        yield f"| seconds | {self.seconds:.0f} |"

    def wrong(self) -> Iterable[str]:
        for each in self.played:
            if not each.is_right:
                yield f"{each.dialogue.name}: {_made(each)} of {len(each.recorded)} changes"
                yield from (f"  recorded: {_line(call, result)}" for call, result in each.recorded)
                yield from (f"  made:     {_line(call, result)}" for call, result in each.made)
                yield from (f"  doubled:  {_line(call)}" for call in each.doubled)
                yield from (f"  failed:   {failed}" for failed in each.failed)
        yield from (f"not recorded: {_line(call)}" for call in self.desk.foreign)

    def questions(self) -> Iterable[str]:
        for each in self.played:
            for part, question in each.asked:
                line = " / ".join(filter(None, map(str.strip, question.splitlines())))
                which = "second" if answers_offer(each, part) else "first"
                yield f"{each.dialogue.name} {which} “{each.dialogue.parts[part].said}”: {line}"


def answers_offer(playing: Playing, part: int) -> bool:
    """Returns whether the recorded assistant had asked for a yes right before this part."""
    before = playing.dialogue.parts[part - 1].replies if part else ()
    return any(_WANTS_YES.search(each.text.strip().rpartition("\n\n")[2]) for each in before[-1:])


def _made(playing: Playing) -> int:
    """Returns how many of the recorded calls were made, in any order."""
    recorded, made = (Counter(call for call, _ in calls) for calls in (playing.recorded, playing.made))
    return (recorded & made).total()


def _line(call: Call, result: str = "") -> str:
    return f"{call[0]} {call[1]} {result if result.startswith(ERROR) else ''}".rstrip()


def by_task(dialogues: Sequence[Dialogue]) -> Iterable[list[Dialogue]]:
    """Two dialogues of one task make the same calls, so they are played one after the other."""
    tasks: dict[str, list[Dialogue]] = {}
    for each in dialogues:
        tasks.setdefault(each.name.partition(".")[0], []).append(each)
    return tasks.values()


async def several_at_once(desk: Desk, service: Service, dialogues: Sequence[Dialogue]) -> list[Playing]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one_after_the_other(task: list[Dialogue]) -> list[Playing]:
        async with places:
            return [await desk.play(service, each) for each in task]

    played = await asyncio.gather(*map(one_after_the_other, by_task(dialogues)))
    return [each for task in played for each in task]


async def play(dialogues: list[Dialogue], folder: Path, options: argparse.Namespace) -> Report:
    """Plays them on one service, whose stores are in the folder."""
    started = time.monotonic()
    tools = json.loads(options.path.with_name("airline_tools.json").read_text("utf-8"))
    async with AsyncExitStack() as stack:
        urls = await stack.enter_async_context(server_urls(None, None, folder / "data", fast=True))
        desk = await stack.enter_async_context(
            serving_desk(tools, verdict="confirm" if options.reader == "yes" else "none")
        )
        shared = environment(
            desk, folder, database_url=urls.database_url, redis_url=urls.redis_url, CONFIRM=options.confirm
        )
        service = await stack.enter_async_context(Service([shared] * options.instances))
        if options.kill:
            changing = [each for each in dialogues if Playing(each, desk.changing).recorded][: options.kill]
            played = [playing for each in changing async for playing in Kills(service).plays(desk, each)]
        else:
            played = await several_at_once(desk, service, dialogues)
        return Report(played, desk, service.kills, time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--kill", type=int, default=0, help="play the first N that change something, with kill -9")
    parser.add_argument("--instances", type=int, default=1, help="processes on the same stores, asked in turn")
    parser.add_argument("--confirm", default="destructive", help="the setting CONFIRM")
    parser.add_argument("--reader", default="none", choices=["yes", "none"], help="what the small model reads")
    parser.add_argument("--only", help="the dialogues of one task, or one as TASK.TRIAL")
    parser.add_argument("--questions", action="store_true", help="list what was asked, and which time it was")
    options = parser.parse_args()
    dialogues = read_dialogues(options.path)
    if options.only:
        dialogues = [each for each in dialogues if options.only in (each.name, each.name.partition(".")[0])]
    end = fork_server.launch()
    try:
        with tempfile.TemporaryDirectory(prefix="segue-dialogues-") as made:
            folder = Path(made)
            folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
            report = asyncio.run(play(dialogues, folder, options))
    finally:
        forks.close()
        end()
    print("\n".join(report.table()))
    if options.questions:
        print("\n".join(report.questions()))
    print("\n".join(report.wrong()), file=sys.stderr)
    return int(not report.is_right)


if __name__ == "__main__":
    sys.exit(main())
