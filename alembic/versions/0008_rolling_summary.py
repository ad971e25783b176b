"""rolling summary"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("summary", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("summary_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("sessions", sa.Column("summary_until", sa.BigInteger(), nullable=True))
    op.add_column("sessions", sa.Column("summary_due_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("sessions", sa.Column("summary_tries", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.create_index("sessions_activity_idx", "sessions", ["updated_at"], unique=False)
    op.create_index(
        "sessions_summary_due_idx",
        "sessions",
        ["summary_due_at"],
        unique=False,
        postgresql_where=sa.text("summary_due_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "sessions_summary_due_idx", table_name="sessions", postgresql_where=sa.text("summary_due_at IS NOT NULL")
    )
    op.drop_index("sessions_activity_idx", table_name="sessions")
    op.drop_column("sessions", "summary_tries")
    op.drop_column("sessions", "summary_due_at")
    op.drop_column("sessions", "summary_until")
    op.drop_column("sessions", "summary_seq")
    op.drop_column("sessions", "summary")
