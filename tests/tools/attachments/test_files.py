"""What a file is, and what is read of it: any file may be made to deceive or to harm its reader."""

import io
import re
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import SMTP

import pytest
from openpyxl import Workbook
from pypdf import PdfReader, PdfWriter

from segue.tools import attachment_texts
from segue.tools.attachment_texts import DOCX, PPTX, TEXT, XLSX, UnreadableFile, UnsupportedFile, kind_of, read_file
from segue.tools.normalize import PDF
from tests.support.files import PNG, beside, docx, packed, paragraph, pdf, pptx, shape, xlsx

CELL = '<c t="inlineStr"><is><t>{}</t></is></c>'


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (pdf("one"), PDF),
        (b"\r\n" + pdf("one"), PDF),
        (docx(""), DOCX),
        (xlsx(""), XLSX),
        (pptx(""), PPTX),
        (packed({"ppt/presentation.xml": "", "ppt/embeddings/costs.xlsx": xlsx("")}, zipfile.ZIP_STORED), PPTX),
        ("Perché?".encode("utf-16"), TEXT),
        (b"MZ is a rapper", TEXT),
    ],
)
def test_a_file_is_what_it_begins_with(content: bytes, kind: str) -> None:
    assert kind_of(content) == kind


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/sh\nrm -rf /",
        b"\xef\xbb\xbf  #!/usr/bin/env python",
        b"<?php system('id');",
        b"@ECHO OFF\r\ndel *.*",
        b"\x7fELF\x02\x01",
        b"MZ\x90\x00\x03",
        b"\xca\xfe\xba\xbe\x00\x00",
        packed({"evil.exe": b"x"}),
        b"RIFF\0\0\0\0WAVE",
        b"text\x00with NUL",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00",
    ],
)
def test_programs_archives_and_what_is_no_text_are_not_taken(content: bytes) -> None:
    with pytest.raises(UnsupportedFile, match=re.escape("Attach an image")):
        kind_of(content)


@pytest.mark.parametrize(
    ("content", "media_type", "text"),
    [
        (b"a plain line", "text/plain", "a plain line"),
        ("\ufeffciao\x07".encode(), "text/plain", "ciao"),
        ("你好".encode("utf-16"), "text/plain", "你好"),
        (b"name,amount\nRossi,12\nBianchi,7\n", "text/csv", "name,amount\nRossi,12\nBianchi,7\n"),
        (b"well, this\nis, no, table", "text/plain", "well, this\nis, no, table"),
        (b"one\rtwo\r\nthree", "text/plain", "one\ntwo\nthree"),
        ('<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><p>Perché'.encode(), "text/html", "Perché"),
        ('<html><meta charset="koi8-r"><p>Привет'.encode("koi8-r"), "text/html", "Привет"),
    ],
)
def test_text_is_told_apart_by_what_it_holds(content: bytes, media_type: str, text: str) -> None:
    read = read_file(TEXT, content, 1000)
    assert (read.media_type, read.text) == (media_type, text)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Nome;Importo;Città\nRossi;1.234,50 €;Forlì\n"),
        ("cp1252", "L’università “Ca’ Foscari” è qui – già. Größe, créée"),
        ("cp1256", "الاسم;المبلغ\nأحمد;1234,50\n"),
        ("gb18030", "姓名,金额,城市\n王琪,1234.50,北京\n"),
    ],
)
def test_text_as_windows_writes_it_is_read_in_the_languages_that_have_their_own_encodings(
    encoding: str, text: str
) -> None:
    assert read_file(TEXT, text.encode(encoding), 1000).text == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Договор вступает в силу"),
        ("koi8-r", "Договор вступает в силу"),
        ("cp1250", "Zażółć gęślą jaźń"),
        ("cp1250", "Příliš žluťoučký kůň"),
        ("cp1253", "Η σύμβαση ισχύει"),
        ("cp1254", "Şişli ığdır"),
        ("cp1255", "שלום לכולם"),
        ("mac_roman", "Perché è così"),
        ("euc_kr", "계약은 서명일로부터 유효합니다"),
        ("big5", "繁體中文的合約，自簽字之日起生效"),
        ("cp932", "契約は署名の日から有効です"),
        ("cp1256", "سلام"),
        ("gb18030", "你好"),
    ],
)
def test_text_of_which_it_is_not_sure_how_it_is_written_is_not_guessed(encoding: str, text: str) -> None:
    with pytest.raises(UnreadableFile, match="Save it as UTF-8"):
        read_file(TEXT, text.encode(encoding), 1000)


