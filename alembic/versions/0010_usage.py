"""usage"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=True),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("usage_session_id_fkey"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_pkey")),
    )
    op.create_index("usage_owner_day_idx", "usage", ["owner", "day"], unique=False)
    op.create_index(
        "usage_session_key",
        "usage",
        ["session_id", "day", "model"],
        unique=True,
        postgresql_where=sa.text("session_id IS NOT NULL"),
    )
    op.create_table(
        "reservations",
        sa.Column("holder", sa.Text(collation="C"), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("holder", "epoch", name=op.f("reservations_pkey")),
    )
    op.create_index("reservations_owner_idx", "reservations", ["owner"], unique=False)


def downgrade() -> None:
    op.drop_index("reservations_owner_idx", table_name="reservations")
    op.drop_table("reservations")
    op.drop_index("usage_session_key", table_name="usage", postgresql_where=sa.text("session_id IS NOT NULL"))
    op.drop_index("usage_owner_day_idx", table_name="usage")
    op.drop_table("usage")
