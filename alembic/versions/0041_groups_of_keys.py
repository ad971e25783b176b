"""the groups that a user is in with an API key

For agents that are for some groups. Keys that there are have none; the release before makes keys without.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0041"
down_revision: str | None = "0040"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    groups = sa.Column("groups", postgresql.JSONB(none_as_null=True), server_default=sa.text("'[]'"), nullable=False)
    op.add_column("api_keys", groups, if_not_exists=True)


def downgrade() -> None:
    op.drop_column("api_keys", "groups")
