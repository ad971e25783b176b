"""feedback and stream tokens"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "feedback",
        sa.Column("message_id", sa.Text(collation="C"), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("rating", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("rating IN ('up', 'down')", name=op.f("feedback_rating_check")),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name=op.f("feedback_message_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("message_id", name=op.f("feedback_pkey")),
    )
    op.create_index("feedback_seq_idx", "feedback", ["seq"])
    op.create_table(
        "stream_tokens",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(collation="C"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("stream_tokens_turn_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("stream_tokens_pkey")),
    )
    op.create_index("stream_tokens_turn_id_idx", "stream_tokens", ["turn_id"])
    op.create_index("stream_tokens_expires_at_idx", "stream_tokens", ["expires_at"])


def downgrade() -> None:
    op.drop_table("stream_tokens")
    op.drop_table("feedback")
