"""What a run of a turn did when: its nodes and its calls of models, in milliseconds since its process took it."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from segue.domain.session import Usage

MAX_CALLS: Final = 100


class NodeRun(NamedTuple):
    """`duration_ms` is None if the node had not ended. Stored as ModelRun is, as an array: every turn has some."""

    node: str
    at_ms: int
    duration_ms: int | None = None


class ModelRun(NamedTuple):
    """A call of a model, with all its tries. `first_token_ms` is None if no client read the answer as it came."""

    model: str
    at_ms: int
    duration_ms: int
    first_token_ms: int | None
    retries: int
    outcome: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """Of the last run. `left_out` counts calls of models after MAX_CALLS, `usage` is that of a run without a report."""

    nodes: tuple[NodeRun, ...] = ()
    model_calls: tuple[ModelRun, ...] = ()
    left_out: int = 0
    usage: Usage | None = None
