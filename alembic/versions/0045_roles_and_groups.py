"""the roles that a user has with an API key, and the groups that users were in on a day

The roles are for rules of who must say yes: keys that there are have none; the release before makes keys without. The
groups are those whose usage and caps are counted.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0045"
down_revision: str | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    roles = sa.Column("roles", postgresql.JSONB(none_as_null=True), server_default=sa.text("'[]'"), nullable=False)
    op.add_column("api_keys", roles, if_not_exists=True)
    op.create_table(
        "user_groups",
        sa.Column("owner", sa.Text(), primary_key=True),
        sa.Column("day", sa.Date(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        if_not_exists=True,
    )
    op.create_index("user_groups_day_idx", "user_groups", ["day", "name"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("user_groups")
    op.drop_column("api_keys", "roles")
