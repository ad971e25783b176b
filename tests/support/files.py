"""Small files of every kind that can be attached, made by hand."""

import io
import re
import zipfile
from base64 import b64decode
from collections.abc import Sequence

from tests.support.toolbox import PIXEL

PNG = b64decode(PIXEL)
_TYPES = "http://schemas.openxmlformats.org"
_WORD = f'xmlns:w="{_TYPES}/wordprocessingml/2006/main"'
_DOCUMENT = f"{_TYPES}/officeDocument/2006/relationships"
_SHEET = f'xmlns="{_TYPES}/spreadsheetml/2006/main" xmlns:r="{_DOCUMENT}"'
_SLIDE = (
    f'xmlns:p="{_TYPES}/presentationml/2006/main" xmlns:a="{_TYPES}/drawingml/2006/main" xmlns:r="{_DOCUMENT}"'
    f' xmlns:c="{_TYPES}/drawingml/2006/chart" xmlns:dgm="{_TYPES}/drawingml/2006/diagram"'
)

_COSTS = '<sheet name="Costs" sheetId="1" r:id="r1"/>'
_HUGE = '<dimension ref="A1:XFD1048576"/>'  # which it is not


def pdf(*pages: str, form: Sequence[str] = ()) -> bytes:
    """A PDF with a line of text on each page, and a form with these fields, in the words of PDF."""
    objects = ["", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    fields = " ".join(f"{len(objects) + number} 0 R" for number, _ in enumerate(form, start=1))
    objects += [f"<< {field} >>" for field in form]
    objects[0] = f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [{fields}] >> >>"
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out = "%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    out += (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(out)}\n"
    )
    return f"{out}%%EOF\n".encode()


def packed(entries: dict[str, str | bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return written.getvalue()


def docx(body: str, **more: str | bytes) -> bytes:
    """A Word file with this in its body, in WordprocessingML, and more files beside it, which it relates to."""
    kinds = {name: re.sub(r"\W|\d|xml$", "", name.removeprefix("word/")) for name in more}
    related = "".join(_relation(kind, f"/{name}", kind) for name, kind in kinds.items())
    return packed(
        _package("word/document.xml", "wordprocessingml.document")
        | {
            "word/document.xml": f"<w:document {_WORD}><w:body>{body}</w:body></w:document>",
            "word/_rels/document.xml.rels": _relations(related),
            **more,
        }
    )


def beside(kind: str, text: str) -> str:
    """What stands beside the body of a Word file: a header (`hdr`), a footer (`ftr`), footnotes or endnotes."""
    return f"<w:{kind} {_WORD}>{paragraph(text)}</w:{kind}>"


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def pptx(*slides: str | dict[str, str], **more: str | bytes) -> bytes:
    """A PowerPoint file of slides: the shapes of each in PresentationML, or what stands beside it by kind of relation,
    its shapes as `slide`. Its files are named from the last slide to the first.
    """
    listed, parts = "", dict[str, str | bytes]()
    for number, slide in enumerate(reversed(slides), start=1):
        related = slide if isinstance(slide, dict) else {"slide": slide}
        listed = f'<p:sldId id="{255 + number}" r:id="r{number}"/>{listed}'
        parts[f"ppt/slides/slide{number}.xml"] = _of_slide("sld", related.get("slide", ""))
        beside = {kind: f"ppt/beside/{kind}{number}.xml" for kind in related.keys() - {"slide"}}
        parts |= {name: _of_slide(kind, related[kind]) for kind, name in beside.items()}
        relations = [_relation(kind, f"../beside/{kind}{number}.xml", kind) for kind in beside]
        parts[f"ppt/slides/_rels/slide{number}.xml.rels"] = _relations("".join(relations))
    numbers = range(1, len(slides) + 1)
    return packed(
        _package("ppt/presentation.xml", "presentationml.presentation")
        | {
            "ppt/presentation.xml": f"<p:presentation {_SLIDE}><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": _relations(
                "".join(_relation("slide", f"slides/slide{number}.xml", f"r{number}") for number in numbers)
            ),
            **parts,
            **more,
        }
    )


def _of_slide(kind: str, inside: str) -> str:
    return f"<p:{kind} {_SLIDE}>{inside}</p:{kind}>"


def shape(*paragraphs: str) -> str:
    lines = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in paragraphs)
    return f"<p:sp><p:txBody>{lines}</p:txBody></p:sp>"


def xlsx(rows: str) -> bytes:
    """An Excel file with a sheet `Costs`, its rows in SpreadsheetML."""
    return packed(
        _package("xl/workbook.xml", "spreadsheetml.sheet")
        | {
            "xl/workbook.xml": f"<workbook {_SHEET}><sheets>{_COSTS}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": _relations(_relation("worksheet", "worksheets/sheet1.xml")),
            "xl/worksheets/sheet1.xml": f"<worksheet {_SHEET}>{_HUGE}<sheetData>{rows}</sheetData></worksheet>",
        }
    )


def _package(part: str, kind: str) -> dict[str, str | bytes]:
    main = f"application/vnd.openxmlformats-officedocument.{kind}.main+xml"
    types = (
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/{part}" ContentType="{main}"/>'
    )
    return {
        "[Content_Types].xml": f'<Types xmlns="{_TYPES}/package/2006/content-types">{types}</Types>',
        "_rels/.rels": _relations(_relation("officeDocument", part)),
    }


def _relation(kind: str, target: str, name: str = "r1") -> str:
    return f'<Relationship Id="{name}" Type="{_DOCUMENT}/{kind}" Target="{target}"/>'


def _relations(inside: str) -> str:
    return f'<Relationships xmlns="{_TYPES}/package/2006/relationships">{inside}</Relationships>'
