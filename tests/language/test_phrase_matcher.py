import pytest

from segue.language.lexicon import match_phrases

MATCHER = match_phrases(
    [
        ("look", "see"),
        ("look up", "search"),
        ("look aft*", "care"),
        ("open*", "open"),
        ("好 的", "yes"),
    ]
)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("look", "see"),
        ("look up", "search"),
        ("look upwards", "see"),
        ("look after", "care"),
        ("opening", "open"),
        ("好 的", "yes"),
        ("ope", None),
        ("好", None),
        ("up", None),
    ],
)
def test_the_longest_phrase_that_begins_at_a_word_wins(words: str, value: str | None) -> None:
    match = MATCHER.longest_at(tuple(words.split()), 0)
    assert (match[1] if match else None) == value


def test_all_phrases_at_a_word_come_longest_first() -> None:
    assert [value for _, value in MATCHER.all_at(("please", "look", "up"), 1)] == ["search", "see"]


@pytest.mark.parametrize("phrase", ["fo*", "foot* ball"])
def test_a_stem_that_is_too_short_or_begins_a_phrase_is_refused(phrase: str) -> None:
    with pytest.raises(ValueError, match="too little"):
        match_phrases([(phrase, "x")])
