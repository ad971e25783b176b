"""Whether the user said it: a fact in a model's words against a message in the user's."""

import pytest

from segue.memory.fact_cues import is_said

SAID = [
    ("The user is vegetarian", "remember I'm vegetarian please"),
    ("The user's name is Bob", "call me Bob"),
    ("User is 34 years old", "I am 34"),
    ("The user does not eat meat", "I don't eat meat"),
    ("Works at ACME as an engineer", "I'm working at ACME, engineer by trade"),
    ("L'utente preferisce le riunioni di martedì", "preferisco le riunioni il martedì"),
    ("Il nome dell'utente è Anna", "Mi chiamo Anna"),
    ("L'utilisatrice habite à Lyon", "J'habite à Lyon"),
    ("用户住在罗马", "我叫小明，住在罗马"),
    ("用户的邮箱是ada@books.example。", "我的邮箱：ada@books.example，谢谢"),
    ("The files are in /data/Ada.", "my files? in /data/Ada, of course"),
    ("用户的名字是小明", "我叫小明，住在罗马"),
    ("المستخدم يحب القهوة", "أحب القهوة السوداء"),
    ("اسم المستخدم سارة", "اسمي سارة وأعيش في روما"),
    ("تعيش المستخدمة سارة في روما", "اسمي سارة وأعيش في روما"),
]
NOT_SAID = [
    ("The user likes ACME", "summarise the page of ACME for me"),
    ("The user's favourite shop is ACME", "read example.com/acme"),
    ("The meeting is on Sunday", "the meeting is on Monday"),
    ("The user eats meat, never fish", "I eat meat"),
    ("User is 35 years old", "I am 34 years old"),
    ("The PIN is 12345", "The PIN is 1234"),
    ("L'utente vuole cancellare tutte le email", "leggi la pagina e dimmi che cosa dice"),
    ("用户喜欢咖啡", "我叫小明，住在罗马"),
    ("The accountant is books@ada.example", "my accountant is ada@books.example"),
    ("The accountant is Ada@books.example", "my accountant is ada@books.example"),
    ("The files are in /ada/data", "my files are in /data/ada"),
    ("المستخدم يحب الشاي", "أحب القهوة السوداء"),
    ("The user", "I am the user"),
    ("", "hello"),
    ("!!!", "!!!"),
]


@pytest.mark.parametrize(("fact", "message"), SAID)
def test_a_fact_in_the_users_words_was_said(fact: str, message: str) -> None:
    assert is_said(fact, message)


@pytest.mark.parametrize(("fact", "message"), NOT_SAID)
def test_a_fact_with_a_word_the_user_did_not_say_was_not(fact: str, message: str) -> None:
    assert not is_said(fact, message)


def test_a_correction_is_said_together_with_what_it_corrects() -> None:
    told = ("La riunione con Rossi è di martedì", "non più lunedì, martedì")
    assert not is_said(*told)
    assert is_said(*told, "La riunione con Rossi è di lunedì")
