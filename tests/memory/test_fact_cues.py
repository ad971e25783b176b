"""Which messages may tell something worth keeping, and what a text is found by."""

from typing import Any

import pytest

from segue.memory.fact_cues import (
    FACT_WORDS,
    is_correction,
    may_state_facts,
    parse_fact_words,
    search_words,
    told_after_forgetting,
)

TELLS = [
    "My name is Bob",
    "I'm allergic to peanuts, by the way.",
    "From now on answer in French",
    "Can you remember that I am vegetarian?",
    "Mi chiamo Anna. Che tempo fa?",
    "La riunione con Rossi è di lunedì",
    "d’ora in poi dammi del tu",
    "我叫小明，住在罗马",
    "请记住我对花生过敏",
    "اسمي سارة وأعيش في روما",
    "لا أحب القهوة",
    "Je m'appelle Zoé et j'habite à Lyon",
    "Vivo en Madrid y me gusta el té",
    "Ich heiße Jürgen",
    "Moro em Lisboa",
    "ik woon in Gent",
    "Mieszkam w Łodzi",
    "Меня зовут Аня",
    "Benim adım Ayşe",
    "私の名前は田中です",
    "제 이름은 민수입니다",
    "मेरा नाम अनिता है",
    "I'm vegan, what can I cook tonight?",
    "Sono celiaco, che pizza mi consigli?",
    "我对花生过敏，能吃什么？",
    "أنا نباتي، ماذا آكل؟",
    "Hi, I'm Tom Becker, a nurse from Leeds.",
    "I eat vegetables but no meat, fish or eggs",
    "I'm not vegan anymore.",
    "Always answer in French.",
    "Ciao, sono Giulia. Ho due figli",
    "Mangio verdure ma niente carne",
    "Ho smesso di fumare!",
    "我有糖尿病",
    "我戒烟了",
    "我對花生過敏",
    "幫我記一下，車停在地下三樓",
    "انتقلنا إلى أبوظبي",
    "ما بحب السمك",
]
TELLS_NOTHING = [
    "",
    "sì, grazie",
    "好的",
    "نعم",
    "Find the mails of Rossi and read the first one",
    "Cerca le mail di Rossi",
    "What is my name?",
    "Come mi chiamo?",
    "我叫什么名字？",
    "ما اسمي؟",
    "Hello there, what do you make of this?",
    "I like this. " * 1000,
    'Translate "I live in Berlin and I am vegan"',
    "你知道我住在哪里吗",
    "هل عندي حساسية من المكسرات",
    "Forget my address, ok?",
    "Che ora è a Roma adesso, per favore?",
    "Che ora è a Roma adesso, e a Londra?",
]
FORGETS = [
    "Forget my phone number",
    "Don't remember my phone number, please",
    "Please stop remembering my meeting of every Monday",
    "Delete my phone number from your memory",
    "Cancella il mio numero dalla tua memoria",
    "Non ricordare il mio indirizzo",
    "别记得我的电话号码",
    "请从你的记忆中删除我的电话号码",
    "أريدك أن تنسى رقم هاتفي",
    "احذف رقم هاتفي من ذاكرتك",
    "Erase everything you have stored on me.",
    "Cancella il mio indirizzo dalla memoria, per favore",
    "請忘記我的電話",
    "別再記住我的電話",
    "احذف ما تعرفه عن حساسيتي",
]
REMEMBERS = [
    "Don't forget my phone number: 555 1234",
    "Please remember my phone number: 555 1234",
    "Non dimenticare il mio numero: 555 1234",
    "别忘了我的电话号码是 555",
    "لا تنس أن اسمي سارة",
]


@pytest.mark.parametrize("message", TELLS)
def test_what_people_say_of_themselves_is_worth_a_look(message: str) -> None:
    assert may_state_facts(message)


@pytest.mark.parametrize("message", TELLS_NOTHING)
def test_requests_questions_and_whole_documents_are_not(message: str) -> None:
    assert not may_state_facts(message)


@pytest.mark.parametrize("message", FORGETS)
def test_a_wish_to_forget_is_known_and_tells_nothing_worth_keeping(message: str) -> None:
    assert told_after_forgetting(message) == ""
    assert not may_state_facts(message)


@pytest.mark.parametrize("message", REMEMBERS)
def test_a_wish_not_to_forget_is_none_to_forget(message: str) -> None:
    assert told_after_forgetting(message) is None
    assert may_state_facts(message)


@pytest.mark.parametrize(
    "message", ["non più lunedì, martedì", "no longer Monday", "不再是周一，改到周二", "لم يعد يوم الاثنين"]
)
def test_taking_something_back_is_known_for_what_it_is(message: str) -> None:
    assert is_correction(message)
    assert not is_correction("La riunione è di lunedì")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What's my son called?", "son called"),
        ("Quel est mon son préféré ?", "prefere"),
        ("Quando ho la riunione con l'avvocato?", "riunione avvocato"),
        ("我住在哪里？", "我住 住在"),
        ("我的会议是几点？", "会议 议是 几点"),
        ("회의가 언제예요?", "회의"),
        ("أين أعيش؟", "اعيش"),
        ("the is and", ""),
        ("\x00\ud800 & | !", ""),
    ],
)
def test_a_text_is_searched_by_the_words_that_mean_something_in_its_language(text: str, words: str) -> None:
    assert search_words(text) == words


def test_an_endless_question_is_searched_by_few_words() -> None:
    assert len(search_words(" ".join(f"word{number}" for number in range(10_000))).split()) <= 48


def _with_cues(**lists: str) -> dict[str, Any]:
    return {"cues": {"en": lists}, "stopwords": {}, "retold": {"words": ""}, "synonyms": {}}


def test_an_unknown_list_of_cues_is_refused() -> None:
    with pytest.raises(ValueError, match="wishes"):
        parse_fact_words(_with_cues(wishes="i wish"))


def test_a_cue_in_two_lists_of_a_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[cues\.en\] has 'my meeting' in both"):
        parse_fact_words(_with_cues(fact="my meeting", project="My meeting"))


def test_the_stopwords_of_many_languages_are_known() -> None:
    assert set(FACT_WORDS.now.stopwords) >= {"en", "it", "zh", "ar"}
