"""The words of a streamed answer: the same text however a provider cuts it."""

from hypothesis import given
from hypothesis import strategies as st

from segue.models.reply import AnswerPart
from segue.models.streamed_answer import Listener, StreamedAnswer
from segue.tools.normalize import clean_text


def halves(text: str) -> str:
    """The text with every character beyond the first plane in two, as UTF-16 writes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(units[place : place + 2], "big")) for place in range(0, len(units), 2))


# Without what begins a tag: thinking is no word. Hypothesis draws the tags themselves from our source.
WORDS = st.characters(exclude_categories=["Cs"], exclude_characters="<[◁") | st.sampled_from(" \n\x00😀𝔸\u3000")


@given(st.text(WORDS), st.data())
def test_the_words_passed_on_are_the_clean_text_however_it_is_cut(text: str, data: st.DataObject) -> None:
    units = halves(text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(units)))))
    passed_on: list[str] = []
    answer = StreamedAnswer(Listener(passed_on.append, passed_on.clear))
    for start, end in zip([0, *cuts], [*cuts, len(units)], strict=True):
        answer.add(AnswerPart(units[start:end]))
    kept = answer.reply().text
    assert "".join(passed_on) == kept == clean_text(text).strip()
    assert all(passed_on)
    assert answer.has_begun == bool(passed_on)
