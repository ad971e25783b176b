"""limits of one user, in the place of the settings"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0030"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "user_limits",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger()),
        sa.Column("turns_per_minute", sa.BigInteger()),
        sa.Column("concurrent_turns", sa.BigInteger()),
        sa.Column("tokens_per_day", sa.BigInteger()),
        sa.Column("cost_per_day", sa.Numeric()),
        sa.Column("revision", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="user_limits_pkey"),
    )


def downgrade() -> None:
    op.drop_table("user_limits")
