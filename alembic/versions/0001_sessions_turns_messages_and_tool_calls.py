"""sessions turns messages and tool calls"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("last_turn_id", sa.Text(collation="C"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("sessions_pkey")),
    )
    op.create_index("sessions_owner_activity_idx", "sessions", ["owner", "updated_at", "id"], unique=False)
    op.create_table(
        "turns",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("request", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("report", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("error", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name=op.f("turns_status_check")
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("turns_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("turns_pkey")),
    )
    op.create_index(
        "turns_one_running_key", "turns", ["session_id"], unique=True, postgresql_where=sa.text("status = 'running'")
    )
    op.create_index(
        "turns_open_idx",
        "turns",
        ["session_id", "seq"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_index("turns_session_id_seq_key", "turns", ["session_id", "seq"], unique=True)
    op.create_table(
        "messages",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("turn_id", sa.Text(collation="C"), nullable=False),
        sa.Column("turn_seq", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("tool_calls", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("tool_call_id", sa.Text(collation="C"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(role = 'tool') = (tool_call_id IS NOT NULL)", name=op.f("messages_tool_call_check")),
        sa.CheckConstraint("role IN ('user', 'assistant', 'tool')", name=op.f("messages_role_check")),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("messages_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("messages_turn_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("messages_pkey")),
    )
    op.create_index("messages_history_idx", "messages", ["session_id", "turn_seq", "seq"], unique=False)
    op.create_index("messages_session_id_seq_key", "messages", ["session_id", "seq"], unique=True)
    op.create_index(
        "messages_tool_call_id_key",
        "messages",
        ["tool_call_id"],
        unique=True,
        postgresql_where=sa.text("tool_call_id IS NOT NULL"),
    )
    op.create_index("messages_turn_id_idx", "messages", ["turn_id"], unique=False)
    op.create_table(
        "tool_calls",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("turn_id", sa.Text(collation="C"), nullable=False),
        sa.Column("message_id", sa.Text(collation="C"), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("args", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("args_hash", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("preview", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("identifiers", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('running', 'succeeded', 'failed', 'unknown')", name=op.f("tool_calls_status_check")
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name=op.f("tool_calls_message_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("tool_calls_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("tool_calls_turn_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("tool_calls_pkey")),
    )
    op.create_index("tool_calls_message_id_idx", "tool_calls", ["message_id"], unique=False)
    op.create_index("tool_calls_session_id_idx", "tool_calls", ["session_id", "id"], unique=False)
    op.create_index("tool_calls_turn_id_idx", "tool_calls", ["turn_id"], unique=False)
    op.create_table(
        "tool_results",
        sa.Column("tool_call_id", sa.Text(collation="C"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('json', 'text')", name=op.f("tool_results_kind_check")),
        sa.ForeignKeyConstraint(
            ["tool_call_id"], ["tool_calls.id"], name=op.f("tool_results_tool_call_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tool_call_id", name=op.f("tool_results_pkey")),
    )
    op.create_index("tool_results_expires_at_idx", "tool_results", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_index("tool_results_expires_at_idx", table_name="tool_results")
    op.drop_table("tool_results")
    op.drop_index("tool_calls_turn_id_idx", table_name="tool_calls")
    op.drop_index("tool_calls_session_id_idx", table_name="tool_calls")
    op.drop_index("tool_calls_message_id_idx", table_name="tool_calls")
    op.drop_table("tool_calls")
    op.drop_index("messages_turn_id_idx", table_name="messages")
    op.drop_index(
        "messages_tool_call_id_key", table_name="messages", postgresql_where=sa.text("tool_call_id IS NOT NULL")
    )
    op.drop_index("messages_session_id_seq_key", table_name="messages")
    op.drop_index("messages_history_idx", table_name="messages")
    op.drop_table("messages")
    op.drop_index("turns_session_id_seq_key", table_name="turns")
    op.drop_index("turns_open_idx", table_name="turns", postgresql_where=sa.text("status IN ('queued', 'running')"))
    op.drop_index("turns_one_running_key", table_name="turns", postgresql_where=sa.text("status = 'running'"))
    op.drop_table("turns")
    op.drop_index("sessions_owner_activity_idx", table_name="sessions")
    op.drop_table("sessions")
