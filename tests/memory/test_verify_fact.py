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
    ("The files are in /data/Ada.", "my files: in /data/Ada, of course"),
    ("用户的名字是小明", "我叫小明，住在罗马"),
    ("المستخدم يحب القهوة", "أحب القهوة السوداء"),
    ("اسم المستخدم سارة", "اسمي سارة وأعيش في روما"),
    ("تعيش المستخدمة سارة في روما", "اسمي سارة وأعيش في روما"),
    ("المستخدم يأكل الخضار", "آكل الخضار"),
    ("ابنه عمره 4 سنوات", "ابني عمره 4 سنوات"),
    ("Fa la veterinaria", "faccio la veterinaria"),
    ("The user wants answers in French", "from now on I want answers in French"),
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
    ("Viveva a Milano", "prima vivevo a Milano, ora vivo a Roma"),
    ("用户住在上海", "我以前住在北京，现在住在上海"),
    ("يعيش في ميلانو", "كنت أعيش في روما، والآن أعيش في ميلانو"),
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
    ("The user lives in Rome, Italy", "I'm not married, I live in Rome, Italy"),
    ("The user eats no meat, fish or eggs", "I eat vegetables but no meat, fish or eggs"),
    ("The user loves mango", "I can't eat peanuts, shellfish, or kiwi; I love mango"),
    ("The user goes to Vietnam", "I haven't been to Japan, Korea or China, but I go to Vietnam every year"),
    ("L'utente non mangia carne, pesce o uova", "Mangio verdure ma niente carne, pesce o uova"),
    ("L'utente mangia volentieri i legumi", "Non mangio carne, pesce e uova; mangio volentieri i legumi"),
    ("L'utente il martedì non può", "Ricordati che il martedì non posso"),
    ("用户吃蔬菜", "我吃蔬菜，不吃肉、鱼和蛋。"),
    ("用户不吃肉、鱼和蛋", "我吃蔬菜，不吃肉、鱼和蛋。"),
    ("用户對花生過敏", "别忘了我對花生過敏"),
    ("المستخدم يأكل الخضار", "آكل الخضار لكن لا آكل اللحم ولا السمك"),
    ("المستخدم لا يأكل اللحم ولا السمك", "لا آكل اللحم ولا السمك"),
    ("野菜を食べます", "野菜を食べますが、肉、魚、卵は食べません。"),
    ("채소는 먹어요", "저는 채소는 먹어요, 하지만 고기, 생선, 계란은 안 먹어요."),
    ("मैं सब्ज़ियाँ खाता हूँ", "मैं सब्ज़ियाँ खाता हूँ लेकिन मांस, मछली और अंडे नहीं खाता"),
]
OF_ANOTHER = [
    ("The user's sister is vegan and lives in Oslo", "My sister is a vegan and lives in Oslo"),
    ("My son is called Sami and is 4", "My wife's name is Aisha, our son Sami is 4"),
    ("The user has diabetes", "My doctor says I have diabetes"),
    ("The user lives in Rome", "I live in Rome with my brother"),
    ("The user lives in Rome", "My wife and I live in Rome"),
    ("The user is coeliac", "My sister is vegan and I'm coeliac"),
    ("Sua sorella è vegana", "Mia sorella è vegana"),
    ("L'utente è allergico alle noci", "Il mio medico dice che sono allergico alle noci"),
    ("L'utente vive a Roma", "Io e mia moglie viviamo a Roma"),
    ("用户的妹妹吃素", "我妹妹吃素"),
    ("用户住在上海", "我和我老婆住在上海"),
    ("儿子六岁", "我老婆叫李娜，儿子今年六岁"),
    ("أخته نباتية", "أختي نباتية"),
    ("المستخدم يسكن في روما", "أنا وزوجتي نسكن في روما"),
]
ANOTHERS = [
    ("The user is vegan", "My sister is vegan"),
    ("The user lives in Oslo", "My sister is a vegan, lives in Oslo"),
    ("The user hates meetings", "My boss Ahmed hates meetings"),
    ("The user is called Aisha", "My wife's name is Aisha"),
    ("L'utente è vegano", "Mia sorella è vegana"),
    ("L'utente vive a Oslo", "Mia sorella è vegana, vive a Oslo"),
    ("L'utente abita a Genova", "Il mio collega Paolo abita a Genova"),
    ("用户吃素", "我妹妹吃素"),
    ("用户对海鲜过敏", "我同事小张对海鲜过敏"),
    ("المستخدم نباتي", "أختي نباتية"),
]
NOT_STATED = [
    ("The user is allergic to nuts", "My name is Ada. Am I allergic to nuts?"),
    ("L'utente è allergico alle noci", "Mi chiamo Ada. Sono allergica alle noci?"),
    ("用户对花生过敏", "我叫王芳。我对花生过敏吗"),
    ("المستخدم لديه حساسية من المكسرات", "اسمي سارة. هل عندي حساسية من المكسرات"),
    ("The user lives in Paris", "My name is Ada. If I lived in Paris I'd cycle to work"),
    ("L'utente vive a Parigi", "Mi chiamo Ada. Se vivessi a Parigi andrei in bici"),
    ("用户住在巴黎", "如果我住在巴黎，我每天都会去博物馆。"),
    ("المستخدم يسكن في باريس", "لو كنت أسكن في باريس لذهبت إلى المتحف"),
    ("The user has a dog", "Suppose I have a dog: that costs money"),
    ("The user lives in Berlin", 'Translate: "I live in Berlin and I am vegan"'),
    ("L'utente vive a Berlino", "Traduci «vivo a Berlino, sono vegano» in inglese"),
    ("用户住在柏林", "翻译成英文：「我住在柏林，我吃素」"),
    ("المستخدم يسكن في برلين", "ترجم إلى الإنجليزية: «أسكن في برلين وأنا نباتي»"),
    ("The user lives in Via Roma 5", "My name is Ada. Forget that I live in Via Roma 5"),
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
    ("Vive a Milano", "prima vivevo a Milano, ora vivo a Roma"),
    ("用户住在北京", "我以前住在北京，现在住在上海"),
    ("المستخدم يعيش في روما", "كنت أعيش في روما، والآن أعيش في ميلانو"),
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
    ("The user eats fish", "I eat vegetables but no meat, fish or eggs"),
    ("The user eats eggs", "I eat vegetables but no meat, fish or eggs"),
    ("The user has a boat", "I have no car, bike or boat"),
    ("The user loves kiwi", "I can't eat peanuts, shellfish, or kiwi; I love mango"),
    ("The user does not eat vegetables", "I eat vegetables but no meat, fish or eggs"),
    ("The user is not allergic to milk", "I'm allergic to milk, not to nuts"),
    ("The user loves running", "I love hiking but hate running"),
    ("The user eats shrimp", "I eat everything except pork, shrimp and lamb"),
    ("L'utente mangia pesce", "Mangio verdure ma niente carne, pesce o uova"),
    ("L'utente mangia uova", "Non mangio carne, pesce e uova; mangio volentieri i legumi"),
    ("L'utente non ama il jazz", "Amo il jazz ma non il reggaeton"),
    ("用户吃鱼", "我吃蔬菜，不吃肉、鱼和蛋。"),
    ("用户吃蛋", "我吃蔬菜，肉、鱼和蛋都不吃。"),
    ("用户喝酒", "我从来不抽烟、喝酒、熬夜。"),
    ("用户喜欢跑步", "我喜欢爬山，讨厌跑步"),
    ("المستخدم يأكل السمك", "آكل الخضار لكن لا آكل اللحم ولا السمك"),
    ("المستخدم يشرب القهوة", "أشرب الشاي، لا أشرب الكحول، القهوة أو الكولا."),
    ("El usuario come pescado", "Como verduras pero nada de carne, pescado ni huevos."),
    ("L'utilisateur mange du poisson", "Je mange des légumes mais pas de viande, poisson ou œufs."),
    ("Der Benutzer isst Fisch", "Ich esse Gemüse, aber kein Fleisch, Fisch oder Ei."),
    ("De gebruiker eet vis", "Ik eet groente maar geen vlees, vis of eieren."),
    ("Пользователь ест рыбу", "Я ем овощи, но не ем мясо, рыбу и яйца."),
    ("Balık yer", "Sebze yerim ama et, balık ve yumurta yemem."),
    ("魚を食べます", "野菜を食べますが、肉、魚、卵は食べません。"),
    ("생선은 먹어요", "저는 채소는 먹어요, 하지만 고기, 생선, 계란은 안 먹어요."),
    ("मछली खाता हूँ", "मैं सब्ज़ियाँ खाता हूँ लेकिन मांस, मछली और अंडे नहीं खाता"),
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


@pytest.mark.parametrize(("fact", "message"), OF_ANOTHER)
def test_what_another_is_or_says_of_the_user_was_said(fact: str, message: str) -> None:
    assert is_said(fact, message)


@pytest.mark.parametrize(("fact", "message"), ANOTHERS)
def test_what_the_user_says_of_another_is_no_fact_about_the_user(fact: str, message: str) -> None:
    assert not is_said(fact, message)


@pytest.mark.parametrize(("fact", "message"), NOT_STATED)
def test_what_the_user_asks_supposes_quotes_or_wants_forgotten_was_not_said(fact: str, message: str) -> None:
    assert not is_said(fact, message)


def test_a_correction_that_negates_the_old_is_said_together_with_what_it_corrects() -> None:
    told = ("The user lives in Rome", "I no longer live in Milan but in Rome")
    assert not is_said(*told)
    assert is_said(*told, "The user lives in Milan")
