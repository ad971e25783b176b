"""the tools that a server with logins lists for a user, beside the user's login

A login of before, or one that the release before has made, has no list: the user's first call brings it.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0050"
down_revision: str | None = "0049"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ADDED = {"tools": "jsonb", "tools_digest": 'text COLLATE "C"', "tools_at": "timestamptz"}


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in ADDED.items())
    op.execute(f"ALTER TABLE mcp_logins {added}")


def downgrade() -> None:
    for name in ADDED:
        op.drop_column("mcp_logins", name)
