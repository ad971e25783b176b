"""the key that took the place of a rotated one

Keys that were rotated before, or by the release before, have none: they may be rotated once more.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0049"
down_revision: str | None = "0048"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute('ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS rotated_to text COLLATE "C"')


def downgrade() -> None:
    op.drop_column("api_keys", "rotated_to")
