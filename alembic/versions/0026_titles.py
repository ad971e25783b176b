"""when a title is due, and when a message left the history"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("title_due_at", sa.DateTime(timezone=True)))
    op.add_column("messages", sa.Column("left_at", sa.DateTime(timezone=True)))
    op.create_index(
        "sessions_title_due_idx", "sessions", ["title_due_at"], postgresql_where=sa.text("title_due_at < 'infinity'")
    )


def downgrade() -> None:
    op.drop_index("sessions_title_due_idx", "sessions")
    op.drop_column("messages", "left_at")
    op.drop_column("sessions", "title_due_at")
