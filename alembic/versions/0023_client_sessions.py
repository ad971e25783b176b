"""sessions by the ids that their clients call them"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "client_sessions",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("client_sessions_session_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("owner", "client_id", name=op.f("client_sessions_pkey")),
    )
    op.create_index("client_sessions_session_id_idx", "client_sessions", ["session_id"])


def downgrade() -> None:
    op.drop_table("client_sessions")
