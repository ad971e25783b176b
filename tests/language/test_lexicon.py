import pytest

from segue.language.lexicon import kinds_of, parse_lexicon

KINDS = frozenset({"yes", "no", "filler"})


def test_a_word_in_two_lists_of_one_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[it\] has 'certo' in both 'yes' and 'filler'"):
        parse_lexicon({"it": {"yes": "sì, certo", "filler": "Certo!"}}, kinds=KINDS)


def test_a_word_may_mean_something_else_in_another_language() -> None:
    lexicon = parse_lexicon({"it": {"no": "no"}, "pl": {"yes": "no"}}, kinds=KINDS)
    assert lexicon.speakers["no"] == ("it", "pl")
    assert (kinds_of(("no",), "it", lexicon), kinds_of(("no",), "pl", lexicon)) == (["no"], ["yes"])


def test_a_list_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'yess'"):
        parse_lexicon({"it": {"yess": "sì"}}, kinds=KINDS)
