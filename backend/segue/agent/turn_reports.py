"""Reports on a turn beside its answer: how it was read, whether it searched, its sources, steps held back. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from segue.agent.state import TurnState, running_plan
from segue.domain import session
from segue.domain.plan import NOT_CHOSEN
from segue.domain.tool import EffectOutcome, Reference, Tool, TurnEffect
from segue.plans.policy import WEB_SEARCH, SearchReason
from segue.tools.summaries import place_of

MAX_SOURCES = 50
MAX_CITING_CHARS = 100_000  # of an answer
MIN_TITLE_CHARS = 8  # shorter ones are words like others
MIN_ID_CHARS = 6


def acknowledgement_report(state: TurnState) -> session.AcknowledgementReport:
    """Returns how the message was read. Complete only after the plan node has seen the plan that it answers."""
    read, (plan_id, version) = state["acknowledgement"], state.get("replied_to") or (None, None)
    return session.AcknowledgementReport(
        read.verdict, read.strength, rule=read.rule, language=read.language, plan_id=plan_id, plan_version=version
    )


def web_search_report(state: TurnState) -> session.WebSearchReport:
    """Returns whether a search was asked for and made, and why or why not. Complete only after the tool loop."""
    search = state["search"]
    ended = [call.status == "succeeded" for call in state.get("tool_calls", []) if call.tool_name == WEB_SEARCH]
    reason: SearchReason = search.reason
    if any(ended):
        plan = running_plan(state)
        is_planned = plan is not None and any(step.tool == WEB_SEARCH for step in plan.steps)
        reason = search.reason if search.search else "plan" if is_planned else "model"
    elif search.search:
        reason = "failed" if ended else "offered"
    return session.WebSearchReport(requested=state["force_web_search"], performed=any(ended), reason=reason)


def held_of(state: TurnState, tools: Mapping[str, Tool]) -> tuple[TurnEffect, ...]:
    """Returns the plan's steps that would change something and wait for a yes, or were denied; none of the page's."""
    plan = state["touched_plan"].plan if state["touched_plan"] else None
    if plan is None or plan.page_steps:
        return ()
    effects = []
    for step in plan.steps:
        spec = tools[step.tool].spec if step.tool and step.tool in tools else None
        if not step.tool or (spec is not None and spec.effect == "read_only"):
            continue
        was_refused = step.error == NOT_CHOSEN or (plan.status == "cancelled" and step.requires_confirmation)
        is_denied = step.status == "skipped" and was_refused
        if is_denied or step.status == "waiting":
            outcome: EffectOutcome = "denied" if is_denied else "waits"
            title = (spec.title or spec.original_name) if spec else ""
            effects.append(TurnEffect(None, step.tool, title or step.tool, step.args or {}, outcome))
    return tuple(effects)


def sources_of(state: TurnState) -> tuple[session.Source, ...]:
    """Returns the answer's sources: the message's files, then, in the order of the text, the results that it names by
    an address, a title or an identifier; if it names none, the pages that were read for it.
    """
    results = (*state.get("references", ()), *state["earlier_results"])
    if state.get("problem") or not (state["files"] or results):
        return ()
    answer = (state["answer"] or "")[:MAX_CITING_CHARS]
    named = sorted(_named(answer, state.get("found", ()), results), key=lambda each: each[0])
    used = [each for _, each in named] or [each for each in state.get("found", ()) if each.url and each.part is None]
    distinct = dict[object, session.Source]()
    for each in used:
        distinct.setdefault(each.url or (each.tool_call_id, each.part), each)
    return _numbered(answer, [*_files(state), *distinct.values()][:MAX_SOURCES])


def _files(state: TurnState) -> Iterator[session.Source]:
    calls = state.get("tool_calls", ())
    reads = {call.args.get("attachment_id"): call for call in calls if call.tool_name == session.READ_ATTACHMENT}
    for file in state["files"]:
        if file.mark != session.LEFT_OUT and file.id in reads and reads[file.id].status == "succeeded":
            yield session.Source((file.mark or "").strip("[]"), file.name, tool_call_id=reads[file.id].tool_call_id)


def _named(
    answer: str, found: Sequence[session.Source], results: Sequence[Reference]
) -> Iterator[tuple[int, session.Source]]:
    """Yields where in the answer each source is named first, and the source."""
    folded, cited = answer.casefold(), set[str | None]()
    for each in found:
        at = place_of(each.url, answer) if each.url else None
        if at is None and len(each.title) >= MIN_TITLE_CHARS:
            at = place_of(each.title.casefold(), folded)
        if at is not None:
            cited |= {each.url, each.tool_call_id}
            yield at, each
    for result in results:
        is_page = {text: text.startswith(("http://", "https://")) for text in result.identifiers}
        for text in sorted(is_page, key=is_page.__getitem__, reverse=True):
            url = text if is_page[text] else None
            if len(text) < MIN_ID_CHARS or (url or result.tool_call_id) in cited:
                continue
            if (at := place_of(text, answer)) is not None:
                cited |= {url, result.tool_call_id}
                yield at, session.Source("", url or result.summary, url, result.tool_call_id)


def _numbered(answer: str, sources: Sequence[session.Source]) -> tuple[session.Source, ...]:
    """Gives each source without a mark the number of its link in the text, or the next one that is free."""
    ids = {each.id for each in sources}
    numbered = []
    for each in sources:
        match = each.url and re.search(rf"\[(\d{{1,3}})\]\({re.escape(each.url)}", answer)
        free = (str(number) for number in range(1, len(sources) + len(ids) + 1) if str(number) not in ids)
        number = each.id or (match[1] if match and match[1] not in ids else next(free))
        ids.add(number)
        numbered.append(replace(each, id=number))
    return tuple(numbered)
