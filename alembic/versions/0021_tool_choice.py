"""the tools that a session's requests have"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("tool_choice", postgresql.JSONB(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("sessions", "tool_choice")
