"""Arguments that refer to what earlier steps produced."""

import json

import pytest

from segue.plans.plan_parser import Unresolved, missing, resolve
from segue.tools.paging import InvalidPath, at_path

RESULTS = {
    1: '{"emails": [{"id": "eml-1"}, {"id": "eml-2"}]}',
    2: "plain text",
    3: f"[{'0,' * 200_000}0]",
    4: "x" * 300_000,
    5: '{"emails": [], "query": "Rossi"}',
    6: "[]",
}


async def at(content: str, path: str) -> object:
    return await at_path(content, path, is_json=content[0] in "{[")


@pytest.mark.parametrize(
    ("args", "resolved"),
    [
        ({"id": {"$from": 1, "path": "emails[0].id"}}, {"id": "eml-1"}),
        ({"ids": {"$from": 1, "path": "emails[].id"}}, {"ids": ["eml-1", "eml-2"]}),
        ({"body": {"$from": 2}}, {"body": "plain text"}),
        ({"body": {"$from": 2, "path": "a"}}, {}),
        ({"body": {"$from": 4}}, {"body": "x" * 300_000}),
        ({"deep": {"list": [{"$from": 1, "path": "emails[1].id"}]}}, {"deep": {"list": ["eml-2"]}}),
        ({"id": {"$from": 1, "path": "nothing.there"}}, {}),
        ({"id": {"$from": 5, "path": "messages[0].id"}}, {}),
        ({"id": None}, {"id": None}),
        (None, {}),
    ],
)
async def test_references_become_what_they_point_at(
    args: dict[str, object] | None, resolved: dict[str, object]
) -> None:
    assert await resolve(args, RESULTS, at_path=at) == resolved


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({"$from": 7}, "step 7 has no result"),
        ({"$from": 5, "path": "emails[0].id"}, "step 5 has found nothing"),
        ({"$from": 5, "path": "emails[?id=='a'] | [0]"}, "step 5 has found nothing"),
        ({"$from": 6, "path": "[0].id"}, "step 6 has found nothing"),
        ({"$from": 3}, "over 250 kB"),
        ({"$from": 3, "path": "[1:]"}, "over 250 kB"),
        ({"$from": 1, "path": "emails[["}, "is not JMESPath"),
        ({"$from": 1, "path": "(" * 3000}, "is not JMESPath"),
    ],
)
async def test_a_reference_that_cannot_be_followed_says_why(reference: dict[str, object], why: str) -> None:
    with pytest.raises((Unresolved, InvalidPath), match=why):
        await resolve({"id": reference}, RESULTS, at_path=at)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("value", ["x" * 2000, [1] * 2000, {str(number): None for number in range(2000)}])
async def test_many_references_to_one_result_are_refused_before_they_are_written(value: object) -> None:
    few, results = {"all": [{"$from": 1}] * 9}, {1: value if isinstance(value, str) else json.dumps(value)}
    assert len((await resolve(few, results, at_path=at))["all"]) == 9
    with pytest.raises(Unresolved, match="over 1 MB"):
        await resolve({"all": [{"$from": 1}] * 1000}, results, at_path=at)


def test_missing_are_the_required_arguments_that_are_not_there() -> None:
    assert missing({"to": "x"}, {"required": ["to", "body"]}) == ["body"]
