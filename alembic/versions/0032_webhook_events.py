"""events that are to be sent to the operator's webhook"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C")),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="webhook_events_pkey"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="webhook_events_session_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("webhook_events_seq_idx", "webhook_events", ["seq"])
    op.create_index("webhook_events_due_at_idx", "webhook_events", ["due_at"])
    op.create_index("webhook_events_session_id_seq_idx", "webhook_events", ["session_id", "seq"])


def downgrade() -> None:
    op.drop_table("webhook_events")
