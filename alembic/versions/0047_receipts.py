"""what calls may have changed and who said yes to them

Columns that the release before does not know and leaves null.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0047"
down_revision: str | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS effect jsonb, ADD COLUMN IF NOT EXISTS approval jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE tool_calls DROP COLUMN effect, DROP COLUMN approval")
