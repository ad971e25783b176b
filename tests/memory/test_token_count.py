"""How tokens are counted: near enough in every script, and never by way of the network."""

from pathlib import Path

import pytest
import tiktoken

from segue.memory.history_window import counter_for, counting_with, estimate

SPOKEN = {
    "en": ("I found three messages about the invoices of November. Shall I read the first one to you? ", 3.0, 4.5),
    "it": ("Ho trovato tre email sulle fatture di novembre; è già tutto pagato. Leggo la prima? ", 2.5, 4.0),
    "ru": ("Я нашёл три письма о счетах за ноябрь. Прочитать первое из них вслух? ", 1.6, 2.6),
    "ar": ("وجدت ثلاث رسائل بريد إلكتروني عن فواتير نوفمبر، هل أقرأ لك الأولى؟ ", 1.6, 2.6),
    "zh": ("我找到了三封关于十一月发票的邮件，需要我为您读第一封吗？", 0.6, 1.0),
    "json": ('{"tool_call_id":"call_01kb2x9p3hq7s4v6w8y0z1a2b3","items":[{"id":"eml-0a1b2c","n":12345}]}', 1.6, 3.0),
}


@pytest.mark.parametrize("language", SPOKEN)
def test_a_token_is_as_many_characters_as_tokenizers_make_of_it(language: str) -> None:
    text, least, most = SPOKEN[language]
    assert least <= len(text * 20) / estimate(text * 20) <= most


def test_emoji_and_what_is_no_text_are_counted_too() -> None:
    assert estimate("👍🏽" * 100) >= 200
    assert estimate("\ud800" * 100) > 0
    assert estimate("") == 0


def test_a_tokenizer_counts_exactly() -> None:
    letters = {bytes([letter]): letter for letter in range(256)}
    pairs = tiktoken.Encoding("pairs", pat_str=r".+", mergeable_ranks={**letters, b"ab": 256}, special_tokens={})
    count = counting_with(pairs)
    assert [count(text) for text in ("ab", "abab", "ba", "è", "<|endoftext|>")] == [1, 2, 2, 2, 13]


@pytest.mark.parametrize("content", [None, b"", b"not the tokenizer"])
def test_a_tokenizer_that_is_not_at_hand_is_not_fetched(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790").write_bytes(content)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert counter_for("gpt-5-mini") is estimate
    assert counter_for("some-model-of-mine") is estimate
