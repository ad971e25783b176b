"""what the call of a step asked of the user, and the answers"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("answers", postgresql.JSONB()))


def downgrade() -> None:
    op.drop_column("plans", "answers")
