"""How well answers that claim an effect are told from others, by language. Prints a markdown table.

    python bench/claims.py tests/agent/claims.jsonl [--dialogues dialogues.jsonl --tools tools.json]

Rows are `{text, lang, claims}`. Of recorded dialogues (`{messages: [{role, content, calls}]}`, the tools with their
`effect`) an answer claims nothing false if a call of its turn has changed something: those show how many claims are
found. Of the others, which report, offer or describe, none may be marked. `asked` are those that the small model reads:
the rules are not sure, or the session has changed something before.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from segue.agent.false_claims import claimed_effect

Seen = dict[str, Counter[str]]


def read_rows(path: Path) -> Iterator[tuple[str, bool, bool, str]]:
    """Yields what each row is counted as, whether it claims, whether something was done before, and its text."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield row["lang"], row["claims"], False, row["text"]


def read_dialogues(path: Path, tools: Path) -> Iterator[tuple[str, bool, bool, str]]:
    changing = {each["name"] for each in json.loads(tools.read_text()) if each["effect"] != "read_only"}
    for line in path.read_text().splitlines():
        before = now = False
        for message in json.loads(line)["messages"]:
            if message["role"] == "user":
                before, now = before or now, False
            made = message.get("calls") or ()
            now = now or any(call["name"] in changing for call in made)
            if message["role"] == "assistant" and message.get("content") and not made:
                yield "recorded", now, before, message["content"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--dialogues", type=Path)
    parser.add_argument("--tools", type=Path)
    options = parser.parse_args()
    rows = list(read_rows(options.rows))
    if options.dialogues and options.tools:
        rows += read_dialogues(options.dialogues, options.tools)
    seen: Seen = defaultdict(Counter)
    for name, claims, before, text in rows:
        found = claimed_effect(text)
        read = "none" if found is None else "marked" if found.is_sure and (claims or not before) else "asked"
        seen[name][f"{'claims' if claims else 'others'} {read}"] += 1
    for count in list(seen.values()):
        seen["all"].update(count)
    print("| answers | claims | found | asked | missed | others | false alarms | asked |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, count in seen.items():
        claiming = [count[f"claims {read}"] for read in ("marked", "asked", "none")]
        others = [count[f"others {read}"] for read in ("marked", "asked", "none")]
        cells = [name, sum(claiming), *claiming, sum(others), *others[:2]]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
