"""Where the values of a call stand: whole, in the first text that has them, or nowhere."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.domain.approval_rule import is_users
from segue.plans.value_origins import MAX_VALUES, REST, not_from_user, origins_of, stands_in, values_of


@pytest.mark.parametrize(
    ("value", "text", "stands"),
    [
        ("ann@a.example", "Write to  ann@a.example.", True),
        ("ann@a.example", "Is it “ann@a.example”?", True),
        ("ann@a.example", "(ann@a.example)", True),
        ("the second item", "Take the second item!", True),
        ("caffe\u0301 a Roma", "un caffé a Roma", True),
        ("张三丰", "给张三丰发邮件", True),
        ("bob@a.example", "发给bob@a.example吧", True),
        (1000, "Pay 1000 euros", True),
        (1000.0, "Pay 1000 euros", True),
        (5, "Pay 5.0 euros", True),
        (5.0, "Pay 5", True),
        (12.5, "Pay 12.50 euros", True),
        (5, "Pay 5.01 euros", False),
        (12.5, "Pay 12.51 euros", False),
        (True, "It is true", True),
        ("5.0", "Pay 5", False),
        ("Ann@a.example", "Write to ann@a.example", False),
        ("ann@a.example", "Write to Ann@A.example.", False),
        ("rm -r /a /b", "run rm -r /a\n/b", False),
        ("rm -r /a\n/b", "run rm -r /a /b", False),
        ("the  second item", "Take the second item", False),
        ('"ann@a.example"', "Write to ann@a.example", False),
        ("ann@a.example.", "Write to ann@a.example", False),
        ("ann@a.example.", "Write to ann@a.example.", False),
        ("/data/a.", "Empty /data/a. Now.", False),
        ("/data/a.", "Empty “/data/a.”", True),
        ("It is late.", "Say: It is late.", True),
        ("ann@a.example", "Write to joann@a.example", False),
        ("ann@a.example", "Write to jo.ann@a.example", False),
        ("ann@a.example", "Write to ann@a.example.org", False),
        (100, "Pay 1000 euros", False),
        ("bób@a.example", "bob@a.example", False),
        ("itm\u200b-1", "itm-1", False),
        ("...", "Well... and … so", False),
        ("ller@a.example", "Write to müller@a.example", False),
        ("voss@a.example", "Write to voß@a.example", False),
        ("\u017fam@a.example", "Write to sam@a.example", False),
        ("/data/tmp/..", "Empty /data/tmp/ please", False),
        ("/home/ada", "Delete /home/ada/old.txt", False),
        ("C:\\data", "Delete C:\\data\\old.txt", False),
        (500, "Pay 1,500 euros", False),
        (100, "Pay 100,000 euros", False),
        (7, "Delete item 17", False),
        (7, "Delete item 7.", True),
        ("old.txt", "Delete notes/old.txt", True),
        ("It is late.", "say “It is late”", False),
    ],
)
def test_a_value_stands_in_a_text_only_whole_and_to_the_letter(value: Any, text: str, *, stands: bool) -> None:
    found = origins_of({"x": value}, [("message:1", text)], every=True)
    assert found == {"x": "message:1" if stands else "model"}


# A letter beside it makes it a part of another word, as do the marks of addresses, paths and numbers.
LETTER = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff]"
BEFORE = rf"(?<!{LETTER})(?<![.+@-])(?<!\d[,'’])"
AFTER = rf"(?!{LETTER}|[@-]|[./\\]\w|[,'’]\d)"
NUMBERS = {1: r"1(?:\.0+)?", 12: r"12(?:\.0+)?", 1.5: "1.50*", 2.0: r"2(?:\.0+)?"}


@given(
    st.text("ab1 ,@-/+'é中", min_size=1, max_size=3).filter(lambda text: text == text.strip())
    | st.sampled_from(sorted(NUMBERS)),
    st.text("ab12 .,@-/+'5é中", max_size=14),
)
def test_a_value_is_found_where_one_pattern_would_find_it(value: str | float, text: str) -> None:
    written = re.escape(value) if isinstance(value, str) else NUMBERS[value].replace("1.5", r"1\.5")
    assert stands_in(value, text) is bool(re.search(rf"{BEFORE}{written}{AFTER}", text))


@pytest.mark.timeout(60)  # one pattern would take the square of the text's length: minutes, with the interpreter held
def test_a_long_value_is_looked_for_in_a_longer_text_of_its_one_character() -> None:
    for character, is_found in (("!", True), ("-", False), ("a", False)):
        assert stands_in(character * 60_000, character * 120_000) is is_found, character
    assert not stands_in("!" * 300_000 + "x", "!" * 600_000 + "x@")


def test_the_first_source_that_has_a_value_is_its_origin_and_what_the_user_said_is_not_named() -> None:
    to = [{"e mail": "ann@a.example"}, {"e mail": "eve@a.example"}]
    args = {"to": to, "days": 14, "urgent": True, "cc": [], "note": "Hello"}
    sources = [("message:1", "to ann@a.example"), ("fact:1", "Hello"), ("result:1", "ann@a.example eve@a.example")]
    found = origins_of(args, sources)
    eve = 'to[1]."e mail"'
    assert found == {'to[0]."e mail"': "message:1", eve: "result:1", "days": "model", "note": "fact:1"}
    assert not_from_user(args, found) == {"result:1": {eve: "eve@a.example"}, "model": {"days": 14}}
    assert not_from_user(args, dict.fromkeys(values_of(args), "user")) == {}


def test_beyond_a_hundred_values_the_rest_is_nobodys() -> None:
    args = {"to": [f"a{number}@a.example" for number in range(MAX_VALUES + 5)]}
    found = origins_of(args, [("message:1", " ".join(args["to"]) + f" {REST}")])
    assert (len(found), found[REST], found["to[99]"]) == (MAX_VALUES + 1, "model", "message:1")
    assert not_from_user(args, found) == {"model": {REST: REST}}


def test_arguments_of_very_many_short_values_are_not_searched_through() -> None:
    assert values_of({"cells": [["a"]] * 200_000}) == {REST: REST}


SHARE = {"properties": {"people": {"additionalProperties": {"$ref": "#/$defs/Right"}}, "days": {"type": "integer"}}}
SHARE |= {"$defs": {"Right": {"anyOf": [{"properties": {"may": {"type": "string"}}}, {"type": "string"}]}}}


def test_a_key_that_the_schema_does_not_name_has_to_come_from_the_user_as_its_value_has() -> None:
    ann, eve = {"may": "read"}, 'people."eve@a.example"'
    args = {"people": {"ann@a.example": ann, "eve@a.example": True, "bob@a.example": "write"}, "days": 7}
    sources = [
        ("message:1", "ann@a.example and bob@a.example may read for 7 days"),
        ("result:1", "eve@a.example write"),
    ]
    found = origins_of(args, sources, SHARE)
    bob = 'people."bob@a.example"'
    assert found == {'people."ann@a.example".may': "message:1", eve: "result:1", bob: "result:1", "days": "message:1"}
    assert not_from_user(args, found) == {"result:1": {eve: True, bob: "write"}}
    assert origins_of({"people": {"eve@a.example": {}}}, sources, SHARE) == {eve: "result:1"}
    assert origins_of({"Days": 7}, sources, SHARE) == {"Days": "model"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, True),
        ({"id": 7, "to": ["Ann"]}, True),
        ({"id": 8}, False),
        ({"id": 7, "all": True}, False),
        ({"id": 7, "filter": ""}, False),
        ({"id": 7, "cc": []}, False),
        ({"id": 7, "to": ["Eve"]}, False),
        ({"id": 7, "to": ["ann"]}, False),
        ({"id": 7, "to": {"Ann": "to"}}, True),
        ({"id": 7, "to": {"Eve": "to"}}, False),
        ({"id": 7, "to": {"Eve": None}}, False),
        ({"to": {"Ann": {}}}, False),
        ({"ids": [7] * (MAX_VALUES + 1)}, False),
    ],
)
def test_all_is_said_if_the_user_said_every_value_however_short(args: dict[str, Any], *, said: bool) -> None:
    sources = [("message:1", "Take 7 to Ann"), ("result:1", "take 8 to Eve"), ("program:1", "ann"), ("model", "8")]
    schema: dict[str, Any] = {"properties": {name: {} for name in ("id", "all", "filter", "cc", "to", "ids")}}
    found = origins_of(args, sources, schema, every=True)
    assert (all(map(is_users, found.values())), len(found) <= MAX_VALUES + 1) == (said, True)
