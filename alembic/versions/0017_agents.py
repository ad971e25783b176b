"""agents"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("agent", sa.Text(), server_default=sa.text("'segue'"), nullable=False))
    op.add_column("turns", sa.Column("agent", sa.Text(), nullable=True))
    op.add_column(
        "plans", sa.Column("made_with", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("plans", "made_with")
    op.drop_column("turns", "agent")
    op.drop_column("sessions", "agent")
