import pytest

from segue.agent.false_claims import CLAIMS, PROMISES
from segue.language.lexicon import Lexicon, WordList, kinds_of, parse_lexicon
from segue.plans.acknowledgement import LEXICON, SELECTION
from segue.plans.multistep_detector import SEARCH_LEXICON

KINDS = frozenset({"yes", "no", "filler"})


def test_a_word_in_two_lists_of_one_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[it\] has 'certo' in both 'yes' and 'filler'"):
        parse_lexicon({"it": {"yes": "sì, certo", "filler": "Certo!"}}, kinds=KINDS).phrases["it"]()


def test_a_word_may_mean_something_else_in_another_language() -> None:
    lexicon = parse_lexicon({"it": {"no": "no"}, "pl": {"yes": "no"}}, kinds=KINDS)
    assert lexicon.speakers["no"] == ("it", "pl")
    assert (kinds_of(("no",), "it", lexicon), kinds_of(("no",), "pl", lexicon)) == (["no"], ["yes"])


def test_a_list_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'yess'"):
        parse_lexicon({"it": {"yess": "sì"}}, kinds=KINDS).phrases["it"]()


@pytest.mark.parametrize("words", [LEXICON, SELECTION, SEARCH_LEXICON, PROMISES, CLAIMS])
def test_what_ships_can_be_read_in_each_language(words: WordList[Lexicon]) -> None:
    assert all(made().matches for made in words.shipped.phrases.values())


def test_a_language_is_read_when_it_is_heard() -> None:
    made = parse_lexicon({"it": {"no": "no"}, "pl": {"nie": "nie"}}, kinds=KINDS).phrases
    assert made["it"]() is made["it"]()
    with pytest.raises(ValueError, match="'nie'"):
        made["pl"]()
