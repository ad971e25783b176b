"""Words that an operator adds to those that ship, without a change of the package."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from segue import create_app, tool
from segue.config import Settings
from segue.domain.errors import AppError
from segue.language.detect_language import detect_language
from segue.language.lexicon import use_folder
from segue.language.shown_call import translate
from segue.memory.fact_cues import days_meant, is_correction
from segue.plans.acknowledgement import classify
from segue.plans.multistep_detector import asks_for_several_steps
from tests.support.provider import Provider, calls, says
from tests.support.service import running

ASK_IN_TRIESTE = "Vado?"


@pytest.fixture(autouse=True)
def _lists_that_ship() -> Iterator[None]:
    yield
    use_folder(None)


@tool(effect="destructive")
async def close_bar() -> str:
    """Closes the bar."""
    return "closed"


async def test_a_word_and_a_sentence_of_the_folder_are_those_of_the_service(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    assert classify("daghe").verdict == "none"
    (tmp_path / "lexicon.toml").write_text('[it]\nyes = "daghe"\nstop = "grazie tante"\n')
    (tmp_path / "translations.toml").write_text(f'[it]\nask = "{ASK_IN_TRIESTE}"\n')
    async with running(settings.model_copy(update={"language_dir": tmp_path}), tools=[close_bar]) as client:
        session = await client.new_session()
        provider.will(calls(("close_bar", {})), says("Fatto."))
        asked = await client.chat(session, "Chiudi il bar per favore")
        done = await client.chat(session, "daghe")
        assert [classify(said).rule for said in ("grazie tante", "grazie", "sì, grazie")] == [
            "stop",
            "thanks_alone",
            "yes",
        ]
    assert asked["message"]["content"].endswith(ASK_IN_TRIESTE)
    assert (
        done["acknowledgement"] | {"verdict": "confirm", "language": "it", "strength": "strong"}
        == done["acknowledgement"]
    )
    assert [call["status"] for call in done["tool_calls"]] == ["succeeded"]
    create_app(settings)
    assert (classify("daghe").verdict, translate("ask", "it")) == ("none", "Procedo?")


def test_a_language_that_does_not_ship_can_be_added(tmp_path: Path) -> None:
    lists = {
        "lexicon": 'yes = "ja, javisst"\nno = "nej"',
        "languages": 'words = "jag, det, och, är, inte, hitta, läs"\nletters = "å"',
        "multistep": 'verb = "first"\nact = "hitta, läs"\nsequence = "sedan"\njoiner = "och"',
        "days": 'tomorrow = "i morgon"',
    }
    for name, lines in lists.items():
        (tmp_path / f"{name}.toml").write_text(f"[sv]\n{lines}\n")
    with (tmp_path / "multistep.toml").open("a") as multistep:
        multistep.write('[en]\nsequence = "first"\n')  # which is also a place of the verb
    (tmp_path / "facts.toml").write_text('[cues.sv]\ncorrection = "inte längre"\n')
    (tmp_path / "notes.txt").write_text("no list")
    use_folder(tmp_path)
    assert [classify(said).verdict for said in ("javisst", "nej")] == ["confirm", "reject"]
    assert (detect_language("det är inte jag"), translate("ask", "sv")) == ("sv", "Shall I go ahead?")
    assert asks_for_several_steps("hitta det och läs det sedan")
    assert is_correction("inte längre måndag")
    assert list(days_meant("det är i morgon", date(2026, 11, 1)).values()) == ["2026-11-02"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("lexikon", "", "lexikon.toml is no word list: those are actions.toml, "),
        ("multistep", '[it]\nactt = "daghe"', "multistep.toml cannot be used: it has 'actt', which none"),
        ("multistep", '[it]\nact = "a b"\ntell = "a b"', "has 'a b' in both 'act' and 'tell'"),
        ("lexicon", '[it]\nyes = "a b"\nno = "a b"', r"\[it\] has 'a b' in both"),
        ("multistep", '[it]\nact = ["daghe"]', "'act' has to be a text"),
        ("multistep", 'it = "daghe"', "'it' has to be a table"),
        ("multistep", '[it]\nact = "daghe', "multistep.toml cannot be used: Unterminated string"),
        ("translations", '[it]\nask = "Vado, {name}?"', "ask must have the fields"),
        ("translations", '[sv]\nask = "Ska jag?"', r"\[sv\] and \[en\] differ in"),
        ("multistep", '[sv]\nact = "hitta"', "multistep.toml lacks 'verb'"),
        ("actions", '[it.actions]\nsendd = "manda"', "it has 'sendd', which none"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_and_changes_nothing(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / "facts.toml").write_text('[cues.it]\ncorrection = "no xe più"\n')
    (tmp_path / f"{name}.toml").write_text(text)
    with pytest.raises(AppError, match=why):
        use_folder(tmp_path)
    assert not is_correction("no xe più lunedì")
