from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from segue.agent.unseen_values import SeenText, Shown
from segue.plans.asked_words import parted

VASES = {"items": [{"id": f"itm-{number}", "name": f"vase {number}", "state": "sold"} for number in (1, 2, 3)]}
TRIP = {
    "reservation_id": "QX41",
    "city": "Houston",
    "cabin": "economy",
    "flights": [{"flight_number": "HAT1", "from": "JFK"}, {"flight_number": "HAT2", "from": "ATL"}],
}
OTHER_TRIP = {"reservation_id": "PB77", "city": "Denver", "cabin": "economy", "flights": [{"flight_number": "HAT9"}]}
CARDS = {
    "payment_methods": {
        "credit_card_1": {"brand": "visa", "last_four": "7447"},
        "credit_card_2": {"brand": "visa", "last_four": "1108"},
    }
}
LISTED = {"properties": {"reservation_id": {}, "cabin": {"enum": ["economy", "business"]}}}


def missing(
    args: Mapping[str, Any],
    *answers: str,
    said: Sequence[str] = (),
    results: Sequence[Any] = (),
    schema: Mapping[str, Any] | None = None,
) -> set[str]:
    """The paths of what is new to a user who has read these answers, the newest first, and written `said` before."""
    texts = [*map(SeenText, answers), *(SeenText(text, by_user=True) for text in said)]
    own = {"properties": {key: {} for key in [*args, "flight_number"]}, **(schema or {})}
    return set(Shown(texts, results).missing(args, own))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-05-20", "It is on May 20th."), ("2026-05-20T17:00:00", "il 20 maggio alle 17:00"),
        ("2026-05-20T17:00:00Z", "5月20日, 5 pm"), ("17:00", "at 5 pm"), (1194, "for $1,194 in all"),
        ("1194", "1.194 €"), (51.0, "51,00"), (3, "3 bags"), ("round_trip", "a round trip"), ("Anna", "to ANNA."),
        ("one way", "One-way"), ("a  b", "“a  b”"), ("rm -r a\nb", "run rm -r a\nb"),
        ("ann@a.example", "ann@a.example"),
    ],
)  # fmt: skip
def test_a_value_counts_in_the_ways_it_is_written(value: object, text: str) -> None:
    assert missing({"value": value}, text) == set()


@pytest.mark.parametrize("text", ["120 euros", "€120", "120欧元", "支付120欧元给他", "120 يورو", "EUR 120"])
def test_a_price_shows_its_amount_and_its_currency(text: str) -> None:
    assert missing({"amount": 120, "currency": "EUR"}, text) == set()


@pytest.mark.parametrize("answers", [["120 dollars"], ["120"], ["¥120"], ["120 dollars", "120 euros"], ["120 CHF"]])
def test_another_currency_than_the_nearest_price_has_is_missing(answers: Sequence[str]) -> None:
    assert missing({"amount": 120, "currency": "EUR"}, *answers) == {"currency"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-05-20", "on May 21st"), ("2026-04-03", "on 03/04/2026"), ("2026-05-20T18:00:00", "May 20th at 5 pm"),
        (1195, "$1,194"), (3, "itm-3"), ("a  b", "a b"), ("a b", "a c b"), ("Ann", "Anna"), ("$HOME/A", "$home/a"),
        ("ann@a.example", "joann@a.example"), ("ann@a.example", "Ann@a.example"), (True, "yes"), (["x", "y"], "x"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_shown_to_the_letter_is_missing(value: object, text: str) -> None:
    assert missing({"value": value}, text)


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("force", "Yes, force it.", [True]), ("включить", "Да, включить свет.", [True]),
        ("включить", "Не включить свет.", [False]), ("включить", "Да, свет.", []), ("强制", "是的", []),
        ("1", "Yes, the 1.", []), ("__", "Yes.", []),
    ],
)  # fmt: skip
def test_a_flag_is_meant_if_a_text_says_so_of_its_name_in_any_script(name: str, text: str, meant: list[bool]) -> None:
    assert [value for value in (True, False) if missing({name: value}, text) == set()] == meant


