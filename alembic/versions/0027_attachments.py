"""files that users attach, and what messages carry of them"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "attachments",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("identifiers", postgresql.JSONB(none_as_null=True)),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("attachments_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("attachments_pkey")),
    )
    op.create_index("attachments_session_id_seq_idx", "attachments", ["session_id", "seq", "id"])
    # To compress what is compressed already takes PostgreSQL a second.
    op.execute("ALTER TABLE attachments ALTER COLUMN content SET STORAGE EXTERNAL")
    op.add_column("messages", sa.Column("attachments", postgresql.JSONB(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("messages", "attachments")
    op.drop_table("attachments")
