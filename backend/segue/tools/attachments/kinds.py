"""What a file is, by its content. Its name and what its sender calls it do not count. Pure.

A program is refused by how it begins, and so is whatever is neither text nor one of the formats named here.
"""

import codecs
import re
from importlib.util import find_spec
from typing import Final

from segue.tools.parts import IMAGES, kind_of_bytes

PDF: Final = "application/pdf"
DOCX: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
TEXT: Final = "text/plain"
TAKEN: Final = "Attach an image (PNG, JPEG, GIF, WebP), text in UTF-8 or UTF-16, CSV, HTML, PDF, DOCX or XLSX."
# Formats whose text a package of the extra `files` reads.
PACKAGES: Final = {PDF: "pypdf", DOCX: "docx", XLSX: "openpyxl"}
SERVED: Final = {*IMAGES, *PACKAGES, TEXT, "text/csv", "text/html"}
UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_PROGRAMS: Final = re.compile(
    rb"#!|<\?php|@echo\s+off\b|\x7fELF|MZ.{0,512}\x00|\xca\xfe\xba\xbe|\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\x00asm",
    re.DOTALL | re.IGNORECASE,
)
# Names of entries stand in a ZIP file as they are.
_IN_ZIP: Final = ((b"word/document.xml", DOCX), (b"xl/workbook.xml", XLSX))


class UnsupportedFile(Exception):
    """A file of a kind that is not taken; the message says what to do."""


class UnreadableFile(Exception):
    """A file of a kind that is taken, which cannot be read; the message says why."""


def kind_of(content: bytes) -> str:
    """Returns the media type; TEXT for all text, which is told apart once it is decoded. Raises UnsupportedFile."""
    start = content.removeprefix(codecs.BOM_UTF8)[:1024].lstrip()
    if _PROGRAMS.match(start):
        raise UnsupportedFile(f"This is a program or a script. {TAKEN} Paste code into the message instead.")
    kind = kind_of_bytes(content)
    if kind == "application/zip":
        kind = next((office for name, office in _IN_ZIP if name in content), kind)
    if kind in IMAGES:
        return kind
    if kind in PACKAGES:
        if find_spec(PACKAGES[kind]) is None:
            raise UnsupportedFile(
                f"To read {kind}, the service needs the extra `files`: pip install 'segue-agent[files]'."
            )
        return kind
    if kind is None and (content.startswith(UTF16) or b"\x00" not in content):
        return TEXT
    raise UnsupportedFile(f"This is {kind or 'no text'}. {TAKEN}")