def test_a_file_that_is_not_taken_is_told_by_what_it_is() -> None:
    for content, name in (
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", "an Office file of an old format, or with a password"),
        (b"\0\0\0\x18ftypheic\0", "image/heic"),
        (rb"{\rtf1\ansi Perch\'e9}", "application/rtf"),
    ):
        with pytest.raises(UnsupportedFile, match=f"This is {name}. Attach"):
            kind_of(content)


def test_office_files_become_lines_of_text() -> None:
    table = f"<w:tbl><w:tblGrid/><w:tr><w:tc>{paragraph('a')}</w:tc><w:tc>{paragraph('b')}</w:tc></w:tr></w:tbl>"
    assert read_file(DOCX, docx(paragraph("Dear Ann") + table), 1000).text == "Dear Ann\na\tb"
    row = f"<row>{CELL.format('Rossi, R.')}<c><v>12</v></c></row>"
    read = read_file(XLSX, xlsx(row), 1000)
    assert (read.text, read.summary[:8]) == ('# Costs\n"Rossi, R.",12', "1 sheet;")


def test_a_formula_that_no_program_has_calculated_is_shown_and_one_that_was_by_its_value() -> None:
    sums = '<c><f>A1+B1</f><v>3</v></c><c><f>A1*B1</f></c><c><f t="array" ref="E1">SUM(A1:B1*2)</f><v/></c>'
    row = f'<row>{CELL.format("x")}<c><v>2</v></c>{sums}<c t="str"><f>IF(A1="","",A1)</f><v></v></c><c/></row>'
    read = read_file(XLSX, xlsx(row), 1000)
    assert read.text == "# Costs\nx,2,3,=A1*B1,=SUM(A1:B1*2),,"
    assert read.summary.startswith("1 sheet, some of its formulas were never calculated; ")


def test_a_hidden_sheet_is_read_and_marked_as_one() -> None:
    book, written = Workbook(), io.BytesIO()
    for title, state in (("Notes", "hidden"), ("Margins", "veryHidden")):
        book.create_sheet(title).sheet_state = state
    book.save(written)
    assert read_file(XLSX, written.getvalue(), 1000).text == "# Sheet\n# Notes (hidden)\n# Margins (hidden)"


def _mail(*attached: EmailMessage) -> EmailMessage:
    mail = EmailMessage()
    for name, value in (("From", "Zoë <zoe@x.org>"), ("Received", "from x"), ("Subject", "Größe 会议")):
        mail[name] = value
    mail.set_content("<p>Perché no?<p>Alle 10", subtype="html", cte="base64")
    for each in attached:
        mail.add_attachment(each)
    return mail


def test_a_mail_is_read_as_it_is_shown_with_the_mails_and_texts_in_it_and_the_names_of_its_files() -> None:
    shown = "From: Zoë <zoe@x.org>\nSubject: Größe 会议\n\nPerché no?\nAlle 10"
    mail = _mail(_mail())
    mail.add_attachment("1;2", filename="a.csv", cte="base64")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="b.pdf")
    read = read_file(TEXT, mail.as_bytes(policy=SMTP), 1000)
    files = "[attached: a.csv]\n1;2\n\n[attached: b.pdf]"
    assert (read.media_type, read.text) == (TEXT, f"{shown}\n\n[attached: message/rfc822]\n{shown}\n\n{files}")


def test_a_text_that_is_no_mail_or_a_broken_one_stays_as_it_is() -> None:
    for text in ("Note: x\n\nMIME-Version: 1.0", "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\nhi"):
        assert read_file(TEXT, text.encode(), 1000).text == text


def test_the_text_of_a_pdf_says_where_each_page_begins() -> None:
    assert read_file(PDF, pdf("one", "", "three"), 1000).text == "[page 1] one\n\n[page 2] \n\n[page 3] three"
    assert read_file(PDF, pdf("alone"), 1000).text == "alone"


def test_the_words_of_a_document_are_read_wherever_word_keeps_them() -> None:
    field = f"<w:sdt><w:sdtPr/><w:sdtContent>{paragraph('Rossi SpA')}</w:sdtContent></w:sdt>"
    run = "<w:r><w:t xml:space='preserve'>{}</w:t></w:r>"
    kept = f"<w:sdt><w:sdtContent>{run.format('1200')}</w:sdtContent></w:sdt><w:ins>{run.format(' EUR')}</w:ins>"
    gone = "<w:del><w:r><w:delText>DM</w:delText></w:r></w:del><w:moveFrom>" + run.format("moved") + "</w:moveFrom>"
    tab = "<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:tab/></w:r>"
    box = f"<w:r><w:pict><w:txbxContent>{paragraph('in a box')}</w:txbxContent></w:pict></w:r>"
    cell = f"<w:sdt><w:sdtContent><w:tc>{paragraph('b')}</w:tc></w:sdtContent></w:sdt>"
    table = f"<w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc>{cell}</w:tr></w:tbl>"
    body = field + f"<w:p>{tab}{run.format('Price: ')}{kept}{gone}</w:p>" + table + f"<w:p>{box}</w:p>"
    assert read_file(DOCX, docx(body), 1000).text == "Rossi SpA\n\tPrice: 1200 EUR\na\tb\n\nin a box"


