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

AS_SAID = [
    ("The user lives in Rome", "I live in Rome, not in Milan"),
    ("The user lives in Rome", "No, I live in Rome"),
    ("The user is allergic to peanuts", "Don't forget that I'm allergic to peanuts"),
    ("The user eats fish", "I don't eat meat but I eat fish"),
    ("The user drinks coffee", "I drink coffee without sugar"),
    ("The user does not eat peanuts", "I don't eat peanuts"),
    ("The user never drinks milk", "I never drink milk. I love tea"),
    ("The user loves tea", "I never drink milk. I love tea"),
    ("The user works at ACME", "I'm not a manager. I work at ACME"),
    ("L'utente vive a Roma", "Vivo a Roma, non a Milano"),
    ("L'utente mangia pesce", "Non mangio carne, mangio pesce"),
    ("L'utente mangia pesce", "Non mangio carne ma mangio pesce"),
    ("L'utente beve il caffè", "Bevo il caffè senza zucchero"),
    ("L'utente è allergico alle noci", "Non dimenticare che sono allergico alle noci"),
    ("L'utente non mangia arachidi", "Non mangio arachidi"),
    ("L'utente lavora solo il martedì", "Lavoro solo il martedì, mai il lunedì"),
    ("用户不吃花生", "我不吃花生"),
    ("用户非常喜欢花生", "我非常喜欢花生"),
    ("用户特别喜欢咖啡", "我特别喜欢咖啡"),
    ("用户住在无锡", "我住在无锡"),
    ("用户吃鱼", "我不吃肉，但是我吃鱼"),
    ("用户吃鱼", "我不吃肉，我吃鱼"),
    ("用户对花生过敏", "别忘了我对花生过敏"),
    ("المستخدم يحب القهوة", "أحب القهوة، لا الشاي"),
    ("المستخدم يشرب القهوة", "أشرب القهوة بدون سكر"),
    ("L'utilisatrice habite à Lyon", "J'habite à Lyon, pas à Paris"),
    ("Der Benutzer hat am 5. Mai Geburtstag", "Ich habe am 5. Mai Geburtstag"),
    ("O utilizador mora no Rio", "Moro no Rio"),
    ("المستخدم لا يحب القهوة", "لا أحب القهوة"),
    ("المستخدم يحب القهوة", "لا أحب الشاي لكن أحب القهوة"),
    ("The user is pregnant", "I don't drink because I'm pregnant"),
    ("The user has asthma", "I do not smoke and I have asthma"),
    ("The user lives in Rome", "I live in Rome and have no children"),
    ("The user is a vegetarian", "No I'm a vegetarian"),
    ("L'utente è incinta", "Non bevo perché sono incinta"),
    ("L'utente è allergico alle noci", "Non mangio carne e sono allergico alle noci"),
    ("L'utente vive a Roma", "Vivo a Roma e non ho figli"),
    ("L'utente è celiaco", "No sono celiaco"),
    ("用户怀孕了", "我不喝酒因为我怀孕了"),
    ("用户对花生过敏", "我不吃肉而且我对花生过敏"),
    ("用户住在罗马", "我住在罗马也没有孩子"),
    ("المستخدمة حامل", "لا أشرب القهوة لأنني حامل"),
    ("المستخدم لديه حساسية من المكسرات", "لا آكل اللحم وعندي حساسية من المكسرات"),
    ("المستخدم يسكن في روما", "أسكن في روما وليس لدي أطفال"),
]
EXPLAINED = [
    ("The user is allergic to nuts", "I can't eat nuts, I'm allergic"),
    ("The user is allergic to nuts", "I can't eat nuts because I'm allergic to them"),
    ("L'utente è allergico alle noci", "Non mangio noci perché sono allergico"),
    ("L'utente è allergico alle noci", "Non mangio noci: ne sono allergico"),
    ("用户对花生过敏", "我不能吃花生，因为会过敏"),
    ("المستخدم لديه حساسية من الفول السوداني", "لا آكل الفول السوداني، عندي حساسية"),
    ("المستخدم لديه حساسية من الفول السوداني", "لا آكل الفول السوداني لأن لدي حساسية منه"),
]
OTHERWISE = [
    ("The user eats peanuts", "I don't eat peanuts"),
    ("The user eats peanuts", "I do not eat peanuts"),
    ("The user eats peanuts", "I never eat peanuts"),
    ("The user eats almonds", "I don't eat peanuts, cashews or almonds"),
    ("The user drinks coffee", "I can't drink coffee"),
    ("The user drinks coffee with sugar", "I drink coffee without sugar"),
    ("The user lives in Milan", "I live in Rome, not in Milan"),
    ("The user lives in Milan", "I no longer live in Milan"),
    ("The user is allergic to nuts", "I'm not allergic to nuts"),
    ("The user has children", "I have no children"),
    ("The user smokes", "I haven't smoked for years"),
    ("The user eats meat", "I don't eat meat but I eat fish"),
    ("The user drinks coffee", "I drink tea instead of coffee"),
    ("L'utente mangia arachidi", "Non mangio arachidi"),
    ("L'utente mangia arachidi", "Non mangio mai le arachidi"),
    ("L'utente mangia carne", "Non mangio carne, mangio pesce"),
    ("L'utente vive a Milano", "Non vivo più a Milano"),
    ("L'utente vive a Milano", "Vivo a Roma, non a Milano"),
    ("L'utente è allergico alle noci", "Non sono allergico alle noci"),
    ("L'utente beve il caffè con lo zucchero", "Bevo il caffè senza zucchero"),
    ("L'utente ha figli", "Non ho figli"),
    ("用户吃花生", "我不吃花生"),
    ("用户吃花生", "我从来不吃花生"),
    ("用户有孩子", "我没有孩子"),
    ("用户吃肉", "我不吃肉，但是我吃鱼"),
    ("用户对花生过敏", "我对花生不过敏"),
    ("用户住在米兰", "我住在罗马，不住在米兰"),
    ("المستخدم يأكل الفول السوداني", "لا آكل الفول السوداني"),
    ("المستخدم يحب الشاي", "أحب القهوة، لا الشاي"),
    ("المستخدم يحب القهوة", "لا أحب القهوة"),
    ("المستخدم متزوج", "لست متزوجا"),
    ("المستخدم يشرب الحليب", "لم أشرب الحليب"),
    ("المستخدم يأكل اللحم", "لا آكل اللحم لكن آكل السمك"),
    ("L'utilisateur mange de la viande", "Je ne mange pas de viande"),
    ("Der Benutzer isst Nüsse", "Ich esse keine Nüsse"),
    ("The user is allergic to nuts", "I'm allergic to milk, not to nuts"),
    ("The user is allergic to nuts", "I'm not allergic to nuts but allergic to milk"),
    ("The user eats nuts", "I don't eat nuts, I'm allergic"),
    ("The user has a cat", "I have a dog and no cat"),
    ("The user is pregnant", "I don't drink, not because I'm pregnant"),
    ("L'utente mangia noci", "Non mangio noci perché sono allergico"),
    ("L'utente è allergico alle noci", "Non sono allergico alle noci, sono allergico al latte"),
    ("L'utente ha figli", "Vivo a Roma e non ho figli"),
    ("用户吃花生", "我不能吃花生，我过敏"),
    ("用户怀孕了", "我不喝酒不是因为我怀孕了"),
    ("المستخدم لديه حساسية من الفول", "ليس لدي حساسية من الفول"),
    ("المستخدمة حامل", "لا أشرب ليس لأنني حامل"),
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


@pytest.mark.parametrize(("fact", "message"), AS_SAID)
def test_a_fact_is_said_also_if_the_message_negates_something_else(fact: str, message: str) -> None:
    assert is_said(fact, message)


@pytest.mark.parametrize(("fact", "message"), EXPLAINED)
def test_an_allergy_said_as_the_reason_for_what_is_not_eaten_was_said_of_that(fact: str, message: str) -> None:
    assert is_said(fact, message)


@pytest.mark.parametrize(("fact", "message"), OTHERWISE)
def test_what_the_user_says_is_not_so_is_no_fact(fact: str, message: str) -> None:
    assert not is_said(fact, message)


def test_a_correction_that_negates_the_old_is_said_together_with_what_it_corrects() -> None:
    told = ("The user lives in Rome", "I no longer live in Milan but in Rome")
    assert not is_said(*told)
    assert is_said(*told, "The user lives in Milan")
