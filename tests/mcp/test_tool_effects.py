"""What a tool of an MCP server does to the world: as it is annotated, as mcp.json says, or else as it is called."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from structlog.testing import capture_logs

from segue.around.doctor.examine import examine
from segue.config import Settings
from segue.domain.tool import ToolSpec, definition_of
from segue.mcp.guessed_effects import effect_of
from segue.mcp.mcp_config import Unannotated
from tests.support.provider import Provider, calls, says
from tests.support.server import serving
from tests.support.service import running

READS = ToolAnnotations(read_only_hint=True)
CHANGES = ToolAnnotations(read_only_hint=False)
DESTROYS = ToolAnnotations(destructive_hint=True)
ADDS = ToolAnnotations(destructive_hint=False)
TITLED = ToolAnnotations(title="Send a mail")

FINAL = {
    "en": """cancel_order charge_card execute_sql runQuery cancelAllOrders deploy-site place_order book_flight
        order_pizza create_order create_booking make_payment process_payment reply_to_review shareDocument revoke_key
        send2Bob""",
    "it": """invia_mail cancella_ordine inviaMail paga_fattura annulla-prenotazione compra_biglietto ordina_pizza
        cancellala esegui_sql pubblica_articolo trasferisci_denaro elimina_utente crea_pagamento crea_ordine""",
    "es": """enviar_correo eliminarArchivo cancelar_pedido pagar_factura comprar_billete reservar-mesa ejecutar_sql
        publicar_entrada transferir_dinero""",
    "fr": """envoyer_mail supprimer_fichier annulerCommande payer_facture acheter_billet réserver_table exécuter_sql
        publier_article transférer-argent""",
    "de": """sende_mail dateiLöschen loesche_datei storniere_bestellung bezahlen ueberweise_geld buche_flug kaufe_ticket
        führe_aus veröffentlichen""",
    "pt": """enviarEmail apagar_arquivo cancelar_pedido pagar_conta comprar_passagem reservar_hotel executar_sql
        publicar_post transferir_dinheiro""",
    "nl": "stuur_mail verwijder_bestand annuleer_bestelling betaal_factuur koop_ticket boek_vlucht voer_uit publiceren",
    "pl": """wyślij_maila usun_plik anuluj_zamówienie zapłać_fakturę kup_bilet zarezerwuj_stolik wykonaj_sql
        opublikuj_post""",
    "ru": """отправитьПисьмо удалить_файл отменить_заказ оплатить_счет купить_билет забронировать_столик
        выполнить_запрос опубликовать_пост""",
    "tr": "mail_gonder dosya_sil siparis_iptal_et fatura_öde bilet_satın_al rezervasyon_yap sql_uygula yayınla",
    "ar": "أرسل_بريد احذف_الملف إلغاء_الطلب ادفع_الفاتورة اشتر_تذكرة احجز_رحلة نفذ_أمر انشر_مقال",
    "zh": "发送邮件 删除文件 取消订单 支付账单 购买机票 预订酒店 执行命令 发布文章 刪除檔案",
    "ja": "メール送信 ファイル削除 注文をキャンセルする 支払って 購入 ホテルを予約する コマンド実行 公開して",
    "ko": "메일_보내기 파일삭제 주문취소 결제하기 구매 예약하기 명령_실행해 게시해줘",
    "hi": "मेल_भेजो फ़ाइल_हटाओ ऑर्डर_रद्द_करो भुगतान_करो टिकट_खरीदो टेबल_बुक_करो mail_bhejo",
}
HARMLESS = {
    "en": """get_order list_orders update_order track_order update_booking add_book book_search payment_status
        create_issue complete_task apply_filter write_file move_file resize_image calculate_fare tire_pressure
        maps_place_details shop_list_orders stripe_list_refunds""",
    "it": "leggi_mail cerca_invio mostra_ordini aggiorna_ordine crea_nota sposta_riunione elenca_pagamenti",
    "es": "leer_correo buscar_envio actualizar_pedido crear_nota",
    "fr": "lire_mail chercher_commande créer_note",
    "de": "lies_mail suche_bestellung zeige_rechnung erstelle_notiz",
    "ru": "прочитать_письмо найти_заказ обновить_заказ создать_заметку",
    "tr": "dosya_aç siparişi_güncelle not_oluştur",
    "ar": "اقرأ_البريد ابحث_عن_رحلة اعرض_الطلبات",
    "zh": "查询订单 搜索已发送邮件 获取发票 读取文件 更新订单 开发者信息",
    "ja": "メールを読む 検索 ファイル作成 予定を変更する",
    "ko": "메일_검색해 파일_읽어 메모_추가해 해외_검색해",
}
# The words of the release before, which asked about a name that has one and does not begin with one that reads.
BEFORE = [
    *(
        "delete",
        "destroy",
        "drop",
        "erase",
        "purge",
        "remove",
        "truncate",
        "wipe",
        "forward",
        "post",
        "publish",
        "reply",
    ),
    *("send", "tweet", "buy", "pay", "purchase", "refund", "transfer", "withdraw"),
]
READ_BEFORE = ["check", "count", "describe", "fetch", "find", "get", "list", "query", "read", "search", "show", "view"]


def names(table: dict[str, str]) -> list[str]:
    return [name for listed in table.values() for name in listed.split()]


@pytest.mark.parametrize(
    ("name", "hints", "effect"),
    [
        ("add", READS, "read_only"),
        ("delete_all", READS, "read_only"),
        ("add", DESTROYS, "destructive"),
        ("send_email", ADDS, "write"),
        ("send_email", TITLED, "destructive"),
        ("send_email", CHANGES, "destructive"),
        ("send_email", None, "destructive"),
        ("mail.send", None, "destructive"),
        ("deleteFile", None, "destructive"),
        ("SENDSms", None, "destructive"),
        ("transfer-money", None, "destructive"),
        ("post_tweet", None, "destructive"),
        ("get_post", None, "write"),
        ("list_transfers", None, "write"),
        ("searchDeleted", None, "write"),
        ("postpone_meeting", None, "write"),
        ("create_note", None, "write"),
        ("", None, "write"),
    ],
)
def test_annotations_say_what_a_tool_does_and_its_name_where_there_are_none(
    name: str, hints: ToolAnnotations | None, effect: str
) -> None:
    said = hints is not None and (hints.read_only_hint or hints.destructive_hint is not None)
    assert effect_of(name, hints) == (effect, not said)


@pytest.mark.parametrize("name", names(FINAL))
def test_a_name_that_sends_pays_deletes_cancels_executes_buys_or_publishes_is_asked_about(name: str) -> None:
    assert effect_of(name, None) == ("destructive", True)


@pytest.mark.parametrize("name", names(HARMLESS))
def test_a_name_that_reads_or_writes_is_not_asked_about_and_not_taken_for_one_that_only_reads(name: str) -> None:
    assert effect_of(name, None) == ("write", True)


@given(st.lists(st.sampled_from([*BEFORE, *READ_BEFORE, *names(HARMLESS), "é", "发"]), max_size=4), st.text(max_size=4))
def test_no_name_is_taken_for_more_harmless_than_before(parts: list[str], more: str) -> None:
    for name in ("_".join((*parts, more)), more + "".join(map(str.title, parts))):
        words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
        asked = bool(words) and words[0] not in READ_BEFORE and not {*BEFORE}.isdisjoint(words)
        assert effect_of(name, None)[0] in ("destructive", "destructive" if asked else "write")


@pytest.mark.parametrize(
    ("unannotated", "hints", "name", "told"),
    [
        ("ask", None, "find_items", ("destructive", False)),
        ("ask", TITLED, "find_items", ("destructive", False)),
        ("ask", CHANGES, "find_items", ("destructive", False)),
        ("write", None, "send_email", ("write", False)),
        ("read_only", None, "find_items", ("read_only", False)),
        ("read_only", CHANGES, "send_email", ("destructive", True)),
        ("ask", READS, "send_email", ("read_only", False)),
        ("ask", ADDS, "send_email", ("write", False)),
        ("read_only", DESTROYS, "find_items", ("destructive", False)),
    ],
)
def test_mcp_json_says_what_tools_without_annotations_are_and_nothing_of_others(
    unannotated: Unannotated, hints: ToolAnnotations | None, name: str, told: tuple[str, bool]
) -> None:
    assert effect_of(name, hints, unannotated) == told


def test_what_a_yes_relies_on_does_not_change_because_an_effect_is_known_to_be_guessed() -> None:
    spec = ToolSpec("mcp_cancel_order", "Cancels.", {"type": "object"}, source="mcp:shop", effect="destructive")
    assert definition_of(replace(spec, effect_guessed=True)) == definition_of(spec)
    assert definition_of(spec) == "34a6b2f4042722adbbdd7a17b89c9859"


@pytest.fixture
async def shop() -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that annotates one of its tools, and what its tools did."""
    server, did = MCPServer("shop", log_level="CRITICAL"), list[str]()

    def cancel_order(order: str) -> str:
        did.append(f"cancel {order}")
        return "done"

    def tag_order(order: str) -> str:
        did.append(f"tag {order}")
        return "done"

    server.add_tool(cancel_order)
    server.add_tool(tag_order)
    server.add_tool(cancel_order, "wipe", annotations=ADDS)
    async with serving(server.streamable_http_app()) as url:
        yield f"{url}/mcp", did


