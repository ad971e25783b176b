"""tools that operators took out of all sessions, and what operators did"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0028"
down_revision: str | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "tool_holds",
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("tool", name="tool_holds_pkey"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C")),
        sa.Column("turn_id", sa.Text(collation="C")),
        sa.Column("tool", sa.Text()),
        sa.Column("details", postgresql.JSONB(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.PrimaryKeyConstraint("seq", name="audit_pkey"),
    )


def downgrade() -> None:
    op.drop_table("audit")
    op.drop_table("tool_holds")
