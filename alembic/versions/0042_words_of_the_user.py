"""which messages are no words of the user's, and what a grant covered

A message from before is a program's if it opened a turn that approves nothing. The columns are committed before that
statement, which then holds no lock that others wait for.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0042"
down_revision: str | None = "0041"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE messages ADD COLUMN IF NOT EXISTS by_program boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS covered jsonb")
    with op.get_context().autocommit_block():
        op.execute(
            "UPDATE messages SET by_program = true FROM turns WHERE turns.id = messages.turn_id"
            " AND turns.seq = messages.seq AND turns.request @> '{\"approves\": false}'"
        )


def downgrade() -> None:
    op.drop_column("messages", "by_program")
    op.drop_column("tool_calls", "covered")
