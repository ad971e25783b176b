"""what lists the newest failed turns of all sessions without reading other turns

An index of turns that ended with an error. A turn that is answered is not in it. It is built beside reads and writes.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0039"
down_revision: str | None = "0038"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # A try before this one may have left it unfinished.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS turns_failed_id_idx")
        op.execute("CREATE INDEX CONCURRENTLY turns_failed_id_idx ON turns (id) WHERE error IS NOT NULL")


def downgrade() -> None:
    op.execute("DROP INDEX turns_failed_id_idx")
