import pytest

from segue.language.written_values import dates_in, numbers_in, prices_in, times_in


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-20", "2026/5/20", "20.05.2026", "20/05/2026", "05/20/2026", "2026-05-20T17:00:00", "May 20, 2026",
        "May 20th 2026", "20 May 2026", "20th of May, 2026", "20 maggio 2026", "20 de mayo de 2026", "20 mai 2026",
        "20. Mai 2026", "20 de maio de 2026", "20 mei 2026", "20 maja 2026", "20 мая 2026", "20 Mayıs 2026",
        "20 مايو 2026", "20-05-2026", "20 أيار 2026",
        "٢٠ مايو ٢٠٢٦", "2026年5月20日", "2026年 5月20日", "2026년 5월 20일", "20 मई 2026",
    ],
)  # fmt: skip
def test_a_date_is_one_in_all_its_written_forms(text: str) -> None:
    assert dates_in(f"a {text}, b") == {(2026, 5, 20)}


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("1º de maio de 2026", (2026, 5, 1)), ("1º gennaio 2026", (2026, 1, 1)), ("1.º de mayo de 2026", (2026, 5, 1)),
        ("1er mai 2026", (2026, 5, 1)), ("20 जनवरी 2026", (2026, 1, 20)), ("3 फ़रवरी", (None, 2, 3)),
        ("जनवरी 20, 2026", (2026, 1, 20)), ("1 octubre", (None, 10, 1)),
    ],
)  # fmt: skip
def test_a_day_may_be_an_ordinal_and_a_month_may_end_in_a_vowel_sign(
    text: str, date: tuple[int | None, int, int]
) -> None:
    assert dates_in(f"a {text}, b") == {date}


@pytest.mark.parametrize("text", ["May 20th", "il 20 maggio", "5月20号", "20 مايو", "am 20. Mai", "5월 20일"])
def test_a_date_may_have_no_year(text: str) -> None:
    assert dates_in(text) == {(None, 5, 20)}


@pytest.mark.parametrize("text", ["03/04/2026", "3.4.2026", "May 2026", "1.2.3", "the 20th", "12026-05-201", "5月", ""])
def test_what_may_be_read_in_two_ways_or_is_a_part_of_one_is_no_date(text: str) -> None:
    assert dates_in(text) == set()


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("17:00", (17, 0)), ("5 pm", (17, 0)), ("5pm", (17, 0)), ("5:30 p.m.", (17, 30)), ("12 am", (0, 0)),
        ("12 p.m.", (12, 0)), ("9h30", (9, 30)), ("17.30", (17, 30)), ("09:05:07", (9, 5)), ("下午5点", (17, 0)),
        ("下午5点30分", (17, 30)), ("17点30", (17, 30)), ("中午12点", (12, 0)), ("午後5時", (17, 0)),
        ("오후 5시", (17, 0)), ("下午5:30", (17, 30)), ("晚上12点", (0, 0)), ("凌晨12点", (0, 0)), ("上午9点", (9, 0)),
        ("الساعة 5 مساءً", (17, 0)), ("5:30 مساء", (17, 30)), ("9 صباحًا", (9, 0)), ("17 Uhr 30", (17, 30)),
    ],
)  # fmt: skip
def test_a_time_is_one_in_all_its_written_forms(text: str, time: tuple[int, int]) -> None:
    assert times_in(f"at {text}, or so") == {time}


@pytest.mark.parametrize(
    "text", ["at 5", "2:3", "1.194", "10:20:30:40", "5点半", "下午5点半", "5시간", "24時間", "الساعة 5", "alle 3"]
)
def test_a_number_without_minutes_or_a_half_of_the_day_is_no_time(text: str) -> None:
    assert times_in(text) == set()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3), ("3 bags.", 3), ("1,194", 1194), ("1'194.50", 1194.5), ("12,345,678", 12_345_678), ("1.194", 1.194),
        ("51,00", 51), ("1.194,50", 1194.5), ("1\u00a0194,50", 1194.5), ("total:3", 3), ("'3'", 3), ("12.5%", 12.5),
        ("١٬٨٤٥٫٥٠", 1845.5), ("1,00,000", 100_000), ("12,34,567.50", 1_234_567.5),
    ],
)  # fmt: skip
def test_a_number_is_one_in_all_its_written_forms(text: str, number: float) -> None:
    assert number in numbers_in(f"a {text} b")


