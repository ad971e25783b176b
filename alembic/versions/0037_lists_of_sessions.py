"""what lists a user's archived or pinned sessions without reading the others

The first index takes the place of `sessions_owner_activity_idx`, whose queries it serves too. Both are built beside
reads and writes.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0037"
down_revision: str | None = "0036"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

BEFORE = {"sessions_owner_activity_idx": "sessions (owner, updated_at, id)"}
INDEXES = {
    "sessions_list_idx": "sessions (owner, archived, updated_at, id)",
    "sessions_pinned_idx": "sessions (owner, archived, updated_at, id) WHERE pinned IS true",
}


def upgrade() -> None:
    _replace(BEFORE, INDEXES)


def downgrade() -> None:
    _replace(INDEXES, BEFORE)


def _replace(before: dict[str, str], after: dict[str, str]) -> None:
    with op.get_context().autocommit_block():
        for index, on in after.items():
            # A try before this one may have left it unfinished.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
            op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {on}")
        for index in before:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
