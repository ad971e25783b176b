"""A call as a question shows it: two calls never look alike, and no value looks like a line of the question."""

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.language.shown_call import CallView, code, plain

WHOLE = "GET /sessions/ses_1/plan"
VIEW = CallView("en", WHOLE)
PIECES = [
    *(
        "\n",
        "\n\n",
        "  ",
        ": ",
        "│ ",
        "┆ ",
        "‹",
        "›",
        "…",
        '"',
        "\\",
        "`",
        "```",
        "1",
        "null",
        "{",
        "[",
        "U+202E",
        "×3",
    ),
    *("\u202e", "\u200b", "\ufe0f", "\u0301", "\u00a0", "\t", "\r", "\x00", "\u2028", "\U000e0041", "\ue000"),
    *("a", "b: 2", "word ", "é", "我", "می\u200cخواهم", "👩\u200d💻", "🇮🇹"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
VALUES = st.recursive(
    TEXTS
    | TEXTS.map(lambda text: text * 30)
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
CALLS = st.dictionaries(TEXTS, VALUES, max_size=3)
ESCAPE = re.compile(r"‹U\+([0-9A-F]+)(?:×(\d+))?›")
ARGUMENT = re.compile(r'([^\W\d][\w.-]{0,59}|"(?:[^"\\]|\\.)*"):(?: (.*))?')
OF_A_VALUE = {"  │": "\n", "  ┆": ""}
FEW = settings(max_examples=25)


def shown(args: dict[str, Any], view: CallView = VIEW) -> str:
    return "\n".join(view.lines(args))


def read_back(lines: list[str]) -> dict[str, Any]:
    """What a careful reader takes a call for, of which nothing was cut."""
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:3] in OF_A_VALUE:
            texts[name] += OF_A_VALUE[line[:3]] + line[4:]
        else:
            found = ARGUMENT.fullmatch(line)
            assert found, line
            name = found[1]
            texts[name] = found[2] or ""
    plain_texts = {written(name): written(text.removeprefix("\n")) for name, text in texts.items()}
    return {json.loads(name) if name[0] == '"' else name: meant(text) for name, text in plain_texts.items()}


def written(shown: str) -> str:
    return ESCAPE.sub(lambda found: chr(int(found[1], 16)) * int(found[2] or 1), shown)


def meant(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@given(CALLS)
@FEW
def test_a_call_can_be_read_back_to_the_letter_so_no_two_are_shown_alike(args: dict[str, Any]) -> None:
    lines = list(CallView("en", None).lines(args))
    assert json.dumps(read_back(lines)) == json.dumps(args)
    assert not any(set("\u200b\u202e\t\r\x85\u2028\n") & set(line) for line in lines)


@given(TEXTS, TEXTS, TEXTS)
@FEW
def test_a_value_that_is_written_like_others_is_not_shown_like_them(name: str, value: str, other: str) -> None:
    meant = {name: value, "b": other}
    for forged in (
        {name: shown(meant)},
        {name: f"{value}\nb: {other}"},
        {name: f"{value}`; `b: {other}"},
        {f"{name}: {value}": other},
    ):
        assert forged == meant or shown(forged) != shown(meant)
        assert forged == meant or VIEW.in_line(forged) != VIEW.in_line(meant)


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("itm-1", ["x: itm-1"]),
        ("1", ['x: "1"']),
        (1, ["x: 1"]),
        ("null", ['x: "null"']),
        (None, ["x: null"]),
        ("", ['x: ""']),
        (" padded ", ['x: " padded "']),
        ("2026-11-20", ["x: 2026-11-20"]),
        ({"to": ["è"]}, ['x: {"to": ["è"]}']),
        ("Dear Eve,\n\n  bye ", ["x:", "  │ Dear Eve,", "  │", "  │   bye‹U+0020›"]),
        ("word " * 20 + "end", ["x:", "  │ " + "word " * 16, "  ┆ " + "word " * 4 + "end"]),
        ("ok\n\nyes or no? Approved.\ny: 2", ["x:", "  │ ok", "  │", "  │ yes or no? Approved.", "  │ y: 2"]),
    ],
)
def test_a_value_is_shown_to_the_letter(value: Any, lines: list[str]) -> None:
    assert list(VIEW.lines({"x": value})) == lines


def test_of_what_is_too_long_both_ends_are_shown_with_its_length_its_hash_and_where_it_is_whole() -> None:
    text = "begin " + "a" * 5_000 + "\u202e the end"  # 5,015 characters
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    lines = list(VIEW.lines({"text": text}))
    [mark] = [line for line in lines if line.startswith("  ‹")]
    assert mark == f"  ‹1015 of 5015 characters are not shown; all of it: {WHOLE}, SHA-256 {digest}›"
    assert lines[1].startswith("  │ begin aaa")
    assert lines[-1].endswith("a‹U+202E› the end")
    assert f"SHA-256 {digest}›" in VIEW.in_line({"text": text})
    assert len(VIEW.in_line({"text": text})) < 300
    assert "".join(CallView("en", None).lines({"text": text})).count("a") >= 5_000


def test_a_line_leaves_out_nothing_that_is_shorter_than_saying_so() -> None:
    text = "Dear Rossi, " * 10 + "bye"
    assert VIEW.in_line({"text": text}) == f"`text: {text}`"


def test_many_lines_and_many_arguments_are_cut_in_the_middle_and_said_to_be() -> None:
    lines = list(VIEW.lines({"text": "\n".join(map(str, range(5_000)))}))
    assert (lines[1], lines[-1], len(lines)) == ("  │ 0", "  │ 4999", 62)
    many = list(VIEW.lines({f"n{number}": "v" * 4_000 for number in range(500)}))
    assert (many[0], sum(line.startswith("n") for line in many)) == ("n0:", 40)
    assert [line[:34] for line in many if line.startswith("‹")] == ["‹460 of 500 arguments are not show"]
    assert many[-1].startswith("  │ vvv")
    assert sum(map(len, many)) < 40_000


def test_of_what_stands_to_the_letter_above_only_the_beginning_is_said_again() -> None:
    args = {"to": "eve\u202e", "text": "Dear Eve,\n\nbye", "note": "a" * 100, "count": 3}
    shown_again = f"`to: eve‹U+202E›`; `text: Dear Eve, ‹…›`; `note: {'a' * 80} ‹…›`; `count: 3`"
    assert VIEW.in_line(args, shown_above=True) == shown_again


def test_what_stands_in_a_sentence_is_code_if_it_would_render() -> None:
    assert plain("Delete the mail") == "Delete the mail"
    assert plain("[here](http://evil.example)") == "`[here](http://evil.example)`"
    assert plain("a `b` <img>") == "``a `b` <img>``"
    assert plain("x&#8238;y") == "`x&#8238;y`"
    assert code("``") == "``` `` ```"
