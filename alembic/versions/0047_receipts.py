"""what calls may have changed, who said yes to them, and receipts of both

Columns that the release before does not know and leaves null, and two tables. `receipts` has no key to sessions: it has
no words, and is what is left when a session is deleted. What it says goes with the session.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0047"
down_revision: str | None = "0046"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _id() -> sa.Text:
    return sa.Text(collation="C")


def upgrade() -> None:
    op.execute("ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS effect jsonb, ADD COLUMN IF NOT EXISTS approval jsonb")
    op.create_table(
        "receipts",
        sa.Column("session_id", _id(), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("tool_call_id", _id(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("signature", sa.Text()),
        sa.Column("signed_by", sa.Text()),
        if_not_exists=True,
    )
    op.create_index("receipts_tool_call_id_idx", "receipts", ["tool_call_id"], if_not_exists=True)
    op.create_table(
        "receipt_contents",
        sa.Column("session_id", _id(), sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("salt", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("receipt_contents")
    op.drop_table("receipts")
    op.execute("ALTER TABLE tool_calls DROP COLUMN effect, DROP COLUMN approval")
