"""Words of a model on their way out: the same text however a provider cuts it."""

from hypothesis import given
from hypothesis import strategies as st

from segue.agent.streaming import Speech
from segue.tools.normalize import clean_text


def halves(text: str) -> str:
    """The text with every character beyond the first plane in two, as UTF-16 writes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(units[place : place + 2], "big")) for place in range(0, len(units), 2))


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\x00😀𝔸\u3000")), st.data())
def test_what_is_heard_is_the_clean_text_however_it_is_cut(text: str, data: st.DataObject) -> None:
    units = halves(text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(units)))))
    heard: list[str] = []
    speech = Speech(heard.append)
    for start, end in zip([0, *cuts], [*cuts, len(units)], strict=True):
        speech.add(units[start:end])
    assert "".join(heard) == speech.text == clean_text(text).strip()
    assert all(heard)