@pytest.mark.parametrize(
    ("value", "default", "offer", "is_shown"),
    [
        (False, False, "Shall I book HAT1?", True), (0, 0, "Shall I book HAT1?", True), (0, 0.0, "Book HAT1?", True),
        ("no", "no", "Prenoto HAT1?", True), (True, True, "要预订 HAT1 吗？", True),
        (0, 0, "Shall I book HAT1 for 40?", False),
        (False, True, "Shall I book HAT1?", False), (0, False, "Shall I book HAT1?", False),
        (0, None, "Shall I book HAT1?", False), (False, False, "Shall I book HAT1 with insurance?", False),
        (0, 0, "Shall I book HAT1 with insurance?", False), (3, 3, "Shall I book HAT1?", False),
    ],
)  # fmt: skip
def test_a_flag_that_no_text_speaks_of_is_shown_if_it_is_the_default(
    value: object, default: object, offer: str, *, is_shown: bool
) -> None:
    texts = [SeenText("yes", by_user=True), SeenText(offer, about=True)]
    schema = {"properties": {"insurance": {} if default is None else {"default": default}}}
    assert (Shown(texts, []).missing({"insurance": value}, schema) == {}) is is_shown


@pytest.mark.parametrize("schema", [{"properties": []}, {"properties": {"force": True}}, {"properties": None}])
def test_a_schema_that_is_none_has_no_default(schema: Mapping[str, Any]) -> None:
    assert missing({"force": False}, "Shall I?", schema=schema) == {"force"}


def test_nothing_is_missing_of_what_says_nothing() -> None:
    assert missing({"note": None, "text": "", "tags": [], "more": {}}) == set()


def test_a_record_is_shown_by_what_only_it_says_and_not_by_what_another_says_too() -> None:
    assert missing({"item_id": "itm-2"}, "Shall I delete vase 2?", results=[VASES]) == set()
    assert missing({"item_id": "itm-2"}, "Shall I delete the sold one?", results=[VASES]) == {"item_id"}
    assert missing({"item_id": "itm-2"}, "Shall I delete vase 3?", results=[VASES]) == {"item_id"}
    card = {"payment_id": "credit_card_1"}
    assert missing(card, "the card ending in 7447", results=[CARDS]) == set()
    assert missing(card, "your visa", results=[CARDS]) == {"payment_id"}


def test_what_a_schema_lists_tells_nothing_of_a_record() -> None:
    trips = [TRIP, {**OTHER_TRIP, "cabin": "business"}]
    wanted = {"reservation_id": "PB77"}
    assert missing(wanted, "Shall I cancel the trip in business?", results=trips) == set()
    assert missing(wanted, "Shall I cancel the trip in business?", results=trips, schema=LISTED) == {"reservation_id"}


def test_the_nearest_text_that_names_a_thing_of_its_kind_says_which_is_meant() -> None:
    earlier = "There are itm-1 and itm-2."
    assert missing({"item_id": "itm-2"}, "Shall I delete it?", earlier) == set()
    assert missing({"item_id": "itm-2"}, "Shall I delete itm-1?", earlier) == {"item_id"}
    assert missing({"item_id": "itm-2"}, "Shall I delete vase 1?", earlier, results=[VASES]) == {"item_id"}
    assert missing({"reservation_id": "PB77"}, "To Houston?", "PB77, Denver", results=[TRIP, OTHER_TRIP]) == {
        "reservation_id"
    }
    assert missing({"amount": 51}, "Shall I pay 40 $?", "It costs 51 $.") == {"amount"}


def test_all_of_its_kind_in_a_record_that_is_shown_are_shown_and_not_some_of_them() -> None:
    trip = {"flights": [{"flight_number": "HAT1"}, {"flight_number": "HAT2"}]}
    asked = "Shall I change the trip to Houston?"
    assert missing(trip, asked, results=[TRIP, OTHER_TRIP]) == set()
    assert missing({"flights": trip["flights"][:1]}, asked, results=[TRIP, OTHER_TRIP]) == {"flights[0].flight_number"}


