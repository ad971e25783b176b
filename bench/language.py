"""How well acknowledgements are read, by language, over a JSONL file of labelled utterances. Prints a markdown table.

    python bench/language.py tests/plans/replies.jsonl [more.jsonl] [--half tune|report] [--failures]
    python bench/language.py --dialogues agreements.jsonl [--failures]

Every text belongs to one half for ever, by its hash: of rows of your own, tune the word lists on the one and measure on
the other. In replies.jsonl all failures that were found are corrected, in both halves.

A yes is missed if nothing is approved, weak or strong; a wrong yes is counted by its strength. Counts the rows to which
one label applies (`also` is empty), each as an answer to its `step` or to the answer that `asked`, if it has one.
µs/message is the median of the messages of a language; of each message, the median of its five readings, which are a
whole pass over the file apart.

`--dialogues`: the rows are `{asked, said}`, a reply and the whole answer before it; counts how they are read.
"""

import argparse
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from segue.plans.acknowledgement import Acknowledgement, classify
from segue.plans.asked_words import Question, question_in, question_of

PASSES: Final = 5


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    label: Literal["ack", "deny", "other"]
    language: str
    question: Question | None


@dataclass(frozen=True, slots=True)
class Outcome:
    row: Row
    read: Acknowledgement
    microseconds: float

    @property
    def is_wrong(self) -> bool:
        return self.row.label != "ack" and self.read.verdict == "confirm"

    @property
    def failed(self) -> bool:
        match self.row.label:
            case "ack":
                return self.read.verdict != "confirm"
            case "deny":
                return self.read.verdict != "reject"
            case "other":
                return self.is_wrong


def strict_rows(path: Path) -> list[Row]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        Row(line["text"], line["label"], line["lang"], question_for(line)) for line in lines if not line.get("also")
    ]


def question_for(line: Mapping[str, Any]) -> Question | None:
    """Returns what a reply answers: the `step` that waits, or the answer in words that it was `asked` in, if any."""
    return question_of(**line["step"]) if "step" in line else question_in(line.get("asked"))


def half_of(text: str) -> Literal["tune", "report"]:
    return "report" if hashlib.sha256(text.encode()).digest()[0] % 2 else "tune"


def outcomes_of(rows: Sequence[Row]) -> list[Outcome]:
    passes = [[timed(row) for row in rows] for _ in range(PASSES)]
    return [
        Outcome(row, readings[0][0], median(microseconds for _, microseconds in readings))
        for row, *readings in zip(rows, *passes, strict=True)
    ]


def timed(row: Row) -> tuple[Acknowledgement, float]:
    started = time.perf_counter()
    read = classify(row.text, question=row.question)
    return read, (time.perf_counter() - started) * 1e6


def table(outcomes: Iterable[Outcome]) -> Iterable[str]:
    yield "| language | yes | not yes | missed yes % | strong wrong yes % | weak wrong yes % | denials % | µs/message |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    languages: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        languages[outcome.row.language].append(outcome)
        languages["total"].append(outcome)
    for language in sorted(languages, key=lambda name: (name == "total", name)):
        yield table_line(language, languages[language])


def table_line(language: str, outcomes: list[Outcome]) -> str:
    acks = [outcome.read.verdict for outcome in outcomes if outcome.row.label == "ack"]
    wrong = [outcome.read.strength for outcome in outcomes if outcome.is_wrong]
    denials = [outcome.read.verdict for outcome in outcomes if outcome.row.label == "deny"]
    cells = (
        language,
        str(len(acks)),
        str(len(outcomes) - len(acks)),
        percentage(len(acks) - acks.count("confirm"), len(acks)),
        percentage(wrong.count("strong"), len(outcomes) - len(acks)),
        percentage(wrong.count("weak"), len(outcomes) - len(acks)),
        percentage(denials.count("reject"), len(denials)),
        f"{median(outcome.microseconds for outcome in outcomes):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def read_dialogues(paths: Iterable[Path], *, with_failures: bool) -> Iterable[str]:
    """Yields how many replies are read in each way and, if asked for, those that are no strong yes."""
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    outcomes = [(how_read(classify(row["said"], question=question_in(row["asked"]))), row["said"]) for row in rows]
    yield from (f"| {how} | {count} |" for how, count in Counter(how for how, _ in outcomes).most_common())
    yield from (f"{how}: {said}" for how, said in outcomes if with_failures and how != "strong yes")


def how_read(read: Acknowledgement) -> str:
    if read.verdict == "confirm":
        return f"{read.strength} yes"
    return "no" if read.verdict == "reject" else f"{read.verdict}, carries a yes" if read.carries_yes else read.verdict


def percentage(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--half", choices=("tune", "report"), help="of the texts, by their hash")
    parser.add_argument("--failures", action="store_true", help="list the rows that were read wrongly")
    parser.add_argument("--dialogues", action="store_true", help="the rows are replies to whole answers")
    options = parser.parse_args()
    if options.dialogues:
        print("\n".join(read_dialogues(options.paths, with_failures=options.failures)))
        return
    rows = [row for path in options.paths for row in strict_rows(path)]
    outcomes = outcomes_of([row for row in rows if options.half in (None, half_of(row.text))])
    print("\n".join(table(outcomes)))
    if options.failures:
        for outcome in filter(lambda outcome: outcome.failed, outcomes):
            read = outcome.read
            print(f"{outcome.row.language} {outcome.row.label} → {read.verdict} ({read.rule}): {outcome.row.text}")


if __name__ == "__main__":
    main()
