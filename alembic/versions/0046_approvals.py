"""plans that others than their user decide on: for which groups, and who has decided

Plans that there are wait for their users alone. The release before writes none of this.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0046"
down_revision: str | None = "0045"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INDEXES = {
    "plans_for_group_idx": "plans (for_group, later_group) WHERE for_group IS NOT NULL",
    "plans_decided_by_idx": "plans USING gin (decided_by jsonb_path_ops) WHERE decided_by IS NOT NULL",
}


def upgrade() -> None:
    op.add_column("plans", sa.Column("for_group", sa.Text()), if_not_exists=True)
    op.add_column("plans", sa.Column("later_group", sa.Text()), if_not_exists=True)
    op.add_column("plans", sa.Column("later_at", sa.DateTime(timezone=True)), if_not_exists=True)
    op.add_column("plans", sa.Column("decided_by", postgresql.JSONB(none_as_null=True)), if_not_exists=True)
    with op.get_context().autocommit_block():
        for name, on in INDEXES.items():
            # A try before this one may have left it unfinished.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {on}")


def downgrade() -> None:
    for name in ("for_group", "later_group", "later_at", "decided_by"):
        op.drop_column("plans", name)
