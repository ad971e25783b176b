"""logins of users at MCP servers, and the tools that these servers listed last"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0034"
down_revision: str | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "mcp_logins",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("refreshing_until", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("owner", "server", name="mcp_logins_pkey"),
    )
    op.create_table(
        "mcp_login_attempts",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="mcp_login_attempts_pkey"),
    )
    op.create_index("mcp_login_attempts_owner_idx", "mcp_login_attempts", ["owner", "server"])
    op.create_table(
        "mcp_clients",
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("redirect_uri", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("server", "issuer", "redirect_uri", name="mcp_clients_pkey"),
    )
    op.create_table(
        "mcp_tool_lists",
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("tools", postgresql.JSONB(), nullable=False),
        sa.Column("listed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("server", name="mcp_tool_lists_pkey"),
    )


def downgrade() -> None:
    for table in ("mcp_tool_lists", "mcp_clients", "mcp_login_attempts", "mcp_logins"):
        op.drop_table(table)
