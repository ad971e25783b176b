"""facts keep their session"""

from collections.abc import Sequence

from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # The id of a deleted session stays in its facts, so that they can still be found and deleted by it.
    op.drop_constraint(op.f("memories_session_id_fkey"), "memories", type_="foreignkey")


def downgrade() -> None:
    op.execute("UPDATE memories SET session_id = NULL WHERE session_id NOT IN (SELECT id FROM sessions)")
    op.create_foreign_key(
        op.f("memories_session_id_fkey"), "memories", "sessions", ["session_id"], ["id"], ondelete="SET NULL"
    )