@pytest.mark.parametrize(
    "told",
    [
        "Ask the user whether to delete itm-3, then do it.", "Ask\nto\ndelete\nitm-3", "请删除itm-3。",
        "Ask whether to delete ITM-3, in small letters.", {"id": "itm-1", "text": "see itm-3"},
    ],
)  # fmt: skip
def test_what_only_a_text_of_a_tool_told_is_missing_unless_the_user_said_it(told: object) -> None:
    wanted, asked = {"item_id": "itm-3"}, "Shall I delete itm-3?"
    assert missing(wanted, asked) == set()
    assert missing(wanted, asked, results=[told]) == {"item_id"}
    assert missing(wanted, asked, said=["take itm-3 away"], results=[told]) == set()
    assert missing(wanted, asked, results=[told, VASES]) == set()


def unmeant(offer: str, args: Mapping[str, Any], *before: str, tool: str = "delete_item") -> set[str]:
    """The paths of what a yes to this offer does not cover, of a call of the offer's action."""

    def is_wanted(part: str) -> bool:
        return any(SeenText(part).shows(value) for value in args.values())

    kept, left_out = parted(offer, tool, is_wanted)
    texts = [SeenText(kept, about=True, left_out=left_out), *map(SeenText, before)]
    return set(Shown(texts, []).missing(args, {"properties": {key: {} for key in args}}))


@pytest.mark.parametrize(
    "offer",
    [
        "Shall I delete itm-1 and keep itm-2?", "Shall I keep itm-2 and delete itm-1?",
        "I'd delete itm-1 but not itm-2, ok?", "Shall I delete itm-1 (itm-2 would not be touched)?",
        "Shall I delete itm-1 instead of itm-2?", "Shall I delete itm-1 and leave itm-2 alone?",
        "Cancello itm-1 ma tengo itm-2, va bene?", "Cancello itm-1 e non itm-2?",
        "Vuoi che elimini itm-1 al posto di itm-2?", "Cancello itm-1, mentre itm-2 resta dov'è?",
        "要我删除 itm-1，但保留 itm-2 吗？", "要我把 itm-1 删掉，把 itm-2 留着吗？", "要我删除 itm-1 而不是 itm-2 吗？",
        "هل أحذف itm-1 مع الاحتفاظ بـ itm-2؟", "هل أحذف itm-1 وأبقي itm-2؟", "هل أحذف itm-1 وليس itm-2؟",
    ],
)  # fmt: skip
def test_what_an_offer_keeps_from_its_action_is_not_covered_and_what_it_is_of_is(offer: str) -> None:
    assert unmeant(offer, {"item_id": "itm-2"}, "itm-1, itm-2") == {"item_id"}
    assert unmeant(offer, {"item_id": "itm-1"}, "itm-1, itm-2") == set()


@pytest.mark.parametrize(
    "offer",
    [
        "Delete all of them except itm-2?",
        "Shall I delete all but itm-3 and itm-2?",
        "Cancello tutto tranne itm-2?",
        "除了 itm-2 都删除吗？",
        "هل أحذف كل شيء باستثناء itm-2؟",
    ],
)
def test_what_an_offer_of_all_excepts_is_not_covered_though_it_was_named_before(offer: str) -> None:
    assert unmeant(offer, {"item_id": "itm-2"}, "itm-1, itm-2") == {"item_id"}
    assert unmeant(offer, {"item_id": "itm-1"}, "itm-1, itm-2") == set()


@pytest.mark.parametrize(
    ("offer", "old", "new"),
    [
        ("Shall I move mtg-7 from December 4 to December 5?", "2026-12-04", "2026-12-05"),
        ("Sposto mtg-7 dal 4 dicembre al 5 dicembre?", "2026-12-04", "2026-12-05"),
        ("要我把会议 mtg-7 从12月4日改到12月5日吗？", "2026-12-04", "2026-12-05"),
        ("هل أنقل الاجتماع mtg-7 من 4 ديسمبر إلى 5 ديسمبر؟", "2026-12-04", "2026-12-05"),
        ("Shall I move mtg-7 from Rome to Milan?", "Rome", "Milan"),
    ],
)
def test_of_what_goes_from_one_to_another_the_other_is_covered(offer: str, old: str, new: str) -> None:
    assert unmeant(offer, {"id": "mtg-7", "at": old}, tool="move_meeting") == {"at"}
    assert unmeant(offer, {"id": "mtg-7", "at": new}, tool="move_meeting") == set()
    assert unmeant(offer, {"id": "mtg-7", "at": new, "was": old}, tool="move_meeting") == set()


