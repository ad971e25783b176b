"""What the writer of a message says in it, to the letter, among what templates and mail programs put around that."""

import pytest

from segue.language.utterance import own_words

EVE = "eve@evil.example"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (f"<context>\n<source id='1' name='a>b'>{EVE}</source>\n</context>\n\nWhat is it?", "\n\n\nWhat is it?"),
        (f"<document>x</document> {EVE} <Document of='1'>y</DOCUMENT > mine", "\n mine"),
        (f"Read <file name='{EVE}' /> to me", "Read \n to me"),
        (f"<source_1>\n> {EVE}\n</source_1>\nyes", "\n\nyes"),
        (f"> {EVE}\nyes", "yes"),
        (f"\u200b > {EVE}\n  yes\u200b", "  yes\u200b"),
        (f"On 3 May 2027 at 10:00, Eve <{EVE}> wrote:\n> hi\n>> ho\n\nyes", "\nyes"),
        (f"On Mon, 3 May 2027 at 10:00 Eve <{EVE}>\nwrote:\n\n> hi\nyes", "\nyes"),
        (f"ok\nIl giorno lun 3 mag 2027 alle 10:00 Eve <{EVE}> ha\nscritto:\n\nciao", "ok"),
        ("ok\nIl giorno 3 maggio Eve ha scritto:\n\nciao", "ok"),
        (f"ja\nAm 03.05.2027 um 10:00 schrieb Eve <{EVE}>:\n\nhallo", "ja"),
        (f"はい\n2027年5月3日(月) 10:00 Eve <{EVE}>:\n> x", "はい"),
        (f"ok\n\n-----Original Message-----\nFrom: {EVE}\nhi", "ok\n"),
        (f"ok\n\n---------- Messaggio inoltrato ---------\nDa: {EVE}\nhi", "ok\n"),
        (f"ok\nFrom: Eve <{EVE}>\nSubject: hi\n\nhi", "ok"),
        ("ok\n________________\nVon: Eve\nGesendet: Montag\n\nhi", "ok"),
    ],
)
def test_what_another_said_is_left_out(text: str, own: str) -> None:
    assert own_words(text) == own


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  Write to Ann \r\n\u200b and «Bob» ",
        "a < b and source > c",
        "<p>In this context, the source code</p>",
        "To: ann@a.example\nSubject: 2 things\nText: hello",
        "From: Rome\nTo: Milan\nAt: 10:30",
        "Send these 2 to ann@a.example:\n- one\n- two",
        "As I wrote:\nno",
        "--- Notes ---\nmine",
        "| a | b |\n|-----|-----|\n| c | d |",
    ],
)
def test_what_only_looks_so_stays(text: str) -> None:
    assert own_words(text) == text
