"""the roles that a user has with an API key

For rules of who must say yes. Keys that there are have none; the release before makes keys without.
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


def downgrade() -> None:
    op.drop_column("api_keys", "roles")
