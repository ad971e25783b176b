"""The kind of an attachment, by its content alone, and the text in it. Pure. A file may be made to harm its reader:
programs are refused, and reading runs in a child process with a deadline and bounded memory.
"""

import codecs
import csv
import io
import posixpath
import re
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email import message_from_bytes, policy
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final

from segue.tools.builtin.web_fetch import UTF16, decoded, from_html
from segue.tools.normalize import IMAGES, PDF, kind_of_bytes, make_payload
from segue.tools.summaries import identifiers, summarise, summary_line, table_in

DOCX: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PPTX: Final = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
TEXT: Final = "text/plain"
WORDS: Final = "words"  # text by what it comes as, not by its content: kept to the letter
TAKEN: Final = "Attach an image (PNG, JPEG, GIF, WebP), text in UTF-8 or UTF-16, CSV, HTML, PDF, DOCX, XLSX or PPTX."
PACKAGES: Final = {PDF: "pypdf", DOCX: "docx", XLSX: "openpyxl", PPTX: "docx"}  # of the extra `files`
SERVED: Final = {*IMAGES, *PACKAGES, TEXT, "text/csv", "text/html"}

_PROGRAMS: Final = re.compile(
    rb"#!|<\?php|@echo\s+off\b|\x7fELF|MZ.{0,512}\x00|\xca\xfe\xba\xbe|\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\x00asm",
    re.DOTALL | re.IGNORECASE,
)
_MAIN: Final = {DOCX: "word/document.xml", XLSX: "xl/workbook.xml", PPTX: "ppt/presentation.xml"}
DEADLINE_S: Final = 25.0
PAGES_S: Final = 12.0  # for the pages of a PDF or the slides of a PPTX; those that are left then are not read
MAX_UNFOLDED_BYTES: Final = 200_000_000
MAX_ENTRIES: Final = 10_000  # of a ZIP file
MAX_CHARS: Final = 10_000_000
MAX_HEADER_BYTES: Final = 32_000  # of a mail, within which it says that it is one
_SIGNS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "txbxContent": "\n"}  # of DOCX and PPTX
_BESIDE: Final = frozenset({"header", "footer", "footnotes", "endnotes", "diagramData", "chart", "notesSlide"})
_NOT_WORDS: Final = frozenset({"pPr", "rPr", "sectPr", "moveFrom", "Fallback"})  # the last repeats a text box
_MAIL: Final = re.compile(rb"(?i)(?:From .*\n)?(?:[!-9;-~]+:.*\n(?:[ \t].*\n)*)*?MIME-Version:")
_PAGES: Final = re.compile(r"(?:the first \d+ of )?(\d+) pages?\b")
_NO_TEXT: Final = "[Segue found no text in this file: its pages may be scanned images]"
_UNREAD: Final = "[Segue could not read this part of the document]"
_UNCALCULATED: Final = re.compile(rb"</f>\s*(?:<v>|<v\s*/>)?(?:</v>)?\s*</c>")  # a cell of an XLSX with no value
_HTML: Final = re.compile(
    r"(?is)\s*(?:<\?xml.{0,200}?\?>\s*)?(?:<!--.{0,1000}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b"
)


class UnsupportedFile(Exception):
    """A file of a kind that is not taken; the message says what to do."""


class UnreadableFile(Exception):
    """A file of a kind that is taken, which cannot be read; the message says why."""


def kind_of(content: bytes) -> str:
    """Returns the media type; TEXT for all text, whose kind shows once decoded. Raises UnsupportedFile."""
    if _PROGRAMS.match(content.removeprefix(codecs.BOM_UTF8)[:1024].lstrip()):
        raise UnsupportedFile(f"This is a program or a script. {TAKEN} Paste code into the message instead.")
    kind = kind_of_bytes(content[:1024].lstrip())
    if kind == "application/zip":
        # Entries' names stand as they are, last those of the file itself: behind any of a file within it.
        at, office = max((content.rfind(name.encode()), office) for office, name in _MAIN.items())
        kind = office if at >= 0 else kind
    if kind in PACKAGES and find_spec(PACKAGES[kind]) is None:
        extra = "the extra `files`: pip install 'segue-agent[files]'"
        raise UnsupportedFile(f"To read {kind}, the service needs {extra}.")
    if kind in IMAGES or kind in PACKAGES:
        return kind
    if kind is None and (content.startswith(UTF16) or b"\x00" not in content):
        return TEXT
    old = "an Office file of an old format, or with a password" if content[:4] == b"\xd0\xcf\x11\xe0" else None
    raise UnsupportedFile(f"This is {kind or old or 'no text'}. {TAKEN}")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """`text` is the part of the file's text that is kept."""

    media_type: str
    text: str
    summary: str = ""
    identifiers: tuple[str, ...] = ()


