"""What date "tomorrow" is, in the languages people tell facts in."""

from datetime import date

import pytest

from segue.memory.fact_cues import days_meant, with_dates

SUNDAY = date(2026, 11, 1)
MEANT = [
    ("My exam is tomorrow, not the day after tomorrow", ["2026-11-02", "2026-11-03"]),
    ("Ho la riunione con Rossi domani e l'altro ieri ero a Roma", ["2026-11-02", "2026-10-30"]),
    ("我明天去看牙医", ["2026-11-02"]),
    ("我后天去看牙医，今天天气很好", ["2026-11-03", "2026-11-01"]),
    ("عندي موعد مع الطبيب غدًا", ["2026-11-02"]),
    ("Mañana por la mañana tengo cita con el médico", ["2026-11-02"]),
    ("J'ai rendez-vous après-demain", ["2026-11-03"]),
    ("Ich habe übermorgen einen Termin, ich wohne hier", ["2026-11-03"]),
    ("Depois de amanhã tenho consulta", ["2026-11-03"]),
    ("Ik heb morgen een afspraak", ["2026-11-02"]),
    ("Pojutrze mam wizytę", ["2026-11-03"]),
    ("Послезавтра у меня врач", ["2026-11-03"]),
    ("Yarın doktorum var", ["2026-11-02"]),
    ("明後日は歯医者です", ["2026-11-03"]),
    ("내일은 제 생일이에요", ["2026-11-02"]),
    ("आज मेरा जन्मदिन है", ["2026-11-01"]),
]
NO_DAY = [
    "I like the book The Day After",
    "Ich arbeite jeden Morgen",
    "Trabajo por la mañana",
    "저는 내 일을 좋아해요",
    "कल मेरा जन्मदिन है",  # tomorrow, or yesterday
    "大后天我去北京看医生",  # in three days
    "大前天我去了北京",  # three days ago
    "我有后天性心脏病",  # acquired
    "我有後天性心臟病",
    "我住在光明天地",
    "如今天气很冷",  # nowadays
]


@pytest.mark.parametrize(("said", "dates"), MEANT)
def test_a_word_for_a_day_means_a_date(said: str, dates: list[str]) -> None:
    assert list(days_meant(said, SUNDAY).values()) == dates


@pytest.mark.parametrize("said", NO_DAY)
def test_what_only_looks_like_a_day_means_none(said: str) -> None:
    assert days_meant(said, SUNDAY) == {}


def test_a_fact_gets_the_dates_of_its_own_words_once_and_stays_within_its_bound() -> None:
    days = days_meant("Yesterday I moved, tomorrow my exam begins", SUNDAY)
    assert with_dates("The exam begins tomorrow.", days) == "The exam begins tomorrow (2026-11-02)"
    assert with_dates("The exam begins tomorrow (2026-11-02)", days) == "The exam begins tomorrow (2026-11-02)"
    assert with_dates("The exam begins", days) == "The exam begins"
    assert with_dates(f"tomorrow{'!' * 490}", days) == f"tomorrow{'!' * 490}"
