"""memories"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "memories",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("importance", sa.SmallInteger(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=True),
        sa.Column("message_id", sa.Text(collation="C"), nullable=True),
        sa.Column("superseded_by", sa.Text(collation="C"), nullable=True),
        sa.Column("search", postgresql.TSVECTOR(), nullable=False),
        sa.Column("embedding", postgresql.ARRAY(sa.REAL()), nullable=True),
        sa.Column("embedding_model", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "kind IN ('fact', 'preference', 'personal_info', 'contact', 'project')", name=op.f("memories_kind_check")
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name=op.f("memories_message_id_fkey"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("memories_session_id_fkey"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["superseded_by"], ["memories.id"], name=op.f("memories_superseded_by_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("memories_pkey")),
    )
    op.create_index(
        "memories_embedding_model_idx",
        "memories",
        ["embedding_model"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NULL"),
    )
    op.create_index(
        "memories_message_id_idx",
        "memories",
        ["message_id"],
        unique=False,
        postgresql_where=sa.text("message_id IS NOT NULL"),
    )
    op.create_index(
        "memories_owner_idx",
        "memories",
        ["owner", "id"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NULL"),
    )
    op.create_index(
        "memories_session_id_idx",
        "memories",
        ["session_id"],
        unique=False,
        postgresql_where=sa.text("session_id IS NOT NULL"),
    )
    op.create_index(
        "memories_superseded_by_idx",
        "memories",
        ["superseded_by"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NOT NULL"),
    )
    op.create_index(
        "memories_told_once_key",
        "memories",
        ["owner", "content_hash"],
        unique=True,
        postgresql_where=sa.text("superseded_by IS NULL"),
    )
    op.add_column("turns", sa.Column("facts_due_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "turns_facts_due_idx",
        "turns",
        ["facts_due_at"],
        unique=False,
        postgresql_where=sa.text("facts_due_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("turns_facts_due_idx", table_name="turns", postgresql_where=sa.text("facts_due_at IS NOT NULL"))
    op.drop_column("turns", "facts_due_at")
    op.drop_index("memories_told_once_key", table_name="memories", postgresql_where=sa.text("superseded_by IS NULL"))
    op.drop_index(
        "memories_superseded_by_idx", table_name="memories", postgresql_where=sa.text("superseded_by IS NOT NULL")
    )
    op.drop_index("memories_session_id_idx", table_name="memories", postgresql_where=sa.text("session_id IS NOT NULL"))
    op.drop_index("memories_owner_idx", table_name="memories", postgresql_where=sa.text("superseded_by IS NULL"))
    op.drop_index("memories_message_id_idx", table_name="memories", postgresql_where=sa.text("message_id IS NOT NULL"))
    op.drop_index(
        "memories_embedding_model_idx", table_name="memories", postgresql_where=sa.text("superseded_by IS NULL")
    )
    op.drop_table("memories")
