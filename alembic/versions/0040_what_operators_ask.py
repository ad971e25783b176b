"""what operators ask: the known part of a cost, the usage of a day, which webhook events are on their way

- `usage.unpriced_calls`: how many of a row's calls its cost lacks. A row without a cost lacks all of them.
- `usage_day_idx`: what all users have spent on a day, for caps of the whole service. Built beside reads and writes.
- `webhook_events.leased_until`: until when a process has an event that it is sending.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0040"
down_revision: str | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE usage ADD COLUMN IF NOT EXISTS unpriced_calls BIGINT NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE webhook_events ADD COLUMN IF NOT EXISTS leased_until TIMESTAMP WITH TIME ZONE")
    with op.get_context().autocommit_block():
        # A try before this one may have left it unfinished.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS usage_day_idx")
        op.execute("CREATE INDEX CONCURRENTLY usage_day_idx ON usage (day)")


def downgrade() -> None:
    op.execute("DROP INDEX usage_day_idx")
    op.execute("ALTER TABLE webhook_events DROP COLUMN leased_until")
    op.execute("ALTER TABLE usage DROP COLUMN unpriced_calls")
