"""How messages are read: the rules of a yes, and the cues."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final

from segue.language.detect_language import detect_language
from segue.language.lexicon import Lexicon
from segue.language.utterance import QUOTATION, fold
from segue.memory.fact_cues import (
    FACT_WORDS,
    MOST_SEARCH_WORDS,
    cued_sentences,
    index_words,
    is_correction,
    may_state_facts,
    search_words,
)
from segue.plans.acknowledgement import LEXICON, Acknowledgement, classify
from segue.plans.asked_words import ACTIONS, Question, is_about, question_in, question_of
from segue.plans.multistep_detector import (
    CUES,
    SEARCH_LEXICON,
    asks_for_several_steps,
    needs_own_things_first,
    search_readings,
)
from tests.fuzz.draw import Draw, as_text

INVISIBLE: Final = (
    "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\u00ad\u034f\u180e"
)
CONTROL: Final = "\0\a\b\x1b\x7f"
UNKNOWN_WORD: Final = "qzxvkw"
NO: Final = "no, stop, don't do it"
QUOTES: Final = frozenset("\"“”„«»「」『』《》'‘’\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029>＞")
SURENESS: Final = {"strong": 2, "weak": 1, None: 0}

REPLIES: Final = (
    "yes please go ahead", "sì, grazie", "好的，麻烦你了", "no, don't", "yes, but only the first two", "ok 👍", "yess",
    '"yes" he said', "> yes\nno", "sounds perfect, thanks", "ja, mach das nicht", "نعم، من فضلك", "why not?",
    "yes, delete all mails of Anna Rossi", "perfetto", "thank you", "yes, actually no", "はい、お願いします",
)  # fmt: skip
REQUESTS: Final = (
    "find the cheapest hotel, then book it", "1) read my mail 2) send a summary", "cerca le email e poi leggi l'ultima",
    "remember that my lawyer is Anna. I no longer live in Rome.", "search the web for the newest Python",
    "```x``` then",
    "我住在上海，请记住", "Lies die neueste Mail und antworte dann.", "what is in my latest invoice?",
    "- a\n- read b\n- c",
)  # fmt: skip


def acknowledgement(data: bytes) -> None:
    draw = Draw(data)
    question, kind = draw.one_of(_questions()), draw.number(8)
    text = _message(draw, _words_of_replies())
    found = classify(text, question=question)
    assert found == classify(text, question=question)
    assert (found.strength is not None) == (found.verdict == "confirm")
    more = _with_unseen(draw, text, kind)
    assert _sureness(classify(more, question=question)) <= _sureness(found), (text, more)
    assert classify(f"{UNKNOWN_WORD} {text}").strength != "strong", text
    assert classify(f"{text}\n{UNKNOWN_WORD}").strength != "strong", text
    assert classify(f"{text}\n{NO}").strength is None, text
    if QUOTES.isdisjoint(text):
        assert classify(f'"{text}"').strength is None, text
    question_in(f"{text}?")
    is_about(text, "delete_all")


def cues(data: bytes) -> None:
    draw = Draw(data)
    text = _message(draw, _words_of_requests())
    asks_for_several_steps(text)
    search_readings(text)
    needs_own_things_first(text)
    may_state_facts(text)
    is_correction(text)
    assert QUOTATION.search(text) or all(sentence in text for sentence, _ in cued_sentences(text))
    assert len(search_words(text).split()) <= MOST_SEARCH_WORDS
    index_words(text)
    assert len(detect_language(text)) == 2
    assert fold(fold(text)) == fold(text), text
    question_of(text[:64], text, {"text": text})


def _with_unseen(draw: Draw, text: str, kind: int) -> str:
    """Returns the text with more in it that nobody sees."""
    at = draw.number(len(text) + 1)
    match kind:
        case 0:
            return "".join(chain.from_iterable((char, draw.one_of(INVISIBLE)) for char in text))
        case 1:
            return text[:at] + draw.one_of(INVISIBLE) + text[at:]
        case 2:
            return f"{draw.one_of(CONTROL)}{text}{draw.one_of(CONTROL)}"
        case 3:
            return text.replace(" ", f" {draw.one_of(CONTROL)} ")
        case 4:
            return f"{text}{draw.one_of(INVISIBLE)}{draw.one_of(CONTROL)}"
        case _:
            return text


def _sureness(found: Acknowledgement) -> int:
    return SURENESS[found.strength]


def _message(draw: Draw, vocabulary: Sequence[str]) -> str:
    return draw.words(vocabulary) if draw.number(2) else as_text(draw.rest())


@cache
def _questions() -> tuple[Question | None, ...]:
    return (
        None,
        question_of("delete_all", "Delete all mails of Anna Rossi", {"folder": "Archive"}),
        question_of("send_mail", "Invia la mail a Rossi", {"to": "rossi@example.org", "subject": "Fattura 7"}),
        question_of(None, "取消预订", {"id": "bk_7f3a"}),
        question_of("book_hotel", "", {}),
    )


@cache
def _words_of_replies() -> tuple[str, ...]:
    named = (phrase for lists in ACTIONS.now.values() for phrase in (*lists.actions.matches, *lists.things.matches))
    return (*_phrases(LEXICON.now), *sorted({*named}), "anna", "rossi", "archive", "7", "🙏", ":)")


@cache
def _words_of_requests() -> tuple[str, ...]:
    cued = sorted({*CUES.now.phrases.matches, *FACT_WORDS.now.cues.matches})
    return (*_phrases(SEARCH_LEXICON.now), *cued, "1)", "2)", "①", "②", "- ", "->", "http://a.example", "x@y.example")


def _phrases(lexicon: Lexicon) -> list[str]:
    return sorted({phrase for matcher in lexicon.phrases.values() for phrase in matcher().matches})