def declare(settings: Settings, url: str, **keys: Any) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shop": {"url": url, **keys}}}))


async def test_a_guessed_effect_is_asked_about_and_named_in_the_log_the_list_and_the_doctor(
    settings: Settings, provider: Provider, shop: tuple[str, list[str]]
) -> None:
    url, did = shop
    declare(settings, url)
    with capture_logs() as logs:
        async with running(settings) as client:
            listed = {tool["name"]: tool for tool in (await client.get("/tools"))["items"]}
            provider.will(
                calls(("mcp_cancel_order", {"order": "A1"})), calls(("mcp_wipe", {"order": "A2"})), says("Ok.")
            )
            waits = await client.chat(await client.new_session(), "Do away with order A1")
            await client.chat(await client.new_session(), "Wipe A2")
    assert (waits["plan"]["status"], did) == ("waiting", ["cancel A2"])
    shown = {name: (tool["effect"], tool["effect_guessed"]) for name, tool in listed.items() if "mcp_" in name}
    assert shown == {
        "mcp_cancel_order": ("destructive", True),
        "mcp_tag_order": ("write", True),
        "mcp_wipe": ("write", False),
    }
    assert not listed["current_time"]["effect_guessed"]
    guessed = [log for log in logs if log["event"] == "mcp_effects_guessed"]
    assert [(log["server"], log["count"], log["tools"]) for log in guessed] == [
        ("shop", 2, ["mcp_cancel_order", "mcp_tag_order"])
    ]
    provider.will(says("ok"))
    report = await examine(settings)
    [note] = [each for each in report.notes if each["area"] == "mcp"]
    assert "server shop do is guessed from their names: mcp_cancel_order, mcp_tag_order." in note["what"]
    assert "unannotated" in note["do"]


@pytest.mark.sweep
async def test_what_mcp_json_says_of_a_tool_by_name_wins_over_what_it_says_of_all(
    settings: Settings, provider: Provider, shop: tuple[str, list[str]]
) -> None:
    url, did = shop
    declare(settings, url, unannotated="read_only", confirm=["cancel_order"], disabled=["wipe"])
    async with running(settings) as client:
        listed = {tool["name"]: tool for tool in (await client.get("/tools"))["items"] if "mcp_" in tool["name"]}
        assert {name: (tool["effect"], tool["confirmation"]) for name, tool in listed.items()} == {
            "mcp_cancel_order": ("read_only", True),
            "mcp_tag_order": ("read_only", False),
        }
        provider.will(calls(("mcp_tag_order", {"order": "A1"}), ("mcp_cancel_order", {"order": "A1"})))
        waits = await client.chat(await client.new_session(), "See to A1")
    assert (waits["plan"]["status"], did) == ("waiting", ["tag A1"])
