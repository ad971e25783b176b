"""The page behind a signed link: what waits, to the letter, and the decision of the person whom the link is for.

The link is the proof; no cookie counts. A GET decides nothing, since programs open links that come by mail: the first
POST asks once more, the second decides. There is no JavaScript. Its language is the one in which the asker was told.
"""

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from segue.api.deps import Parts, Services
from segue.domain.approval_rule import MAX_REASON_CHARS, is_users
from segue.domain.errors import AppError, InvalidRequest, NotFound
from segue.domain.plan import BUTTON_MESSAGES, Button, Decision, Step
from segue.domain.visible import visible
from segue.language.detect_language import detect_language
from segue.language.shown_call import CallView, quoted, translate
from segue.tools.normalize import clean_text
from segue.turns.approvals import Approval, Decider, get_approval
from segue.turns.chat_request import Origin
from segue.users.api_keys import APPROVE_PATH, OpenedLink

MAX_FORM_BYTES: Final = 16_384
MAX_FIELDS: Final = 8  # it has three
# The call, as the question has it: the page has it already, with all of its values.
_CALL: Final = re.compile(r"^`[^`\n]+`\n\n```text\n.*?\n```$", re.DOTALL | re.MULTILINE)
_OVER: Final = {"plan_changed": "approve_used", "plan_expired": "expired"}
_STYLE: Final = Path(__file__).with_name("approve.css").read_text("utf-8")
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Robots-Tag": "noindex",
}

router = APIRouter(include_in_schema=False)


@router.api_route(APPROVE_PATH + "{token}", methods=["GET", "POST"])
async def decide_by_link(token: str, request: Request, services: Parts) -> HTMLResponse:
    link = await services.approval_links.open(token)
    found = None
    if link is not None:
        with suppress(NotFound):
            found = await services.read(get_approval, link.identity, link.plan_id, now=services.clock())
    if link is None or found is None:
        return page("en", "Nothing was done: this link is not valid, or is so no longer.", status=404)
    language = detect_language(found.told or found.goal)
    if min(link.until, found.expires_at) <= services.clock():
        return page(language, translate("expired", language), status=410)
    if (found.status, found.version) != ("waiting", link.version):
        return page(language, translate("approve_used", language), status=410)
    given = await _form(request) if request.method == "POST" else {}
    decision = next((each for each in BUTTON_MESSAGES if each == given.get("decision")), None)
    reason = clean_text(given.get("reason", "")).strip()[:MAX_REASON_CHARS] if decision == "reject" else ""
    if decision is not None and given.get("sure") == "yes":
        return await _decide(link, Button(decision, link.version), reason, language, request, services)
    form = _choice(language) if decision is None else _once_more(decision, reason, language)
    return page(language, *_shown(found, language), *form)


async def _form(request: Request) -> dict[str, str]:
    """Returns the fields. Raises HTTPException 413, AppError `invalid_request`."""
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise HTTPException(413, f"The form is larger than {MAX_FORM_BYTES} bytes.")
    try:
        return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=MAX_FIELDS))
    except ValueError:
        raise InvalidRequest(f"The form has {MAX_FIELDS} fields at most.") from None


async def _decide(
    link: OpenedLink, button: Button, reason: str, language: str, request: Request, services: Services
) -> HTMLResponse:
    by = Decider(link.identity, "link", request.scope["request_id"], reason or None)
    origin = Origin(by.request_id, request.scope["traceparent"], services.groups_of(link.identity))
    try:
        decided = await services.turns.decide_approval(by, link.plan_id, button, origin=origin)
    except AppError as error:
        if (over := _OVER.get(error.code)) is None:
            is_outage = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR  # which may have come behind the decision
            return page("en", error.detail if is_outage else f"Nothing was done: {error.detail}", status=error.status)
        return page(language, translate(over, language), status=410)
    if button.decision == "reject":
        return page(language, translate("cancelled", language))
    is_first_of_two = decided.status == "waiting"
    return page(language, f"✓ {translate('approve_yes' if is_first_of_two else 'approve_approved', language)}")


def _shown(found: Approval, language: str) -> Iterator[str]:
    """Yields the head of the page, which is a text, and what is decided on as HTML."""
    yield translate("approve_asks", language, user=found.asker)
    for step in found.steps:
        lines = escape("\n".join(CallView(language, None).lines(step.args or {})))
        yield f"<pre><b>{_text(step.tool or '')}</b>\n{lines}</pre>"
        yield f"<p><small>{'<br>'.join(map(_text, _origins(step, found.asker)))}</small></p>"
    sentences = filter(str.strip, _CALL.sub("", found.told or found.goal).replace("`", "").splitlines())
    yield f"<blockquote>→ {'<br>'.join(map(_text, (found.asker, *sentences)))}</blockquote>"
    for message in found.messages:
        lines = escape("\n".join(quoted(message.content)))
        name = found.asker if message.role == "user" else message.role
        yield f"<details><summary>{_text(name)}</summary><pre>{lines}</pre></details>"
    yield f"<p><small>≤ {found.expires_at:%Y-%m-%d %H:%M} UTC</small></p>"


def _origins(step: Step, asker: str) -> Iterator[str]:
    """Yields which values the asker has said, then which came from elsewhere."""
    paths = defaultdict[str, list[str]](list)
    for path, origin in (step.args_origin or {}).items():
        paths["" if is_users(origin) else origin.partition(":")[0]].append(path)
    for origin, found in sorted(paths.items()):
        yield f"{f'⚠ {origin}' if origin else asker} → {', '.join(found)}"


def _choice(language: str) -> Iterator[str]:
    yield f'<form method="post"><label>{_text(translate("approve_reason", language))}'
    yield f'<textarea name="reason" rows="2" maxlength="{MAX_REASON_CHARS}"></textarea></label>'
    yield f"{_button('confirm', language)}{_button('reject', language)}</form>"


def _once_more(decision: Decision, reason: str, language: str) -> Iterator[str]:
    yield f"<blockquote>{_text(reason)}</blockquote>" if reason else ""
    yield f'<form method="post"><h2>{_text(translate("ask", language))}</h2>'
    for name, value in (("sure", "yes"), ("reason", reason)):
        yield f'<input type="hidden" name="{name}" value="{escape(value)}">'
    yield f"{_button(decision, language)}</form>"


def _button(decision: Decision, language: str) -> str:
    name = "yes" if decision == "confirm" else "no"
    label = _text(translate(f"approve_{name}", language))
    return f'<button class="{name}" name="decision" value="{decision}">{label}</button>'


def page(language: str, head: str, *parts: str, status: int = 200) -> HTMLResponse:
    """Returns a page of a head, which is a text, and parts, which are HTML."""
    direction = "rtl" if language == "ar" else "ltr"
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    start = f'<!doctype html><html lang="{language}" dir="{direction}">{meta}<title>{_text(head)}</title>'
    body = "\n".join((f"<h1>{_text(head)}</h1>", *parts))
    return HTMLResponse(f"{start}<style>{_STYLE}</style><main>{body}</main></html>", status, _HEADERS)


def _text(text: str) -> str:
    return escape(visible(text))
