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


def upgrade() -> None:
    op.add_column("plans", sa.Column("for_group", sa.Text()), if_not_exists=True)
    op.add_column("plans", sa.Column("later_group", sa.Text()), if_not_exists=True)
    op.add_column("plans", sa.Column("later_at", sa.DateTime(timezone=True)), if_not_exists=True)
    op.add_column("plans", sa.Column("decided_by", postgresql.JSONB(none_as_null=True)), if_not_exists=True)
    with op.get_context().autocommit_block():
        op.create_index(
            "plans_for_group_idx",
            "plans",
            ["for_group", "later_group"],
            postgresql_where=sa.text("for_group IS NOT NULL"),
            postgresql_concurrently=True,
            if_not_exists=True,
        )
        op.create_index(
            "plans_decided_by_idx",
            "plans",
            ["decided_by"],
            postgresql_using="gin",
            postgresql_ops={"decided_by": "jsonb_path_ops"},
            postgresql_where=sa.text("decided_by IS NOT NULL"),
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def downgrade() -> None:
    for name in ("for_group", "later_group", "later_at", "decided_by"):
        op.drop_column("plans", name)