def read_file(kind: str, content: bytes, max_bytes: int) -> ReadFile:
    """Returns the text of a file of this kind, up to `max_bytes`. Raises UnreadableFile."""
    try:
        found = _READERS[kind](content)
    except (UnreadableFile, MemoryError):
        raise
    except Exception as fault:  # noqa: BLE001 (a library fails in any way on a broken file)
        raise UnreadableFile(f"The file is damaged: {type(fault).__name__}.") from None
    payload = make_payload(found.text, max_bytes=max_bytes)
    cut = f"cut at {max_bytes} bytes" if payload.cut_from is not None else ""
    summary = summary_line("; ".join(filter(None, (found.summary, cut, summarise(payload.value)))))
    return ReadFile(found.media_type, payload.text, summary, identifiers(payload.value))


def _from_text(content: bytes) -> ReadFile:
    if _MAIL.match(content[:MAX_HEADER_BYTES]):
        words = _or_unread(lambda: _words_of_mail(message_from_bytes(content, policy=policy.default)))
        if words != _UNREAD:  # else it is text at least
            return ReadFile(TEXT, io.StringIO(words, newline=None).read())
    text = decoded(content)
    if text is None:
        raise UnreadableFile("The text is not valid UTF-8 or UTF-16. Save it as UTF-8.")
    text = io.StringIO(text, newline=None).read()  # whatever its lines end with
    if _HTML.match(text[:5000]):
        title, readable = from_html(text)
        return ReadFile("text/html", readable, title)
    return ReadFile("text/csv" if table_in(text.strip()) else TEXT, text)


