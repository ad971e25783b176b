"""a turn takes less room

- `run`: what `report` and `timeline` held of a turn's last run, in a shorter form. Rows that have it there can be read.
- Autovacuum looks at turns once a twentieth of them is dead, not a fifth: each turn leaves a dead row.
- The index of a session's history is without the seq within a turn, so that the messages of a turn share an entry. It
  is built beside reads and writes, before the one that it replaces is dropped.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0038"
down_revision: str | None = "0037"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LONG = ("messages_history_idx", "messages (session_id, turn_seq, seq)")
SHORT = ("messages_session_id_turn_seq_idx", "messages (session_id, turn_seq)")


def upgrade() -> None:
    op.execute("ALTER TABLE turns ADD COLUMN IF NOT EXISTS run JSON")
    op.execute("ALTER TABLE turns SET (autovacuum_vacuum_scale_factor = 0.05)")
    _replace(LONG, SHORT)


def downgrade() -> None:
    _replace(SHORT, LONG)
    op.execute("ALTER TABLE turns RESET (autovacuum_vacuum_scale_factor)")
    op.execute("ALTER TABLE turns DROP COLUMN run")


def _replace(old: tuple[str, str], new: tuple[str, str]) -> None:
    with op.get_context().autocommit_block():
        # A try before this one may have left it unfinished.
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {new[0]}")
        op.execute(f"CREATE INDEX CONCURRENTLY {new[0]} ON {new[1]}")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {old[0]}")