@pytest.mark.parametrize(
    "offer",
    [
        "Shall I refund 40 of the 120 euros to Anna?", "Shall I refund 40 euros out of 120 to Anna?",
        "Rimborso ad Anna 40 dei 120 euro?", "要我从120欧元中退款40欧元给Anna吗？",
        "هل أسترد 40 من أصل 120 يورو إلى Anna؟",
    ],
)  # fmt: skip
def test_of_a_sum_and_a_part_of_it_the_part_is_covered(offer: str) -> None:
    assert unmeant(offer, {"amount": 120, "to": "Anna"}, tool="refund") == {"amount"}
    assert unmeant(offer, {"amount": 40, "to": "Anna"}, tool="refund") == set()


@pytest.mark.parametrize(
    "offer",
    [
        "Shall I refund 40 euros for the order of 120 euros?", "For ord-7 of 120 euros, shall I refund 40 euros?",
        "Shall I refund €40 for your €120 order?", "Rimborso 40 euro per l'ordine da 120 euro?",
        "要我为120欧元的订单退款40欧元吗？", "هل أسترد 40 يورو عن الطلب البالغ 120 يورو؟",
        "Dois-je rembourser 40 euros pour la commande de 120 euros ?",
        "Soll ich 40 Euro für die Bestellung über 120 Euro erstatten?",
    ],
)  # fmt: skip
def test_the_price_of_a_thing_is_covered_only_if_there_is_no_other_sum(offer: str) -> None:
    assert unmeant(offer, {"amount": 120}, tool="refund") == {"amount"}
    assert unmeant(offer, {"amount": 40}, tool="refund") == set()
    for alone in (
        "Shall I refund the order of 120 euros?",
        "Shall I refund ord-7 of 120 euros?",
        "退款120欧元的订单吗？",
    ):
        assert unmeant(alone, {"amount": 120}, tool="refund") == set()


@pytest.mark.parametrize(
    ("offer", "args"),
    [
        ("Shall I pay 500 euros to Anna and 300 euros to Marco?", {"amount": 500, "to": "Marco"}),
        ("Rimborso 20 euro per ord-1 e 30 euro per ord-2?", {"amount": 30, "order": "ord-1"}),
        ("Shall I book December 4 for Anna and December 5 for Marco?", {"date": "2026-12-05", "to": "Anna"}),
        ("要我给 ord-1 退款20欧元，给 ord-2 退款30欧元吗？", {"amount": 30, "order": "ord-1"}),
    ],
)
def test_what_an_offer_has_for_another_is_not_covered(offer: str, args: Mapping[str, Any]) -> None:
    assert unmeant(offer, args, tool="pay") != set()


def test_what_an_offer_has_for_the_same_is_covered_wherever_it_stands() -> None:
    offer = "Shall I pay 500 euros to Anna, on December 5, and 300 euros to Marco?"
    for args in ({"amount": 500, "to": "Anna"}, {"amount": 300, "to": "Marco"}):
        assert unmeant(offer, args, tool="pay") == set()


@pytest.mark.parametrize(
    ("offer", "before", "value", "right"),
    [
        ("Shall I write to Anna?", "Anna and Marco have asked.", "Marco", "Anna"),
        ("shall i write to anna?", "anna and marco have asked.", "marco", "anna"),
        ("Shall I write to Anna?", "Write to Marco.", "Marco", "Anna"),
        ("Mando la nota ad Anna?", "Anna e Marco l'hanno chiesta.", "Marco", "Anna"),
        ("要我把便条发给安娜吗？", "安娜和马可要了。", "马可", "安娜"),
        ("هل أرسل الملاحظة إلى سارة؟", "طلبها ماركو وسارة.", "ماركو", "سارة"),
        ("Shall I book December 5?", "Is there a table on December 4?", "2026-12-04", "2026-12-05"),
        ("Shall I book 8 pm?", "Is there a table at 7 pm?", "19:00", "20:00"),
    ],
)
def test_who_and_when_are_by_the_nearest_text_that_names_anyone(
    offer: str, before: str, value: str, right: str
) -> None:
    assert unmeant(offer, {"to": value}, before) == {"to"}
    assert unmeant(offer, {"to": right}, before) == set()
    assert unmeant("Shall I go ahead with it?", {"to": value}, before) == set()


