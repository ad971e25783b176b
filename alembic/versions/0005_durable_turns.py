"""durable turns"""

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("taken_on_by", sa.Text(collation="C"), nullable=True))
    op.add_column("turns", sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("turns", sa.Column("left_s", sa.Float(), nullable=True))
    op.add_column("turns", sa.Column("idempotency_key", sa.Text(), nullable=True))
    op.add_column("turns", sa.Column("body_hash", sa.Text(), nullable=True))
    op.add_column(
        "turns", sa.Column("queued_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)
    )
    op.add_column("turns", sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "turns_idempotency_key_key",
        "turns",
        ["session_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "turns_idempotency_key_key", table_name="turns", postgresql_where=sa.text("idempotency_key IS NOT NULL")
    )
    op.drop_column("turns", "cancel_requested_at")
    op.drop_column("turns", "queued_at")
    op.drop_column("turns", "body_hash")
    op.drop_column("turns", "idempotency_key")
    op.drop_column("turns", "left_s")
    op.drop_column("turns", "attempts")
    op.drop_column("plans", "taken_on_by")