def test_what_stands_beside_the_body_of_a_document_is_read_behind_it_and_once() -> None:
    headers = {f"word/header{number}.xml": beside("hdr", "Rossi SpA") for number in (1, 2)}
    notes = {f"word/{kind}.xml": beside(kind, f"{kind} 1") for kind in ("footnotes", "endnotes")}
    more = {**headers, **notes, "word/footer1.xml": beside("ftr", ""), "word/comments.xml": beside("comments", "no")}
    text = "Dear Ann\n\n[endnotes]\nendnotes 1\n\n[footnotes]\nfootnotes 1\n\n[header]\nRossi SpA"
    assert read_file(DOCX, docx(paragraph("Dear Ann"), **more), 1000).text == text


def test_a_document_with_a_broken_part_beside_its_body_is_read_without_that() -> None:
    more = {"word/footnotes.xml": "<broken", "word/header1.xml": beside("hdr", "Rossi SpA")}
    text = "Dear Ann\n\n[footnotes]\n[Segue could not read this part of the document]\n\n[header]\nRossi SpA"
    assert read_file(DOCX, docx(paragraph("Dear Ann"), **more), 1000).text == text


def test_the_words_of_slides_are_read_in_their_order_wherever_powerpoint_keeps_them() -> None:
    run = "<a:r><a:t>{}</a:t></a:r>"
    cell = "<a:tc><a:txBody>{}</a:txBody></a:tc>"
    cells = cell.format(f"<a:p>{run.format('a')}</a:p>") + cell.format(f"<a:p>{run.format('b')}</a:p>")
    table = f"<p:graphicFrame><a:tbl><a:tr>{cells}</a:tr></a:tbl></p:graphicFrame>"
    number = f'<p:sp><a:p><a:fld type="slidenum">{run.format("2")}</a:fld></a:p></p:sp>'
    group = f"<p:grpSp><p:grpSp>{shape('in a group')}</p:grpSp></p:grpSp>"
    value = "<c:pt><c:v>{}</c:v></c:pt>"
    series = f"<c:ser><c:tx>{value.format('North')}</c:tx><c:cat>{value.format('Q1')}</c:cat>"
    series += f"<c:val>{value.format('12')}</c:val></c:ser>"
    beside = {
        "slide": table + group + number,
        "notesSlide": shape("say it slowly") + number,
        "chart": f"<c:title>{shape('Sales')}</c:title>{series}",
        "diagramData": f"<dgm:t><a:p>{run.format('a circle')}</a:p></dgm:t>",
        "slideLayout": shape("Click to edit"),
    }
    last = f"<p:sp><a:p>{run.format('one')}<a:br/>{run.format('two')}</a:p></p:sp>"
    read = read_file(PPTX, pptx(shape("Perché", "第二行"), beside, last), 1000)
    assert read.text == (
        "[page 1] Perché\n第二行\n\n[page 2] a\tb\nin a group\n\n[chart]\nSales\nNorth\tQ1\t12\n\n"
        "[diagramData]\na circle\n\n[notesSlide]\nsay it slowly\n\n[page 3] one\ntwo"
    )
    assert read.summary.startswith("3 slides; ")
    assert read_file(PPTX, pptx(shape("alone")), 1000).text == "alone"


def test_slides_are_read_without_those_that_are_broken_or_missing_and_say_so() -> None:
    more = {"ppt/slides/slide3.xml": "<broken", "ppt/beside/notesSlide1.xml": "<broken"}
    slides = pptx(shape("lost"), shape("kept"), {"slide": shape("last"), "notesSlide": ""}, **more)
    unread = "[Segue could not read this part of the document]"
    text = f"[page 1] {unread}\n\n[page 2] kept\n\n[page 3] last\n\n[notesSlide]\n{unread}"
    assert read_file(PPTX, slides, 1000).text == text
    none_there = {"ppt/_rels/presentation.xml.rels": beside("none", "")}
    assert read_file(PPTX, pptx(shape("a"), **none_there), 1000).text == unread


