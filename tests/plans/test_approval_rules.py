"""Which calls a rule about approvals is about: the first that is decides who says yes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from segue.agents_config import add_agents, agents_invalid, read_agents_file
from segue.domain.agent import Agent
from segue.domain.approval_rule import ApprovalRule, Bound, Others, RuleBound, RuledCall, WaitsFor, digest_of_call
from segue.domain.errors import AppError
from segue.domain.identity import Identity
from segue.plans.value_origins import leaves

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def call(args: dict[str, Any], tool: str = "refund", brought_by: str | None = None, **origins: str) -> RuledCall:
    return RuledCall(tool, "destructive", args, dict(leaves(args)), origins, brought_by)


def about(args: dict[str, Any], **bounds: dict[str, Any]) -> bool:
    rule = ApprovalRule(args={path: RuleBound(**bound) for path, bound in bounds.items()}, who="self")
    return rule.is_about(call(args))


@pytest.mark.parametrize(
    ("args", "bound", "fits"),
    [
        ({"amount": 800}, {"above": 500}, True),
        ({"amount": 500}, {"above": 500}, False),
        ({"amount": 500.01}, {"above": 500}, True),
        ({"amount": "800"}, {"above": 500}, True),
        ({"amount": "5"}, {"above": 500}, True),
        ({"amount": True}, {"above": 500}, True),
        ({"amount": None}, {"above": 500}, True),
        ({}, {"above": 500}, True),
        ({"amount": [3, 800]}, {"above": 500}, True),
        ({"amount": [3, 4]}, {"above": 500}, False),
        ({"amount": {"value": 800}}, {"above": 500}, True),
        ({"amount": 80}, {"max": 500}, True),
        ({"amount": 800}, {"max": 500}, False),
        ({"amount": -1}, {"max": 500}, False),
        ({"amount": "80"}, {"max": 500}, False),
        ({"amount": {"value": 80}}, {"max": 500}, False),
        ({}, {"max": 500}, False),
        ({"amount": "eur"}, {"one_of": ["eur", "usd"]}, True),
        ({"amount": 80}, {"origin": "user"}, False),
    ],
)
def test_a_bound_that_lets_a_call_off_needs_its_value_and_one_that_catches_a_call_does_not(
    args: dict[str, Any], bound: dict[str, Any], *, fits: bool
) -> None:
    assert about(args, amount=bound) is fits


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("https://shop.example/orders/7", True),
        ("https://shop.example/orders/a..b/%2Fc.d", True),
        ("https://shop.example/orders/.well-known/x..", True),
        ("https://shop.example/orders/../admin", False),
        ("https://shop.example/orders/%2e%2e/admin", False),
        ("https://shop.example/orders/.%2E/admin", False),
        ("https://shop.example/orders\\..\\admin", False),
        ("https://shop.example/orders/.\t./admin", False),
        ("https://shop.example/orders/\n..\radmin", False),
        ("https://shop.example/orders%2f../admin", False),
        ("https://shop.example/orders%5C%2e./admin", False),
        ("https://shop.example/admin", False),
        (7, False),
    ],
)
def test_what_begins_as_it_has_to_does_not_lead_out_of_there(value: object, *, fits: bool) -> None:
    bound = Bound(prefix="https://shop.example/orders")
    assert bound.holds("url", "url", value, call({"url": value})) is fits


@pytest.mark.parametrize(
    ("rule", "made", "fits"),
    [
        ({"tool": "mcp_*"}, call({}, "mcp_pay"), True),
        ({"tool": "mcp_*"}, call({}, "pay"), False),
        ({"effect": "write"}, call({}), False),
        ({"effect": "destructive"}, call({}), True),
        ({"unattended": True}, call({}), False),
        ({"unattended": True}, call({}, brought_by="msg_1"), True),
        ({"unattended": False}, call({}, brought_by="msg_1"), False),
        ({"origin": "result"}, call({"to": "eve"}, to="result:call_1"), True),
        ({"origin": "result"}, call({"to": "eve"}, to="model"), False),
        ({"origin": "other"}, call({"to": "eve", "n": 1}, to="message:msg_1", n="model"), True),
        ({"origin": "other"}, call({"to": "eve"}, to="message:msg_1"), False),
        ({"origin": "user"}, call({"to": "eve"}, to="fact:mem_1"), True),
        ({"origin": "model"}, call({}), False),
    ],
)
def test_all_that_a_rule_says_has_to_hold(rule: dict[str, Any], made: RuledCall, *, fits: bool) -> None:
    assert ApprovalRule(**rule, who="self").is_about(made) is fits


def waits(**given: Any) -> WaitsFor:
    return WaitsFor(**{"group": "finance", "who": "other", "rule": "segue, rule 1", "of_call": "d", **given})


def test_a_question_is_shown_to_its_group_or_role_and_later_to_another_one() -> None:
    late = waits(escalates_to="board", escalates_at=NOW)
    clerk, lead = Identity("clerk", groups=frozenset({"finance"})), Identity("lead", roles=frozenset({"finance"}))
    board, other = Identity("ann", groups=frozenset({"board"})), Identity("eve", frozenset({"finance", "ops"}))
    assert [late.is_for(each, NOW) for each in (clerk, lead, board, other)] == [True, True, True, False]
    assert not late.is_for(board, NOW - timedelta(seconds=1))
    assert not waits().is_for(board, NOW)


def test_a_yes_covers_the_call_it_was_given_to_or_one_that_the_same_people_decide_on() -> None:
    refund, other = digest_of_call("refund", {"amount": 800}), digest_of_call("refund", {"amount": 9000})
    yes = Others(by=waits(of_call=refund), yes_by=("sara",))
    board = waits(group="board")
    assert yes.cover(board, refund)
    assert yes.cover(waits(), other)
    assert not yes.cover(board, other)
    two = Others(by=waits(of_call=refund, who="two"), yes_by=("sara",))
    assert not two.cover(board, refund)
    assert Others(by=two.by, yes_by=("sara", "tom")).cover(board, refund)
    assert not Others(by=yes.by, yes_by=("sara",), no_by="tom").cover(board, refund)


def read(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "agents.toml"
    path.write_text(text)
    return [fault.partition("agents.toml")[2] for fault in read_agents_file(path).faults]


DESK = '[agents.desk]\n[[agents.desk.approvals]]\ntool = "refund"\n'


def test_rules_are_read_from_the_file_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "agents.toml"
    path.write_text(
        DESK + 'args = {amount = {max = 500}}\nwho = "self"\n'
        '[[agents.desk.approvals]]\ntool = "refund"\nwho = "two"\ngroup = "finance"\n'
    )
    file = read_agents_file(path)
    assert file.faults == []
    assert [rule.who for rule in file.agents["desk"].approvals] == ["self", "two"]
    given = read_agents_file(tmp_path / "none.toml")
    add_agents(given, file.agents)
    assert given.agents == file.agents


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ('who = "other"', "the others need a `group`"),
        ('who = "self"\ngroup = "finance"', "takes no `group`"),
        ('who = "boss"\ngroup = "finance"', "should be 'self', 'approver', 'other' or 'two'"),
        ('who = "self"\namount = 3', "is no key of a rule. There are tool, args, effect"),
        ('who = "two"\ngroup = "f"\nescalate_to = "board"', "go together"),
        ('who = "two"\ngroup = "f"\nmay_change_args = true', "the same arguments"),
        ('who = "self"\nargs = {amount = {above = 5, max = 9}}', "`above` stands alone"),
        ('who = "self"\nargs = {amount = {}}', "give `equals`"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_place(tmp_path: Path, rule: str, told: str) -> None:
    [fault] = read(tmp_path, DESK + rule)
    assert fault.startswith(", line 1: agents.desk.approvals.0")
    assert told in fault


def test_no_yes_relies_on_the_rules_that_a_step_keeps_for_itself() -> None:
    assert Agent(approvals=(ApprovalRule(who="self"),)).digest == Agent().digest
    assert isinstance(agents_invalid(["x"]), AppError)
