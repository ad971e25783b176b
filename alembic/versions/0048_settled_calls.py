"""which check settled a call whose outcome was unknown"""

from collections.abc import Sequence

from alembic import op

revision: str = "0048"
down_revision: str | None = "0047"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute('ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS settled_by text COLLATE "C"')


def downgrade() -> None:
    op.drop_column("tool_calls", "settled_by")
