"""The table of the errors that turns end with."""

from typing import Any, get_args

from segue.domain import turn_errors
from segue.domain.errors import AppError


def test_every_name_of_an_error_has_a_row_and_no_other_has() -> None:
    given: dict[str, Any] = {
        "seconds": 1.5,
        "faults": "a",
        "attempts": 3,
        "of_a_step": "",
        "limit": 10,
        "what": "Turns",
    }
    given |= {
        "at_most": 2,
        "retry_after_s": 7,
        "whose": "all users",
        "whom": "board × 2",
        "group": "finance",
        "why": "a",
    }
    made = [turn_errors.of(name, **given) for name in get_args(turn_errors.TurnErrorName)]
    assert all(isinstance(each, AppError) and each.detail for each in made)
    assert len(turn_errors.ROWS) == len(made)
