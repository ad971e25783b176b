import pytest

from segue.domain.plan import Confirm
from segue.domain.tool import ToolSpec
from segue.plans.acknowledgement import classify
from segue.plans.policy import SearchDecision, needs_confirmation, should_plan, should_search_web

ASKED_FOR = [
    "cerca su internet i voli per Oslo", "search the web for cheap flights", "look up online who won",
    "busca en internet vuelos a Lima", "cherche sur internet un hôtel", "suche im Internet nach Flügen",
    "pesquisa na internet os preços", "zoek op internet naar hotels", "poszukaj w internecie hoteli",
    "найди в интернете отель", "internette otel ara", "ابحث في الإنترنت عن فندق", "上网搜索北京的酒店",
    "ネットで調べて", "인터넷에서 검색해 주세요", "इंटरनेट पर होटल खोजो",
]  # fmt: skip

EARLIER = [
    "leggi le email che hai trovato", "read the emails you found", "lee los correos que encontraste",
    "lis les mails que tu as trouvés", "lies die Mails, die du gefunden hast", "прочитай письма, которые ты нашёл",
    "bulduğun e-postaları oku", "读一下你找到的邮件", "open the search results",
]  # fmt: skip


def decide(message: str, *, force: bool) -> SearchDecision:
    return should_search_web(message, force=force, verdict=classify(message).verdict)


@pytest.mark.parametrize("message", ASKED_FOR)
@pytest.mark.parametrize("force", [True, False])
def test_a_message_that_asks_for_the_web_is_searched(message: str, force: bool) -> None:  # noqa: FBT001
    assert decide(message, force=force) == SearchDecision(search=True, reason="asked_for")


@pytest.mark.parametrize("message", EARLIER)
@pytest.mark.parametrize("force", [True, False])
def test_talk_of_what_was_found_earlier_is_no_search(message: str, force: bool) -> None:  # noqa: FBT001
    assert decide(message, force=force) == SearchDecision(search=False, reason="earlier_results")


@pytest.mark.parametrize(
    "message", ["sì, grazie", "ok", "no, thanks", "好的", "sì ma solo le prime due", "yes, Friday please"]
)
def test_the_toggle_is_not_honoured_on_an_acknowledgement(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="acknowledgement")


def test_a_bare_yes_is_never_searched_whatever_else_it_says() -> None:
    assert not should_search_web("search the web", force=True, verdict="confirm").search


@pytest.mark.parametrize("force", [True, False])
def test_a_yes_that_adds_a_web_search_is_searched(force: bool) -> None:  # noqa: FBT001
    assert decide("sì, ma cerca anche sul web il prezzo", force=force).search


@pytest.mark.parametrize("message", ["ciao", "hotel Roma", "ricercatore", "北京", "findings"])
def test_the_toggle_is_not_honoured_on_a_few_characters_with_no_search_word(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="too_short")


@pytest.mark.parametrize("message", ["cerca voli", "find hotels", "meteo Roma", "搜索酒店", "поищи отели", "ara: otel"])
def test_a_search_word_makes_a_few_characters_enough_for_the_toggle(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=True, reason="forced")


@pytest.mark.parametrize("message", ["qual è la capitale del Perù?", "Berlin Hotels im Mai"])
def test_the_toggle_is_honoured_on_anything_longer(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=True, reason="forced")


@pytest.mark.parametrize("message", ["qual è la capitale del Perù?", "cerca le mail di Rossi", "find my invoice"])
def test_without_the_toggle_only_words_for_the_web_search_it(message: str) -> None:
    assert decide(message, force=False) == SearchDecision(search=False, reason="not_asked")


@pytest.mark.parametrize("message", ["\0" * 32_000, "\ud800 search", "x" * 32_000])
def test_hostile_text_does_not_make_it_raise(message: str) -> None:
    should_search_web(message, force=True, verdict="none")


@pytest.mark.parametrize(
    ("tool", "asks"),
    [
        (ToolSpec("reads", "", {}), {"destructive": False, "always": True, "never": False}),
        (ToolSpec("notes", "", {}, ephemeral=True), {"destructive": False, "always": False, "never": False}),
        (ToolSpec("adds", "", {}, effect="write"), {"destructive": False, "always": True, "never": False}),
        (ToolSpec("deletes", "", {}, effect="destructive"), {"destructive": True, "always": True, "never": False}),
        (
            ToolSpec("waived", "", {}, effect="destructive", confirm=False),
            {"destructive": False, "always": True, "never": False},
        ),
        (ToolSpec("required", "", {}, confirm=True), {"destructive": True, "always": True, "never": False}),
    ],
    ids=lambda given: given.name if isinstance(given, ToolSpec) else "",
)
def test_a_tool_asks_by_its_effect_or_as_it_was_configured(tool: ToolSpec, asks: dict[Confirm, bool]) -> None:
    assert {mode: needs_confirmation(tool, mode) for mode in asks} == asks


def test_a_plan_is_made_by_itself_only_for_several_steps_and_never_for_a_yes() -> None:
    several = "Find the mails from Rossi, then read the newest, and finally write a reply"
    assert should_plan(several, mode="auto", verdict="none")
    assert not should_plan("What time is it?", mode="auto", verdict="none")
    assert not should_plan(several, mode="auto", verdict="confirm")
    assert not should_plan(several, mode="never", verdict="none")