def _words_of_mail(mail: Any) -> str:
    """Returns a mail as it is shown, with texts and mails in it and names of files. Raises ValueError if empty."""
    lines = [f"{name}: {mail[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if mail[name]]
    body = mail.get_body(("plain", "html"))
    parts = [part for part in (body, *mail.iter_attachments()) if part is not None]  # one without headers is false
    if not parts:
        raise ValueError("no words")
    for part in parts:
        kind = part.get_content_type()
        lines.append("" if part is body else f"\n[attached: {part.get_filename() or kind}]")
        if kind == "message/rfc822":
            lines.append(_words_of_mail(part.get_content()))
        elif kind.startswith("text/"):
            encoded = part.get_payload(decode=True)
            text = decoded(encoded, part.get_content_charset()) or encoded.decode("cp1252", "replace")
            lines.append(from_html(text)[1] if kind == "text/html" else text.strip())
    return "\n".join(lines)


def _from_pdf(content: bytes) -> ReadFile:
    from pypdf import PdfReader  # noqa: PLC0415 (an extra)

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFile("The PDF is encrypted. Save it without a password.")
    filled_in = _or_unread(partial(_form_of, reader))
    return _paged(PDF, [page.extract_text for page in reader.pages], "page", filled_in and f"[form]\n{filled_in}")


def _form_of(reader: Any) -> str:
    """Returns the values of a form by the names of its fields: they are no part of its pages' text."""
    values = {name: each.get("/V") for name, each in (reader.get_fields() or {}).items()}
    return "\n".join(f"{name}: {value}" for name, value in values.items() if value and isinstance(value, str | list))


def _paged(kind: str, pages: Sequence[Callable[[], str]], noun: str, beside: str = "") -> ReadFile:
    total, until = len(pages), time.monotonic() + PAGES_S
    texts: list[str] = []
    chars = 0
    for page in pages:
        if chars > MAX_CHARS or time.monotonic() > until:
            break
        texts.append(_or_unread(page))
        chars += len(texts[-1])
    read, has_text = len(texts), any(map(str.strip, texts))
    if total > 1:
        texts = [f"[page {number}] {text}" for number, text in enumerate(texts, start=1)]
    if read < total:
        texts.append(f"[cut by Segue: {read} of {total} {noun}s were read]")
    count = read if read == total else f"the first {read} of {total}"
    text = "\n\n".join((*texts, beside)).strip() if has_text or beside else _NO_TEXT
    return ReadFile(kind, text, f"{count} {noun if total == 1 else f'{noun}s'}")


def _or_unread(read: Callable[[], str]) -> str:
    """Returns the text of a part, without which the rest of the document is none the worse."""
    try:
        return read()
    except Exception:  # noqa: BLE001 (a library fails in any way on a broken part)
        return _UNREAD


def pages_in(summary: str) -> int:
    """Returns how many pages a PDF has by the summary of its text; 0 if that does not say."""
    return int(found[1]) if (found := _PAGES.match(summary)) else 0


def _from_pptx(content: bytes) -> ReadFile:
    archive = _unzipped(content)
    related = {each: name for each, _, name in _related(archive, _MAIN[PPTX])}
    listed = (slide.items() for slide in _xml(archive, _MAIN[PPTX]).iterfind("{*}sldIdLst/{*}sldId"))
    names = (related.get(value, "") for items in listed for name, value in items if name.endswith("}id"))
    return _paged(PPTX, [partial(_words, archive, name) for name in names], "slide")


def _words(archive: zipfile.ZipFile, name: str, kinds: Collection[str] = _BESIDE) -> str:
    """Returns the words of an entry of an office file, then of those beside it, each once."""
    texts = {"".join(_words_in(_xml(archive, name))).rstrip("\n"): None}
    for kind, beside in sorted(each[1:] for each in _related(archive, name) if each[1] in kinds):
        text = _or_unread(partial(_words, archive, beside, ())).strip()
        texts |= {f"[{kind}]\n{text}": None} if text else {}
    return "\n\n".join(texts)


def _related(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[str, str, str]]:
    """Yields id, kind and name of each entry that an entry of an office file relates to."""
    folder, last = posixpath.split(f"/{name}")
    relations = f"{folder}/_rels/{last}.rels"[1:]
    for each in _xml(archive, relations) if relations in archive.namelist() else ():
        target = posixpath.normpath(posixpath.join(folder, each.get("Target", "")))
        yield each.get("Id", ""), each.get("Type", "").rpartition("/")[2], target[1:]


def _xml(archive: zipfile.ZipFile, name: str) -> Any:
    from docx import oxml  # noqa: PLC0415 (an extra)

    return oxml.parse_xml(archive.read(name))


def _words_in(node: Any) -> Iterator[str]:
    """Yields the words also of content controls, text boxes and tracked insertions, and of the groups of a slide."""
    for child in node.iterchildren("{*}*"):
        match child.tag.rpartition("}")[2]:
            case "t" if not len(child):  # a diagram has paragraphs in it
                yield child.text or ""
            case "tr":
                cells = child.xpath("*[local-name()='tc'] | *[local-name()='sdt']/*/*[local-name()='tc']")
                yield "\t".join("".join(_words_in(cell)).strip("\n") for cell in cells) + "\n"
            case "ser":  # of a chart: its name, the names of its values, and these
                yield "\t".join(value.text or "" for value in child.iterfind(".//{*}v")) + "\n"
            case "fld" if child.get("type") == "slidenum":
                pass
            case name if name not in _NOT_WORDS:
                yield _SIGNS.get(name, "")
                yield from _words_in(child)
                yield "\n" if name == "p" else ""


def _from_xlsx(content: bytes) -> ReadFile:
    from openpyxl import load_workbook  # noqa: PLC0415 (an extra)

    archive, open_book = _unzipped(content), partial(load_workbook, read_only=True)
    book = open_book(io.BytesIO(content), data_only=True)
    # A program may have written formulas without their values, which a spreadsheet program adds when it saves.
    sheets = (archive.read(name) for name in archive.namelist() if name.startswith("xl/worksheets/"))
    formulas = open_book(io.BytesIO(content)) if any(map(_UNCALCULATED.search, sheets)) else None

    def lines() -> Iterator[str]:
        for sheet in book.worksheets:
            yield f"# {sheet.title}" if sheet.sheet_state == "visible" else f"# {sheet.title} (hidden)"
            for row in _rows(sheet, formulas[sheet.title]) if formulas else _rows(sheet):
                if any(value is not None for value in row):
                    line = io.StringIO()
                    csv.writer(line, lineterminator="").writerow(row)
                    yield line.getvalue()

    count = "1 sheet" if len(book.worksheets) == 1 else f"{len(book.worksheets)} sheets"
    summary = f"{count}, some of its formulas were never calculated" if formulas else count
    return ReadFile(XLSX, _joined(lines()), summary)


def _rows(sheet: Any, formulas: Any = None) -> Iterable[Sequence[Any]]:
    sheet.reset_dimensions()  # what a sheet says of its size may be anything
    if formulas is None:
        values: Iterable[Sequence[Any]] = sheet.iter_rows(values_only=True)
        return values
    formulas.reset_dimensions()
    rows = zip(sheet.iter_rows(), formulas.iter_rows(), strict=True)
    return ([_value(*cell) for cell in zip(*row, strict=True)] for row in rows)


def _value(cell: Any, formula: Any) -> Any:
    """Returns the value of a cell, or its formula if no program has calculated it."""
    lacks_it = cell.value is None and cell.data_type == "n" and formula.data_type == "f"
    return getattr(formula.value, "text", formula.value) if lacks_it else cell.value


def _joined(lines: Iterable[str]) -> str:
    """Joins lines, up to the size that will be kept."""
    kept: list[str] = []
    chars = 0
    for line in lines:
        kept.append(line)
        chars += len(line) + 1
        if chars > MAX_CHARS:
            kept.append(f"[cut by Segue: the first {chars} characters were read]")
            break
    return "\n".join(kept)


def _unzipped(content: bytes) -> zipfile.ZipFile:
    """Checks the sizes that entries declare, which are upper bounds: zipfile reads no more of them."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    entries = archive.infolist()
    unfolded = sum(entry.file_size for entry in islice(entries, MAX_ENTRIES))
    if len(entries) > MAX_ENTRIES or unfolded > MAX_UNFOLDED_BYTES:
        raise UnreadableFile(f"The file unfolds to more than {MAX_UNFOLDED_BYTES} bytes or {MAX_ENTRIES} entries.")
    return archive


_READERS: Final[dict[str, Callable[[bytes], ReadFile]]] = {
    WORDS: lambda content: ReadFile(TEXT, content.decode()),
    TEXT: _from_text,
    PDF: _from_pdf,
    DOCX: lambda content: ReadFile(DOCX, _joined(_words(_unzipped(content), _MAIN[DOCX]).split("\n"))),
    XLSX: _from_xlsx,
    PPTX: _from_pptx,
}
