"""messages and turns that an edit has taken out of the history"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("branch", sa.Text()))
    op.add_column("messages", sa.Column("note", sa.Text()))
    op.add_column("turns", sa.Column("branch", sa.Text()))


def downgrade() -> None:
    op.drop_column("turns", "branch")
    op.drop_column("messages", "note")
    op.drop_column("messages", "branch")