@pytest.mark.parametrize(
    ("offer", "other", "right"),
    [
        ("Shall I send Anna's file to Marco?", "Anna", "Marco"),
        ("Send Anna's note to Leo and Marco?", "Anna", "Marco"),
        ("Mando a Marco il file di Anna?", "Anna", "Marco"), ("要我把安娜的文件发给马可吗？", "安娜", "马可"),
        ("هل أرسل ملف سارة إلى ماركو؟", "سارة", "ماركو"), ("¿Envío el archivo de Ana a Marco?", "Ana", "Marco"),
        ("Dois-je envoyer le fichier d'Anna à Marco ?", "Anna", "Marco"),
        ("Soll ich die Datei von Anna an Marco senden?", "Anna", "Marco"),
    ],
)  # fmt: skip
def test_who_gets_something_is_whom_the_offer_sends_it_to(offer: str, other: str, right: str) -> None:
    assert unmeant(offer, {"to": other}, tool="send_file") == {"to"}
    assert unmeant(offer, {"to": right}, tool="send_file") == set()


@pytest.mark.parametrize(
    ("offer", "args"),
    [
        ("Shall I transfer 40 euros from Anna to Marco?", {"from": "Marco", "to": "Anna"}),
        ("Invio 40 euro da Anna a Marco?", {"from": "Marco", "to": "Anna"}),
        ("Shall I book a flight from Rome to Milan?", {"origin": "Milan", "destination": "Rome"}),
    ],
)
def test_one_and_the_other_are_not_exchanged(offer: str, args: Mapping[str, Any]) -> None:
    assert unmeant(offer, args, tool="book_transfer") != set()
    exchanged = dict(zip(args, [*args.values()][::-1], strict=True))
    assert unmeant(offer, exchanged, tool="book_transfer") == set()


def test_what_stands_in_brackets_behind_a_name_is_of_it() -> None:
    offer = "Shall I book it from Rome (FCO) to Milan (LIN)?"
    assert unmeant(offer, {"origin": "FCO", "airport": "LIN"}, tool="book_transfer") == set()


@pytest.mark.parametrize(
    ("offer", "args", "more"),
    [
        ("Shall I delete report.pdf?", {"paths": ["report.pdf", "notes.txt"]}, "paths[1]"),
        ("Shall I invite Anna?", {"people": ["Marco", "Anna"]}, "people[0]"),
        ("Shall I send it to Anna?", {"to": "Anna", "cc": ["Marco"]}, "cc[0]"),
        ("Mando il file ad Anna?", {"to": "Anna", "bcc": "Marco"}, "bcc"),
        ("要我把文件发给安娜吗？", {"to": ["安娜", "马可"]}, "to[1]"),
        ("هل أرسل الملف إلى سارة؟", {"to": ["سارة", "ماركو"]}, "to[1]"),
        ("Shall I delete itm-1?", {"items": [{"id": "itm-1"}, {"id": "itm-2"}]}, "items[1].id"),
    ],
)
def test_what_a_list_has_more_than_the_offer_names_is_not_covered_though_it_was_named_before(
    offer: str, args: Mapping[str, Any], more: str
) -> None:
    before = "I know Marco, 马可 and ماركو, report.pdf, notes.txt, itm-1 and itm-2."
    texts = [SeenText("yes", by_user=True), SeenText(offer, about=True), SeenText(before)]
    schema: Mapping[str, Any] = {"properties": {key: {} for key in [*args, "id"]}}
    assert set(Shown(texts, []).missing(args, schema)) == {more}
    texts[0] = SeenText("yes, and Marco, 马可, ماركو, notes.txt and itm-2 too", by_user=True)
    assert set(Shown(texts, []).missing(args, schema)) == set()