@pytest.mark.parametrize(
    "text",
    [
        "itm-3",
        "gift_card_3",
        "v3",
        "2026-05-20",
        "1/2",
        "17:00",
        "10,20,30",
        "3-day",
        "1.2.3",
        "-3",
        "3万",
        "2k",
        "1.5 million",
        "5 mil",
        "5 Tausend",
        "5 тыс.",
        "5 K",
    ],
)
def test_a_number_in_a_longer_code_is_none(text: str) -> None:
    assert numbers_in(text) == set()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("订4个人的桌子", 4), ("价格350", 350), ("房间12,价格3.5。", 3.5), ("共1,200元", 1200), ("合計350円です", 350),
        ("합계350원", 350), ("支付120欧元给Rossi", 120),
    ],
)  # fmt: skip
def test_a_script_without_spaces_puts_a_number_right_beside_words(text: str, number: float) -> None:
    assert number in numbers_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "5月20日", "2026年", "下午5点30分", "一万2千", "3万5", "第3", "三百5", "제3", "5월 20일", "3백만원",
        "3만5000원",
        "3만 5000원", "5천5백원", "3兆円", "3块5", "3ล้านบาท", "3หมื่น5000บาท", "3 लाख रुपये", "3 miljoen", "3 milhões",
    ],
)  # fmt: skip
def test_a_date_an_hour_and_a_part_of_a_number_are_none_in_a_script_without_spaces(text: str) -> None:
    assert numbers_in(text) == set()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("$5", "USD"), ("5 dollari", "USD"), ("付5美元", "USD"), ("5 دولار", "USD"), ("5 €", "EUR"), ("5 euro", "EUR"),
        ("付5欧元", "EUR"), ("5 يورو", "EUR"), ("£5", "GBP"), ("5 yuan", "CNY"), ("付5元", "CNY"), ("5日元", "JPY"),
        ("¥5", ""), ("5港元", ""), ("5 ريال", ""), ("US$5", "USD"), ("R$ 5", "BRL"), ("付5欧", "EUR"), ("HK$5", ""),
        ("5 A$", ""),
    ],
)  # fmt: skip
def test_a_price_has_the_code_of_its_currency_unless_several_countries_have_it(text: str, code: str) -> None:
    assert prices_in(text) == {(5, code)}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("$1,194", 1194), ("1.194 €", 1194), ("€1.194", 1194), ("51,00 €", 51), ("1.194,50 EUR", 1194.5),
        ("USD 51.00.", 51), ("CHF 1'194.50", 1194.5), ("1\u202f194,50 €", 1194.5), ("100元", 100), ("¥100,", 100),
        ("51 dollars", 51), ("₹1,00,000", 100_000), ("₹ 12,34,567.50", 1_234_567.5), ("1,50,000 ₹", 150_000),
        ("￥184", 184), ("184美元", 184), ("184 يورو", 184), ("١٨٤ ريالا", 184), ("99 yuan", 99),
    ],
)  # fmt: skip
def test_an_amount_is_one_in_all_its_written_forms(text: str, amount: float) -> None:
    assert {price for price, _ in prices_in(f"a {text} b")} == {amount}
    assert amount in numbers_in(f"a {text} b")


@pytest.mark.parametrize(
    "text", ["1,194", "3 bags", "euro", "A51", "£1.5k", "$3 million", "¥3万", "1 194,50 €", "9 dollari canadesi"]
)
def test_a_number_without_a_currency_is_no_amount(text: str) -> None:
    assert prices_in(text) == set()


@pytest.mark.parametrize("sign", ["\u00a0", "'", ",", ".", "''", " "])
def test_a_long_row_of_digits_and_signs_is_read_once(sign: str) -> None:
    thread = f"1{sign}" * 20_000
    assert prices_in(thread) == set()  # from each digit anew it would take a minute
