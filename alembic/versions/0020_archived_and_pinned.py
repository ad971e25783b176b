"""archived and pinned"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for name in ("archived", "pinned"):
        op.add_column("sessions", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.text("false")))


def downgrade() -> None:
    for name in ("pinned", "archived"):
        op.drop_column("sessions", name)
