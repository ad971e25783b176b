"""schedules, and triggers: what begins turns while the user is away

Two tables that the release before does not know.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0044"
down_revision: str | None = "0043"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _id() -> sa.Text:
    return sa.Text(collation="C")


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def _of_both() -> list[sa.Column[object]]:
    """Returns what one with a session and one that makes sessions have in common."""
    return [
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("session_id", _id(), sa.ForeignKey("sessions.id", ondelete="CASCADE")),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("groups", postgresql.JSONB(none_as_null=True), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", _id(), primary_key=True),
        *_of_both(),
        sa.Column("at", _time()),
        sa.Column("cron", sa.Text()),
        sa.Column("rrule", sa.Text()),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("until", _time()),
        sa.Column("missed", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("retries", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("starts_at", _time(), nullable=False),
        sa.Column("next_at", _time()),
        sa.Column("look_at", _time()),
        sa.Column("last_at", _time()),
        sa.Column("last_turn_id", _id()),
        sa.Column("tries_left", sa.SmallInteger()),
        sa.Column("created_at", _time(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused', 'ended')", name="schedules_status_check"),
        if_not_exists=True,
    )
    op.create_index("schedules_owner_seq_idx", "schedules", ["owner", "seq", "id"], if_not_exists=True)
    op.create_index("schedules_session_id_idx", "schedules", ["session_id"], if_not_exists=True)
    op.create_index(
        "schedules_look_at_idx",
        "schedules",
        ["look_at"],
        postgresql_where=sa.text("look_at IS NOT NULL"),
        if_not_exists=True,
    )
    op.create_table(
        "triggers",
        sa.Column("id", _id(), primary_key=True),
        *_of_both(),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused')", name="triggers_status_check"),
        if_not_exists=True,
    )
    op.create_index("triggers_owner_seq_idx", "triggers", ["owner", "seq", "id"], if_not_exists=True)
    op.create_index("triggers_session_id_idx", "triggers", ["session_id"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("triggers")
    op.drop_table("schedules")
