"""result quota"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("result_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("tool_results", sa.Column("session_id", sa.Text(collation="C"), nullable=True))
    op.add_column("tool_results", sa.Column("stored_before", sa.BigInteger(), nullable=True))
    op.create_index("tool_results_quota_idx", "tool_results", ["session_id", "stored_before"], unique=False)
    op.create_foreign_key(
        op.f("tool_results_session_id_fkey"), "tool_results", "sessions", ["session_id"], ["id"], ondelete="CASCADE"
    )
    op.alter_column("tool_calls", "args_hash", existing_type=sa.TEXT(), nullable=True)


def downgrade() -> None:
    op.execute("UPDATE tool_calls SET args_hash = '' WHERE args_hash IS NULL")
    op.alter_column("tool_calls", "args_hash", existing_type=sa.TEXT(), nullable=False)
    op.drop_constraint(op.f("tool_results_session_id_fkey"), "tool_results", type_="foreignkey")
    op.drop_index("tool_results_quota_idx", table_name="tool_results")
    op.drop_column("tool_results", "stored_before")
    op.drop_column("tool_results", "session_id")
    op.drop_column("sessions", "result_bytes")
