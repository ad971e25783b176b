"""Replays the multi-turn conversations of the Berkeley function-calling benchmark, the service killed between turns.

    python bench/bfcl.py bfcl_multi_turn_base.jsonl [--keep FOLDER]

Reads the tool definitions from bfcl_tools.json in the same folder. Makes a recording of each conversation: the calls of
a turn one after the other, their results from the file, and an answer of our own. Plays them as `segue replay` does.
Prints a markdown table; exits with 1 if anything differs from the recordings.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft202012Validator

from segue.around.replay.run_replay import ReplayReport, replay
from segue.domain.recording import RecordedCall, RecordedTool, RecordedTurn, Recording, Round, recording_text

RESULTS_IN_VIEW = 20  # as many as short-term memory holds

Definitions = dict[str, dict[str, Any]]


def read_definitions(path: Path) -> Definitions:
    families = json.loads(path.read_text("utf-8"))
    return {tool["function"]["name"]: tool["function"] for tools in families.values() for tool in tools}


def widen(definitions: Definitions, conversations: Iterable[dict[str, Any]]) -> list[str]:
    """Drops the declared type of an argument that the file itself calls with another. Returns which."""
    widened = []
    for call in (call for each in conversations for turn in each["turns"] for call in turn["calls"]):
        schema = definitions[call["name"]]["parameters"]
        for fault in list(Draft202012Validator(schema).iter_errors(call["args"])):
            argument = str(fault.instance_path[0])
            del schema["properties"][argument]["type"]
            widened.append(f"`{argument}` of `{call['name']}`: {fault.message}")
    return widened


def recording_of(conversation: dict[str, Any], definitions: Definitions) -> Recording:
    called = {call["name"] for turn in conversation["turns"] for call in turn["calls"]}
    return Recording(
        format="segue-recording",
        version=1,
        title=conversation["id"],
        tools=tuple(recorded_tool(definitions[name]) for name in sorted(called)),
        turns=tuple(recorded_turn(turn, number) for number, turn in enumerate(conversation["turns"], start=1)),
    )


def recorded_tool(definition: dict[str, Any]) -> RecordedTool:
    return RecordedTool(
        name=definition["name"],
        description=definition["description"],
        input_schema=definition["parameters"],
        source="mcp:bfcl",
    )


def recorded_turn(turn: dict[str, Any], number: int) -> RecordedTurn:
    calls = [
        RecordedCall(tool=call["name"], args=call["args"], result=result_of(call["result"])) for call in turn["calls"]
    ]
    return RecordedTurn(
        message=turn["user"],
        rounds=tuple(Round(calls=(call,)) for call in calls),
        answer=f"Turn {number} is done: {', '.join(call.tool for call in calls) or 'there was nothing to call'}.",
    )


def result_of(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def table(report: ReplayReport, seconds: float, turns: int, calls: int) -> Iterable[str]:
    playbacks = report.playbacks
    same = sum(not playback.differences for playback in playbacks)
    yield "| what | |\n|---|---:|"
    yield f"| conversations as recorded | {same} of {len(playbacks)} |"
    yield f"| turns | {sum(len(each.recording.turns) for each in playbacks)} of {turns} |"
    yield f"| tool calls in order with their arguments | {sum(each.calls for each in playbacks)} of {calls} |"
    yield f"| of them arrived at the tools | {sum(each.arrived for each in playbacks)} |"
    yield f"| requests to the model | {sum(each.requests for each in playbacks)} |"
    yield f"| differences, invalid requests among them | {sum(len(each.differences) for each in playbacks)} |"
    yield f"| kill -9 and restart between turns | {report.restarts} |"
    yield f"| seconds | {seconds:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    options = parser.parse_args()
    conversations = [json.loads(line) for line in options.path.read_text("utf-8").splitlines()]
    definitions = read_definitions(options.path.with_name("bfcl_tools.json"))
    widened = widen(definitions, conversations)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for conversation in conversations:
            text = recording_text(recording_of(conversation, definitions))
            (folder / f"{conversation['id']}.json").write_text(text, "utf-8")
        files = [folder / f"{conversation['id']}.json" for conversation in conversations]
        started = time.monotonic()
        report = asyncio.run(replay(files, restarting=True, results_in_view=RESULTS_IN_VIEW))
    turns = [turn for conversation in conversations for turn in conversation["turns"]]
    calls = sum(len(turn["calls"]) for turn in turns)
    print("\n".join(table(report, time.monotonic() - started, len(turns), calls)))
    print("\n".join(f"widened: {each}" for each in widened))
    print("\n".join(list(report.lines())[:-1]), file=sys.stderr)
    return int(report.differs)


if __name__ == "__main__":
    sys.exit(main())