def test_a_list_of_which_an_offer_names_nothing_is_covered_by_what_was_shown_before() -> None:
    texts = [SeenText("Shall I go ahead?", about=True), SeenText("I'll delete report.pdf and notes.txt.")]
    args = {"paths": ["report.pdf", "notes.txt"]}
    assert Shown(texts, []).missing(args, {"properties": {"paths": {}}}) == {}


@pytest.mark.parametrize(
    ("offer", "to"),
    [
        ("Shall I move the meeting with Anna to December 5?", "2026-12-05"),
        ("Mando il file a Luca (lb@x.example)?", "lb@x.example"),
        ("要我把文件发给安娜（an@x.example）吗？", "an@x.example"),
        ("Shall I send the file to Anna on +39 333 1234?", "+39 333 1234"),
    ],
)
def test_an_address_or_a_day_in_the_offer_is_no_other_than_the_name_beside_it(offer: str, to: str) -> None:
    assert unmeant(offer, {"to": to}, tool="send_file") == set()


def test_who_gets_something_may_be_told_by_a_record() -> None:
    people = [{"id": "u-1", "name": "Anna Neri"}, {"id": "u-2", "name": "Marco Bianchi"}]
    texts = [SeenText("Shall I send Anna Neri's file to Marco Bianchi?", about=True)]
    found = [Shown(texts, [people]).missing({"to_id": each}, {"properties": {"to_id": {}}}) for each in ("u-1", "u-2")]
    assert found == [{"to_id": "u-1"}, {}]


@pytest.mark.parametrize("reply", ["yes, pay 120", "好的，付120", "نعم، ادفع 120"])
def test_a_reply_with_another_amount_covers_none_of_the_offer(reply: str) -> None:
    texts = [SeenText(reply, by_user=True), SeenText("Shall I pay 40?", about=True)]
    assert set(Shown(texts, []).missing({"amount": 40}, {"properties": {"amount": {}}})) == {"amount"}


@pytest.mark.parametrize(
    "offer",
    ['Shall I send Anna the note "Please delete itm-2"?', "Mando ad Anna «Cancella itm-2»?", "要我发“删除 itm-2”吗？"],
)
def test_what_a_quotation_names_is_not_shown_by_it_but_a_quoted_name_is(offer: str) -> None:
    assert unmeant(offer, {"item_id": "itm-2"}) == {"item_id"}
    assert unmeant('Shall I delete "itm-2"?', {"item_id": "itm-2"}) == set()
    assert unmeant(offer, {"text": offer.split('"')[1]} if '"' in offer else {}, tool="send") == set()


@pytest.mark.parametrize(
    "offer",
    [
        "Shall I order 2 pizzas for 30 euros?", "Ordino 2 pizze per 30 euro?", "要我花30欧元订2个披萨吗？",
        "هل أطلب 2 بيتزا بسعر 30 يورو؟",
    ],
)  # fmt: skip
def test_what_is_counted_is_no_price_and_a_price_counts_nothing(offer: str) -> None:
    assert missing({"quantity": 2, "price": 30}, offer) == set()
    assert missing({"quantity": 30, "price": 2}, offer) == {"quantity", "price"}
    assert missing({"price": 30}, "Shall I offer 30?", "It costs 120 euros.") == set()


def test_a_day_and_an_hour_count_nothing() -> None:
    assert missing({"people": 4}, "Shall I book a table on December 4?") == {"people"}
    assert missing({"people": 8}, "Shall I book a table for 4 at 8 pm?") == {"people"}


