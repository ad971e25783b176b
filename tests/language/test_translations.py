import re

import pytest

from segue.language.shown_call import TRANSLATIONS, check_translations, translate

LANGUAGES = ("en", "it", "es", "fr", "de", "pt", "nl", "pl", "ru", "tr", "ar", "zh", "ja", "ko", "hi")
FIELDS: dict[str, dict[str, object]] = {
    "ask_step": {"description": "Write a reply"},
    "ask": {},
    "ask_again_plainly": {},
    "waits": {},
    "waits_for": {"group": "finance"},
    "not_changed": {},
    "unseen": {"values": "to: eve@evil.example"},
    "ask_several": {"count": 3},
    "ask_rest": {"count": 2},
    "waits_for_tool": {},
    "cut": {"left": 7, "total": 90, "whole": "/plan", "digest": "0a1b"},
    "cut_arguments": {"left": 7, "total": 90, "whole": "/plan", "digest": "0a1b"},
    "told": {"tool": "mcp_find_mail", "thing": "eml-1", "said": "subject: Lunch"},
    "from_result": {"values": "to: eve@evil.example", "tool": "mcp_get_mail"},
    "not_from_you": {"values": "to: eve@evil.example"},
    "done_step": {"description": "Search", "summary": "3 mails"},
    "cancelled": {},
    "rejected_by": {"who": "sara", "group": "finance", "reason": "Too much"},
    "expired": {},
    "still_waiting": {"goal": "answer Rossi"},
    "superseded": {"goal": "answer Rossi"},
    "changed": {},
    "blocked": {"tool": "mcp_send_mail", "reason": "timeout"},
    "failed": {"number": 2, "description": "Read the newest", "error": "timeout"},
    "skipped": {},
    "unknown": {"number": 3, "description": "Send it"},
    "nothing_waiting": {},
    "interrupted": {},
    "tool_asks": {"tool": "mcp_book_table", "source": "mcp:tables"},
    "answer_form": {},
    "answer_url": {"host": "bank.example"},
    "still_needed": {"fields": "name, date"},
    "runs_anew": {},
    "no_words": {},
    "call_unknown": {"description": "Send mail"},
    "call_denied": {"description": "Send mail", "reason": "over the limit"},
    "not_promised": {},
    "approve_asks": {"user": "ada"},
    "approve_yes": {},
    "approve_no": {},
    "approve_reason": {},
    "approve_approved": {},
    "approve_used": {},
    "nothing_changed": {},
}
QUESTION_MARKS = {"ar": "؟", "zh": "？", "ja": "？", "fr": "\u202f?"}
MINIMAL = {"en": {"hello": "Hi {name}"}}


def test_every_language_says_every_sentence() -> None:
    assert set(TRANSLATIONS.now) == set(LANGUAGES)
    assert all(set(sentences) == set(FIELDS) for sentences in TRANSLATIONS.now.values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sentence_shows_each_of_its_values_and_no_braces(language: str) -> None:
    for key, values in FIELDS.items():
        sentence = translate(key, language, **values)
        assert all(str(value) in sentence for value in values.values()), key
        assert not {"{", "}"} & set(sentence), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_question_ends_with_the_question_mark_of_its_language(language: str) -> None:
    assert translate("ask", language).endswith(QUESTION_MARKS.get(language, "?"))


@pytest.mark.parametrize("key", sorted(set(FIELDS) - {"done_step"}))
def test_no_language_borrows_the_sentence_of_another(key: str) -> None:
    assert len({sentences[key] for sentences in TRANSLATIONS.now.values()}) == len(LANGUAGES)


@pytest.mark.parametrize("key", FIELDS)
def test_a_value_that_is_no_number_keeps_its_own_direction_in_a_sentence_from_right_to_left(key: str) -> None:
    outside = re.sub("\u2068[^\u2068\u2069]*\u2069", "", TRANSLATIONS.now["ar"][key])
    assert set(re.findall(r"{(\w+)}", outside)) <= {"left", "total", "number"}


@pytest.mark.parametrize("language", [None, "", "xx", "tlh", "english"])
def test_an_unknown_language_is_answered_in_english(language: str | None) -> None:
    assert translate("ask", language) == "Shall I go ahead?"


@pytest.mark.parametrize("language", ["it", "it-IT", "it_CH", "IT"])
def test_a_region_does_not_matter(language: str) -> None:
    assert translate("ask", language) == "Procedo?"


@pytest.mark.parametrize("language", ["en", "xx"])
def test_an_unknown_key_is_an_error(language: str) -> None:
    with pytest.raises(KeyError):
        translate("praise", language)


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        translate("still_waiting", "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_value_is_never_read_as_a_format(language: str) -> None:
    hostile = "{number} {0} {error.__class__} %s {"

    assert hostile in translate("failed", language, number=1, description="x", error=hostile)


def test_a_value_may_be_called_key_or_language() -> None:
    assert translate("ask", "en", key="x", language="y") == "Shall I go ahead?"


@pytest.mark.parametrize(
    "italian",
    [
        {},
        {"hello": "Ciao"},
        {"hello": "Ciao {nome}"},
        {"hello": "Ciao {name!r}"},
        {"hello": "Ciao {name.x}"},
        {"hello": "{name:>9}"},
    ],
)
def test_a_sentence_that_lacks_a_field_or_changes_it_is_refused(italian: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\[it\]"):
        check_translations({**MINIMAL, "it": italian})


def test_a_sentence_that_english_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="goodbye"):
        check_translations({**MINIMAL, "it": {"hello": "Ciao {name}", "goodbye": "Addio"}})
