"""What a text hides is written out, and what people write in their languages stays as it is."""

import pytest

from segue.domain.visible import visible, whole_before

READABLE = {
    "Arabic": "السلام عليكم، الساعة ١٢:٣٠ ۝ آية",
    "vocalised Arabic": "بِسْمِ ٱللَّٰهِ",
    "Persian": "می\u200cخواهم کتاب\u200cها را ببینم",
    "Hebrew with points": "שָׁלוֹם",
    "Chinese": "\u3000\u3000你好，世界。",
    "Japanese": "東京\u3000太郎さん、パーティー",
    "Korean": "안녕하세요",
    "Hindi": "नमस्ते, क्षत्रिय और क्\u200dष",
    "Sinhala": "ශ්\u200dරී ලංකා",
    "Thai": "ที่นี่น้ำ",
    "Vietnamese, decomposed": "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "French": "Bonjour\u202f! «\u00a0Oui\u00a0»\u00a0: 12\u202f000\u00a0€",
    "emoji": "👩\u200d💻 👨\u200d👩\u200d👧 ❤\ufe0f 👍🏽 🇮🇹 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈 🙂\u200d↔\ufe0f",
}
HIDDEN = {
    "turned around": ("invoice\u202efdp.exe", "invoice‹U+202E›fdp.exe"),
    "isolated": ("\u2066a\u2069", "‹U+2066›a‹U+2069›"),
    "zero width": ("eve\u200b@evil", "eve‹U+200B›@evil"),
    "many of them": ("a" + "\u200b" * 900, "a‹U+200B×900›"),
    "joined letters": ("pay\u200dpal", "pay‹U+200D›pal"),
    "parted letters": ("pay\u200cpal", "pay‹U+200C›pal"),
    "written in tags": ("ok\U000e0068\U000e0069", "ok‹U+E0068›‹U+E0069›"),
    "selected": ("itm-1\ufe0f", "itm-1‹U+FE0F›"),
    "selected twice": ("❤\ufe0f\ufe0f", "❤\ufe0f‹U+FE0F›"),
    "private": ("\ue000", "‹U+E000›"),
    "not assigned": ("\u0378", "‹U+0378›"),
    "separated": ("a\u2028b\u2029c\x85d", "a‹U+2028›b‹U+2029›c‹U+0085›d"),
    "like a space": ("my\u00a0file\u2003x\ty", "my‹U+00A0›file‹U+2003›x‹U+0009›y"),
    "wide spaces": ("a\u3000b", "a‹U+3000›b"),
    "blank letters": ("a\u3164\u2800\u115f", "a‹U+3164›‹U+2800›‹U+115F›"),
    "a mark without a letter": ("\u0301a \u0301", "‹U+0301›a ‹U+0301›"),
    "heaped marks": ("a" + "\u0301" * 9, "a\u0301\u0301\u0301\u0301‹U+0301×5›"),
    "struck through": ("n\u0336o\u0336", "n‹U+0336›o‹U+0336›"),
    "an escape that is none": ("‹U+202E›", "‹U+2039›U+202E›"),
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(("text", "shown"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_hidden_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "at", "place"),
    [
        ("cafe\u0301s", 4, 3),
        ("ok 👩\u200d💻!", 5, 3),
        ("ok 👩\u200d💻!", 4, 3),
        ("👍🏽", 1, 1),
        ("x👍🏽", 2, 1),
        ("a🇮🇹🇫🇷", 2, 1),
        ("a🇮🇹🇫🇷", 3, 3),
        ("a‹U+202E›b", 5, 1),
        ("plain", 3, 3),
        ("x" + "\u0301" * 99, 50, 50),
    ],
)
def test_a_cut_does_not_part_what_belongs_together(text: str, at: int, place: int) -> None:
    assert whole_before(text, at) == place