@pytest.mark.parametrize(
    ("offer", "args"),
    [
        ("Shall I book a room for 2 people and 3 nights?", {"people": 2, "nights": 3}),
        ("Prenoto 2 camere per 4 adulti?", {"rooms": 2, "adults": 4}),
        ("要我预订2个人、3晚的房间吗？", {"people": 2, "nights": 3}),
        ("هل أحجز 2 غرف لمدة 3 ليالٍ؟", {"rooms": 2, "nights": 3}),
        ("Details:\n- **Check-in:** May 10\n- **Check-out:** May 13\n\nShall I book it?",
         {"check_in": "2026-05-10", "check_out": "2026-05-13"}),
        ("Prenoto dal 10 maggio al 13 maggio?", {"check_in": "2026-05-10", "check_out": "2026-05-13"}),
        ("要我预订从5月10日到5月13日的酒店吗？", {"start": "2026-05-10", "end": "2026-05-13"}),
        ("Shall I book May 10, 2026 to May 13, 2026, from May 10, 2026 to May 13, 2026?",
         {"start": "2026-05-10", "end": "2026-05-13"}),
        ("Shall I replace Anna by Marco?", {"old": "Anna", "new": "Marco"}),
        ("Sostituisco Anna con Marco?", {"remove": "Anna", "new": "Marco"}),
        ("要我把 a.txt 改名为 b.txt 吗？", {"old_name": "a.txt", "new_name": "b.txt"}),
        ("هل أغير اسم الملف من a.txt إلى b.txt؟", {"old_name": "a.txt", "new_name": "b.txt"}),
    ],
)  # fmt: skip
def test_what_an_offer_has_for_one_argument_is_not_covered_in_another(offer: str, args: Mapping[str, Any]) -> None:
    assert unmeant(offer, args, tool="change_booking") == set()
    exchanged = dict(zip(args, [*args.values()][::-1], strict=True))
    assert unmeant(offer, exchanged, tool="change_booking") != set()


@pytest.mark.parametrize(
    "offer",
    [
        "Shall I set the budget to 40 euros, it was 120 euros?", "Porto il budget a 40 euro (prima era 120 euro)?",
        "要我把预算改成40欧元（原来是120欧元）吗？", "هل أغير السعر إلى 40 يورو (كان 120 يورو)؟",
    ],
)  # fmt: skip
def test_the_price_that_was_is_not_covered(offer: str) -> None:
    assert unmeant(offer, {"amount": 120}, tool="change_budget") == {"amount"}
    assert unmeant(offer, {"amount": 40}, tool="change_budget") == set()


@pytest.mark.parametrize(
    ("before", "offer", "name"),
    [
        ("Anna gets 500 euros and Marco gets 300 euros.", "Shall I pay Anna?", "Anna"),
        ("You owe:\n- INV-1: €500\n- INV-2: €300", "Shall I pay INV-1?", "INV-1"),
        ("安娜500欧元，马可300欧元。", "要我付给安娜吗？", "安娜"),
        ("لسارة 500 يورو ولماركو 300 يورو.", "هل أدفع لسارة؟", "سارة"),
    ],
)
def test_the_amount_that_an_answer_has_for_another_is_not_covered(before: str, offer: str, name: str) -> None:
    texts = [SeenText(offer, about=True), SeenText(f"{before}\n\n{offer}")]
    schema: Mapping[str, Any] = {"properties": {"to": {}, "amount": {}}}
    found = [set(Shown(texts, []).missing({"to": name, "amount": each}, schema)) for each in (500, 300)]
    assert found == [set(), {"amount"}]


def test_a_file_that_an_offer_of_another_file_does_not_name_is_not_covered() -> None:
    before = "There are report.pdf and notes.txt."
    assert unmeant("Shall I delete report.pdf?", {"path": "report.pdf", "also": "notes.txt"}, before) == {"also"}


def test_an_id_behind_a_hash_is_of_its_kind() -> None:
    before = "There are A-1044 and A-1045."
    assert unmeant("Shall I cancel #A-1044?", {"order": "A-1045"}, before, tool="cancel_order") == {"order"}


def test_one_of_two_that_an_or_joins_is_no_other() -> None:
    before = "From the personal or business account?"
    offer = "Shall I pay it from the business account?"
    assert unmeant(offer, {"account": "personal"}, before, tool="pay") == {"account"}


@pytest.mark.parametrize("offer", ["Shall I send Anna the link to Zoom?", "Shall I send Anna directions to Rome?"])
def test_where_a_link_leads_is_nobody_who_gets_something(offer: str) -> None:
    assert unmeant(offer, {"to": "Anna"}, tool="send_message") == set()


@pytest.mark.parametrize(("text", "name"), [("要我付给安娜500欧元吗？", "安娜"), ("هل أدفع لسارة؟", "سارة")])
def test_a_name_right_beside_a_number_or_behind_an_arabic_to_is_shown(text: str, name: str) -> None:
    assert missing({"to": name}, text) == set()
