"""Every break can still be made, and names tests that are there: `make mutants` itself is not part of the suite."""

import pytest

from tests.mutants.run import ROOT, Break, read_breaks

BREAKS = read_breaks()


@pytest.mark.parametrize("broken", BREAKS, ids=[each.name for each in BREAKS])
def test_a_break_has_its_place_in_the_source_and_its_tests(broken: Break) -> None:
    source = (ROOT / broken.file).read_text("utf-8")
    assert broken.apply(source) != source
    for test in broken.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), path
        # A state machine of Hypothesis is a test class by assignment.
        made = (f"def {name}(", f"\n{name} = ")
        assert not name or any(each in (ROOT / path).read_text("utf-8") for each in made), test


def test_no_two_breaks_have_one_name() -> None:
    assert len({each.name for each in BREAKS}) == len(BREAKS)
