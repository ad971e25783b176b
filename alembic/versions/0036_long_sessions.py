"""what a long session is asked for without reading all of it

- `gaps`: how many seqs of a session are of no message in its history. A null of a new column is not written into rows.
  It means that the messages are counted when they are asked for, until the session's next summary counts them.
- Indexes of messages that have left a history, and of turns that failed. A turn that is answered is in neither. They
  are built beside reads and writes.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0036"
down_revision: str | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INDEXES = {
    "messages_branch_idx": "messages (session_id, branch, seq) WHERE branch IS NOT NULL",
    "turns_failed_idx": "turns (session_id, seq) WHERE error IS NOT NULL",
}


def upgrade() -> None:
    op.execute("ALTER TABLE sessions ADD COLUMN IF NOT EXISTS gaps BIGINT")
    with op.get_context().autocommit_block():
        for index, on in INDEXES.items():
            # A try before this one may have left it unfinished.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
            op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {on}")


def downgrade() -> None:
    for index in INDEXES:
        op.execute(f"DROP INDEX {index}")
    op.execute("ALTER TABLE sessions DROP COLUMN gaps")
