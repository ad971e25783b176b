"""opaque parts"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table in ("messages", "plans"):
        op.add_column(table, sa.Column("opaque", postgresql.JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    for table in ("messages", "plans"):
        op.drop_column(table, "opaque")
