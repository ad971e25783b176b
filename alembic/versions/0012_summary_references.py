"""summary references"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Null for a summary that the release before wrote: its results are listed again with the next one.
    op.add_column(
        "sessions",
        sa.Column("summary_references", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
    )


def downgrade() -> None:
    op.drop_column("sessions", "summary_references")
