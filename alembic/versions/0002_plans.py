"""plans"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("origin_message_id", sa.Text(collation="C"), nullable=False),
        sa.Column("goal", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("current_step", sa.Integer(), nullable=False),
        sa.Column("steps", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("granted_to", sa.Text(collation="C"), nullable=True),
        sa.Column("granted_step", sa.Integer(), nullable=True),
        sa.Column("tool_hash", sa.Text(), nullable=True),
        sa.Column("asked_in", sa.Text(collation="C"), nullable=True),
        sa.Column(
            "texts",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("reminded", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "status IN ('active', 'waiting', 'completed', 'failed', 'cancelled', 'expired', 'superseded')",
            name=op.f("plans_status_check"),
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("plans_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("plans_pkey")),
    )
    op.create_index(
        "plans_one_open_key",
        "plans",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("status IN ('active', 'waiting')"),
    )
    op.create_index("plans_session_id_idx", "plans", ["session_id", "id"], unique=False)
    op.add_column("tool_calls", sa.Column("plan_id", sa.Text(collation="C"), nullable=True))
    op.add_column("tool_calls", sa.Column("step_id", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_calls", "step_id")
    op.drop_column("tool_calls", "plan_id")
    op.drop_index("plans_session_id_idx", table_name="plans")
    op.drop_index("plans_one_open_key", table_name="plans", postgresql_where=sa.text("status IN ('active', 'waiting')"))
    op.drop_table("plans")
