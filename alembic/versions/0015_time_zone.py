"""time zone"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # The release before went by UTC.
    op.add_column("sessions", sa.Column("time_zone", sa.Text(), server_default=sa.text("'UTC'"), nullable=False))


def downgrade() -> None:
    op.drop_column("sessions", "time_zone")
