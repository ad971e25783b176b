"""Which members of a family CI runs: with each value of each parameter one, and not of every test the same."""

import pytest

from tests.support.sweeps import left_out

PROTOCOLS = pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
WAYS = pytest.mark.parametrize("way", ["json", "stream"])


@pytest.fixture(params=["chat", "responses"])
def served(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.in_turns
@PROTOCOLS
@WAYS
def test_a_matrix(protocol: str, way: str) -> None:
    assert protocol
    assert way


@pytest.mark.in_turns(1)
@PROTOCOLS
def test_a_list(protocol: str) -> None:
    assert protocol


@pytest.mark.in_turns
@WAYS
def test_over_a_fixture(served: str, way: str) -> None:
    assert served
    assert way


def test_each_value_of_each_parameter_runs_and_no_pair_of_known_ones(request: pytest.FixtureRequest) -> None:
    mine = [each for each in request.session.items if each.path == request.path]
    left = {each.name for each in left_out(mine)}
    families: dict[str, list[str]] = {each.name.partition("[")[0]: [] for each in mine}
    for each in mine:
        if each.name not in left:
            families[each.name.partition("[")[0]].append(each.name)
    assert {name: len(members) for name, members in families.items()} == {
        "test_a_matrix": 4,
        "test_a_list": 1,
        "test_over_a_fixture": 2,
        request.node.name: 1,
    }
    words = " ".join(families["test_a_matrix"] + families["test_over_a_fixture"])
    assert all(word in words for word in ("chat", "responses", "messages", "gemini", "json", "stream"))