def test_a_pdf_is_read_without_a_page_that_is_broken() -> None:
    text = "[page 1] [Segue could not read this part of the document]\n\n[page 2] two"
    assert read_file(PDF, pdf("(not closed", "two"), 1000).text == text


def test_a_document_is_read_whoever_made_it_and_whatever_is_wrong_around_its_words() -> None:
    types = {"[Content_Types].xml": "<Types/>", "word/_rels/document.xml.rels": beside("none", "")}
    assert read_file(DOCX, docx(paragraph("with macros"), **types), 1000).text == "with macros"
    namespace = 'xmlns:w="http://purl.oclc.org/ooxml/wordprocessingml/main"'
    strict = f"<w:document {namespace}><w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc></w:tr></w:tbl></w:document>"
    assert read_file(DOCX, packed({"word/document.xml": strict}), 1000).text == "a"


def test_a_pdf_without_text_says_so_in_place_of_the_text() -> None:
    read = read_file(PDF, pdf("", " "), 1000)
    assert read.text == "[Segue found no text in this file: its pages may be scanned images]"
    assert read.summary.startswith("2 pages; [Segue found no text")


def test_what_was_filled_into_a_pdf_is_read_behind_its_pages() -> None:
    text, box, signed = "/T (street) /FT /Tx /V (Via Po 4)", "/T (agreed) /FT /Btn /V /Off", "/T (by) /FT /Sig /V << >>"
    form = [text, box, "/T (left open) /FT /Tx /V ()", signed]
    read = read_file(PDF, pdf("Order form", form=form), 1000)
    assert read.text == "Order form\n\n[form]\nstreet: Via Po 4\nagreed: /Off"
    assert read_file(PDF, pdf("", form=form), 1000).text == "[form]\nstreet: Via Po 4\nagreed: /Off"


@pytest.mark.sweep
def test_a_text_that_is_too_long_says_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_file(TEXT, b"x" * 5000, 1000)
    assert read.text.endswith("[cut by Segue: 1000 of 5000 bytes kept]")
    assert read.summary.startswith("cut at 1000 bytes; ")
    monkeypatch.setattr(attachment_texts, "MAX_CHARS", 2000)
    many = read_file(PDF, pdf(*(f"This is page {number}" for number in range(500))), 10_000)
    assert re.search(r"This is page 9\d.*\n\n\[cut by Segue: 1\d\d of 500 pages were read\]$", many.text, re.DOTALL)
    assert re.match(r"the first 1\d\d of 500 pages; ", many.summary)
    monkeypatch.setattr(attachment_texts, "MAX_CHARS", len("This is page 0") + 1)
    nearly = read_file(PDF, pdf(*(f"This is page {number}" for number in range(3))), 10_000)
    assert nearly.text.endswith("[cut by Segue: 2 of 3 pages were read]")
    assert nearly.summary.startswith("the first 2 of 3 pages; ")
    monkeypatch.setattr(attachment_texts, "MAX_CHARS", 2000)
    rows = read_file(XLSX, xlsx(f"<row>{CELL.format('y' * 100)}</row>" * 100), 10_000)
    assert re.search(r"\[cut by Segue: the first 20\d\d characters were read\]$", rows.text)


def _encrypted() -> bytes:
    writer, written = PdfWriter(PdfReader(io.BytesIO(pdf("secret")))), io.BytesIO()
    writer.encrypt("word", algorithm="AES-256")
    writer.write(written)
    return written.getvalue()


def _bomb() -> bytes:
    return docx(paragraph("x"), **{f"word/{number}.xml": b"\0" * 50_000_000 for number in range(5)})


def _many() -> bytes:
    return packed({"xl/workbook.xml": "", **{str(number): "" for number in range(10_001)}})


@pytest.mark.parametrize(
    ("kind", "content", "why"),
    [
        (TEXT, "Привет".encode("cp1251"), "not valid UTF-8"),
        (TEXT, b"\xff\xfea", "not valid UTF-8 or UTF-16"),
        (TEXT, b"\xff\xfe\x00\xd8", "not valid UTF-8 or UTF-16"),
        (PDF, b"%PDF-1.7\nnothing more", "damaged"),
        (PDF, _encrypted, "encrypted"),
        (DOCX, packed({"word/document.xml": "<broken"}), "damaged"),
        (DOCX, _bomb, "unfolds to more"),
        (XLSX, _many, "10000 entries"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_what_cannot_be_read_says_why(kind: str, content: bytes | Callable[[], bytes], why: str) -> None:
    with pytest.raises(UnreadableFile, match=why):
        read_file(kind, content if isinstance(content, bytes) else content(), 1000)
