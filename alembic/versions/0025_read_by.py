"""turns whose message another turn has read"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("read_by", sa.Text(collation="C")))


def downgrade() -> None:
    op.drop_column("turns", "read_by")
