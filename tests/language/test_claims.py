"""Answers that claim an effect, and others that report, offer or describe: rows of our own, in seven languages."""

import json
import time
from pathlib import Path

import pytest

from segue.plans.policy import claimed_effect

ROWS = [json.loads(line) for line in Path(__file__).with_name("claims.jsonl").read_text().splitlines()]


def test_no_answer_that_reports_offers_or_describes_claims_an_effect() -> None:
    assert [row["text"] for row in ROWS if not row["claims"] and claimed_effect(row["text"])] == []


def test_of_the_answers_that_claim_an_effect_at_least_nineteen_in_twenty_are_found() -> None:
    claiming = [row["text"] for row in ROWS if row["claims"]]
    missed = [text for text in claiming if claimed_effect(text) is None]
    assert len(missed) <= len(claiming) / 20, missed


@pytest.mark.parametrize(
    "text", ["Done.", "Fatto!", "完成了。", "I have updated your address.", "The order was cancelled."]
)
def test_what_may_be_said_of_something_else_is_not_sure(text: str) -> None:
    found = claimed_effect(text)
    assert found is not None
    assert not found.is_sure


def test_of_a_long_answer_only_both_ends_are_read() -> None:
    filler = "The weather is fine in the mountains today. " * 20_000
    began = time.process_time()
    assert claimed_effect(f"{filler}I have sent the email to Anna.") is not None
    assert claimed_effect(f"{filler}I have sent the email to Anna. {filler}") is None
    assert time.process_time() - began < 1
