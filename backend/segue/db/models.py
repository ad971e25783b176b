"""All tables, and the unique indexes that settle races.

`seq` of a turn or message counts in its session; that of other rows is counted by PostgreSQL, and is 0 for those older
than the column, which their ids order. An id or a time never does: each is of the clock of one process.
`sealed` is encrypted, and opens for its owner and server only: tokens of users, secrets of clients.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Date, DateTime, Float, Integer, LargeBinary, Numeric, SmallInteger, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL, TSVECTOR
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import JSON as JSON_TEXT

metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

ID = Text(collation="C")
TIME = DateTime(timezone=True)
JSON = JSONB(none_as_null=True)


def _table(name: str, *parts: SchemaItem) -> sa.Table:
    return sa.Table(name, metadata, *parts)


def _key(**types: Any) -> list[sa.Column[Any]]:
    """The columns of the primary key."""
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in types.items()]


def _needed(**types: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name, kind in types.items()]


def _filled(default: str, /, **types: Any) -> list[sa.Column[Any]]:
    """Needed, and `default`, which is SQL, if a statement says nothing."""
    return [sa.Column(name, kind, nullable=False, server_default=sa.text(default)) for name, kind in types.items()]


def _optional(**types: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name, kind in types.items()]


def _seq() -> sa.Column[int]:
    return sa.Column("seq", BigInteger, sa.Identity(), nullable=False)


def _id_and_seq() -> list[sa.Column[Any]]:
    return [*_key(id=ID), _seq()]


def _of(table: str, ondelete: str = "CASCADE") -> sa.ForeignKey:
    """In the place of a type: the id of a row there."""
    return sa.ForeignKey(f"{table}.id", ondelete=ondelete)


def _index(name: str, *columns: str, unique: bool = False, where: str | None = None) -> sa.Index:
    """`where` is SQL."""
    return sa.Index(name, *columns, unique=unique, postgresql_where=None if where is None else sa.text(where))


api_keys = _table(
    "api_keys",
    *_key(id=ID),
    *_needed(owner=Text, scopes=JSON, digest=Text, created_at=TIME),
    *_optional(name=Text, last_used_at=TIME, revoked_at=TIME, expires_at=TIME, rotated_to=ID),
    *_filled("'[]'", groups=JSON, roles=JSON),
    _index("api_keys_owner_idx", "owner", "id"),
)

# `gaps` counts the seqs below `next_seq` that are of no message in the history; null is not counted yet.
# `result_bytes` counts all bytes of results the session ever stored.
# `summary_seq` is the `turn_seq` of the last turn in the summary, `summary_until` that of the last one it is to cover.
# `summary_references` are the lines of JSON that list the results of the turns in the summary.
# `tool_choice` has the names of the tools that requests have, if there are more than they may have.
sessions = _table(
    "sessions",
    *_key(id=ID),
    *_needed(owner=Text, metadata=JSON, created_at=TIME, updated_at=TIME),
    *_optional(title=Text, language=Text, gaps=BigInteger, last_turn_id=ID, tool_choice=JSON, title_due_at=TIME),
    *_filled("'UTC'", time_zone=Text),
    *_filled("'segue'", agent=Text),
    *_filled("false", archived=Boolean, pinned=Boolean),
    *_filled("1", next_seq=BigInteger),
    *_filled("0", result_bytes=BigInteger, summary_seq=BigInteger, summary_tries=Integer),
    *_optional(summary=Text, summary_until=BigInteger, summary_due_at=TIME, summary_references=JSON),
    _index("sessions_list_idx", "owner", "archived", "updated_at", "id"),
    _index("sessions_pinned_idx", "owner", "archived", "updated_at", "id", where="pinned IS true"),
    _index("sessions_activity_idx", "updated_at"),
    _index("sessions_title_due_idx", "title_due_at", where="title_due_at < 'infinity'"),
    _index("sessions_summary_due_idx", "summary_due_at", where="summary_due_at IS NOT NULL"),
)

# `client_id` is what a client calls a session that it has not made here; another user may use the same.
client_sessions = _table(
    "client_sessions",
    *_key(owner=Text, client_id=ID),
    *_needed(session_id=_of("sessions")),
    _index("client_sessions_session_id_idx", "session_id"),
)

# `read_by` is the turn that its message steered: it has become part of that one, and never ran.
# `branch` of a turn or message is set if it is no longer in the history.
# `agent` is that of its session when it was first claimed. `run` says what its last run did when, and `timeline` which
# processes had it before.
turns = _table(
    "turns",
    *_key(id=ID),
    *_needed(session_id=_of("sessions"), seq=BigInteger, status=Text, request=JSON, created_at=TIME),
    *_filled("0", epoch=Integer, attempts=Integer),
    *_filled("now()", queued_at=TIME),
    *_optional(agent=Text, left_s=Float, worker=Text, lease_until=TIME, started_at=TIME, finished_at=TIME),
    *_optional(cancel_requested_at=TIME, idempotency_key=Text, body_hash=Text, branch=Text, read_by=ID),
    *_optional(report=JSON, error=JSON, error_extra=JSON),  # apart: an older release reads no other names in `error`
    *_optional(facts_due_at=TIME, timeline=JSON),
    *_optional(run=JSON_TEXT(none_as_null=True)),  # JSONB takes twice as much for it
    sa.CheckConstraint("status IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="status"),
    _index("turns_session_id_seq_key", "session_id", "seq", unique=True),
    _index(
        "turns_idempotency_key_key", "session_id", "idempotency_key", unique=True, where="idempotency_key IS NOT NULL"
    ),
    _index("turns_one_running_key", "session_id", unique=True, where="status = 'running'"),
    _index("turns_open_idx", "session_id", "seq", where="status IN ('queued', 'running')"),
    _index("turns_failed_idx", "session_id", "seq", where="error IS NOT NULL"),
    _index("turns_failed_id_idx", "id", where="error IS NOT NULL"),
    _index("turns_facts_due_idx", "facts_due_at", where="facts_due_at IS NOT NULL"),
)

# `turn_seq` is the seq of the message that opened its turn: `seq` orders arrival, `turn_seq` a history.
# `opaque` of a message or a plan is what a provider wants back with its calls; nothing but a request to it has that.
# `left_at` says since when it is in a branch. `note` is what the model is told with it; one `by_program` is no word of
# the user's. `attachments` are the files that it carries, as they were then.
messages = _table(
    "messages",
    *_key(id=ID),
    *_needed(session_id=_of("sessions"), turn_id=_of("turns")),
    *_needed(seq=BigInteger, turn_seq=BigInteger, role=Text, content=Text, created_at=TIME),
    *_optional(tool_calls=JSON, tool_call_id=ID, opaque=JSON, branch=Text, left_at=TIME, note=Text, attachments=JSON),
    *_filled("false", cut_off=Boolean, by_program=Boolean),
    sa.CheckConstraint("role IN ('user', 'assistant', 'tool')", name="role"),
    sa.CheckConstraint("(role = 'tool') = (tool_call_id IS NOT NULL)", name="tool_call"),
    _index("messages_session_id_seq_key", "session_id", "seq", unique=True),
    # Without the seq within a turn: the messages of a turn share one entry.
    _index("messages_session_id_turn_seq_idx", "session_id", "turn_seq"),
    _index("messages_branch_idx", "session_id", "branch", "seq", where="branch IS NOT NULL"),
    _index("messages_turn_id_idx", "turn_id"),
    _index("messages_tool_call_id_key", "tool_call_id", unique=True, where="tool_call_id IS NOT NULL"),
)

feedback = _table(
    "feedback",
    *_key(message_id=_of("messages")),
    _seq(),
    *_needed(rating=Text, created_at=TIME),
    *_optional(comment=Text),
    sa.CheckConstraint("rating IN ('up', 'down')", name="rating"),
    _index("feedback_seq_idx", "seq"),
)

stream_tokens = _table(
    "stream_tokens",
    *_key(digest=Text),
    *_needed(turn_id=_of("turns"), owner=Text, expires_at=TIME),
    _index("stream_tokens_turn_id_idx", "turn_id"),
    _index("stream_tokens_expires_at_idx", "expires_at"),
)

plans = _table(
    "plans",
    *_id_and_seq(),
    *_needed(session_id=_of("sessions"), created_at=TIME, expires_at=TIME),
    *_needed(origin_message_id=ID, goal=Text, version=Integer, status=Text, current_step=Integer, steps=JSON),
    *_optional(granted_to=ID, granted_step=Integer, taken_on_by=ID, asked_in=ID, decided_by=JSON, answers=JSON),
    *_optional(tool_hash=Text, blocked_tools=JSON, made_with=JSON, opaque=JSON),
    *_optional(for_group=Text, later_group=Text, later_at=TIME),
    *_filled("'{}'", texts=JSON),
    *_filled("false", reminded=Boolean),
    sa.CheckConstraint(
        "status IN ('active', 'waiting', 'completed', 'failed', 'cancelled', 'expired', 'superseded')", name="status"
    ),
    _index("plans_session_id_seq_idx", "session_id", "seq", "id"),
    _index("plans_one_open_key", "session_id", unique=True, where="status IN ('active', 'waiting')"),
    _index("plans_for_group_idx", "for_group", "later_group", where="for_group IS NOT NULL"),
    sa.Index(
        "plans_decided_by_idx",
        "decided_by",
        postgresql_using="gin",
        postgresql_ops={"decided_by": "jsonb_path_ops"},
        postgresql_where=sa.text("decided_by IS NOT NULL"),
    ),
)

# The release's before: its rows are mirrored in `mandates` by a trigger of migration 0043, and it goes with the next.
grants = _table(
    "grants", *_key(session_id=_of("sessions"), tool=Text), *_needed(definition=Text, plan_id=ID, created_at=TIME)
)

# A `definition` is the digest of a tool's. A mandate with a `plan_id` was remembered of a decision. Uses are counted in
# its row, of the day `used_on` in its time zone.
mandates = _table(
    "mandates",
    *_id_and_seq(),
    *_needed(owner=Text, tool=Text, definition=Text, created_at=TIME),
    *_filled("'{}'", args=JSON),
    *_filled("'UTC'", time_zone=Text),
    *_filled("false", unattended=Boolean),
    *_filled("0", used_total=Integer, used_today=Integer, used_sum=Numeric),
    *_optional(session_id=_of("sessions"), agent=Text, plan_id=ID, valid_until=TIME, used_on=Date),
    *_optional(most_total=Integer, most_per_day=Integer, most_sum=Numeric, sum_path=Text),
    _index("mandates_owner_idx", "owner", "tool"),
    _index("mandates_remembered_key", "session_id", "tool", unique=True, where="plan_id IS NOT NULL"),
)

# One that ran unasked names its `mandate_id`, and `covered` says then where its values come from, by path; it was
# `granted` if that was for its session. `effect` is what its tool was as it started, null if it only reads and needed
# no yes, and `approval` says who said yes to it and how.
tool_calls = _table(
    "tool_calls",
    *_id_and_seq(),
    *_needed(session_id=_of("sessions"), turn_id=_of("turns"), message_id=_of("messages")),
    *_needed(tool_name=Text, args=JSON, status=Text, started_at=TIME),
    *_filled("''", summary=Text, preview=Text),
    *_filled("0", size_bytes=BigInteger),
    *_filled("false", granted=Boolean),
    *_optional(identifiers=JSON, error=Text, plan_id=ID, step_id=Integer, mandate_id=ID, covered=JSON, effect=JSON),
    *_optional(approval=JSON, settled_by=ID, duration_ms=Integer, expires_at=TIME),
    sa.CheckConstraint("status IN ('running', 'succeeded', 'failed', 'unknown')", name="status"),
    _index("tool_calls_session_id_seq_idx", "session_id", "seq", "id"),
    _index("tool_calls_turn_id_idx", "turn_id"),
    _index("tool_calls_message_id_idx", "message_id"),
)

receipts = _table(  # stay, without their contents, when their user is erased, and go with their session
    "receipts",
    *_key(session_id=ID, number=Integer),
    *_needed(tool_call_id=ID, content_hash=Text, previous=Text, hash=Text),
    *_optional(signature=Text, signed_by=Text),
    _index("receipts_tool_call_id_idx", "tool_call_id"),
)

receipt_contents = _table(
    "receipt_contents",
    *_key(session_id=_of("sessions"), number=Integer),
    *_needed(salt=Text, content=Text),  # as text: its hash is of what it says to the letter
)

tool_results = _table(  # `stored_before` is the value of the session's `result_bytes` when the result was stored
    "tool_results",
    *_key(tool_call_id=_of("tool_calls")),
    *_needed(kind=Text, payload=Text, expires_at=TIME),
    *_optional(session_id=_of("sessions"), stored_before=BigInteger),
    sa.CheckConstraint("kind IN ('json', 'text')", name="kind"),
    _index("tool_results_expires_at_idx", "expires_at"),
    _index("tool_results_quota_idx", "session_id", "stored_before"),
)

attachments = _table(
    "attachments",
    *_id_and_seq(),
    *_needed(session_id=_of("sessions")),
    *_needed(name=Text, media_type=Text, size_bytes=BigInteger, summary=Text, text=Text, content=LargeBinary),
    *_needed(created_at=TIME),
    *_optional(identifiers=JSON),
    _index("attachments_session_id_seq_idx", "session_id", "seq", "id"),
)

tool_states = _table(
    "tool_states",
    *_key(session_id=_of("sessions"), tool=Text),
    *_needed(version=Integer, status=Text, health=JSON, updated_at=TIME),
    _index("tool_states_tool_status_idx", "tool", "status"),
    _index("tool_states_not_available_idx", "session_id", "tool", where="status <> 'available'"),
)

tool_state_changes = _table(
    "tool_state_changes",
    *_id_and_seq(),
    *_needed(session_id=_of("sessions"), tool=Text, before=Text, after=Text, at=TIME),
    *_optional(reason=Text, reason_code=Text, turn_id=ID),
    _index("tool_state_changes_session_id_seq_idx", "session_id", "seq", "id"),
    _index("tool_state_changes_at_idx", "at"),
)

tool_definitions = _table(
    "tool_definitions",
    *_key(tool=Text, digest=Text),
    _seq(),
    *_needed(source=Text, definition=JSON, since=TIME),
    _index("tool_definitions_source_seq_idx", "source", "seq"),
)

tool_holds = _table(
    "tool_holds", *_key(tool=Text), *_needed(status=Text, since=TIME), *_optional(reason=Text, until=TIME)
)

audit = _table(
    "audit",
    sa.Column("seq", BigInteger, sa.Identity(), primary_key=True),
    *_needed(at=TIME, actor=Text, action=Text, details=JSON),
    *_optional(session_id=ID, turn_id=ID, tool=Text, request_id=Text),  # the first stays when the session is deleted
)

webhook_events = _table(
    "webhook_events",
    *_id_and_seq(),
    *_needed(type=Text, data=JSON, created_at=TIME, due_at=TIME),
    *_filled("0", tries=Integer),
    *_optional(session_id=_of("sessions"), failure=Text, failed_at=TIME, leased_until=TIME),
    _index("webhook_events_seq_idx", "seq"),
    _index("webhook_events_due_at_idx", "due_at"),
    _index("webhook_events_session_id_seq_idx", "session_id", "seq"),
)

memories = _table(
    "memories",
    *_id_and_seq(),
    *_needed(owner=Text, kind=Text, content=Text, content_hash=Text, importance=SmallInteger, search=TSVECTOR),
    *_needed(created_at=TIME),
    *_optional(message_id=_of("messages", "SET NULL"), last_used_at=TIME, embedding=ARRAY(REAL), embedding_model=Text),
    *_optional(session_id=ID),  # stays when the session is deleted
    sa.Column("superseded_by", ID, _of("memories")),  # erasing a fact erases the facts that it replaced
    sa.CheckConstraint("kind IN ('fact', 'preference', 'personal_info', 'contact', 'project')", name="kind"),
    _index("memories_owner_seq_idx", "owner", "seq", "id", where="superseded_by IS NULL"),
    _index("memories_told_once_key", "owner", "content_hash", unique=True, where="superseded_by IS NULL"),
    _index("memories_embedding_model_idx", "embedding_model", where="superseded_by IS NULL"),
    _index("memories_session_id_idx", "session_id", where="session_id IS NOT NULL"),
    _index("memories_message_id_idx", "message_id", where="message_id IS NOT NULL"),
    _index("memories_superseded_by_idx", "superseded_by", where="superseded_by IS NOT NULL"),
)

mcp_logins = _table(
    "mcp_logins",
    *_key(owner=Text, server=Text),
    *_needed(id=ID, version=Integer, sealed=Text, created_at=TIME),
    *_optional(scope=Text, expires_at=TIME, refreshing_until=TIME, tools=JSON, tools_digest=Text, tools_at=TIME),
)

mcp_login_attempts = _table(
    "mcp_login_attempts",
    *_key(digest=Text),
    *_needed(owner=Text, server=Text, sealed=Text, expires_at=TIME),
    _index("mcp_login_attempts_owner_idx", "owner", "server"),
)

mcp_clients = _table(
    "mcp_clients", *_key(server=Text, issuer=Text, redirect_uri=Text), *_needed(sealed=Text, created_at=TIME)
)

mcp_tool_lists = _table("mcp_tool_lists", *_key(server=Text), *_needed(url=Text, tools=JSON, listed_at=TIME))

usage = _table(
    "usage",
    sa.Column("id", BigInteger, sa.Identity(), primary_key=True),
    *_needed(owner=Text, day=Date, model=Text, estimated=Boolean, calls=BigInteger, input_tokens=BigInteger),
    *_needed(cached_tokens=BigInteger, output_tokens=BigInteger, reasoning_tokens=BigInteger),
    *_optional(session_id=_of("sessions", "SET NULL"), cost=Numeric),
    *_filled("0", unpriced_calls=BigInteger),  # those that `cost` lacks
    _index("usage_owner_day_idx", "owner", "day"),
    _index("usage_day_idx", "day"),
    _index("usage_session_key", "session_id", "day", "model", unique=True, where="session_id IS NOT NULL"),
)

user_groups = _table(  # that a user was in on a day, of those whose usage counts
    "user_groups", *_key(owner=Text, day=Date, name=Text), _index("user_groups_day_idx", "day", "name")
)

user_limits = _table(
    "user_limits",
    *_key(owner=Text),
    *_optional(requests_per_minute=BigInteger, turns_per_minute=BigInteger, concurrent_turns=BigInteger),
    *_optional(tokens_per_day=BigInteger, cost_per_day=Numeric),
    sa.Column("revision", BigInteger, sa.Identity(), nullable=False),
)

reservations = _table(
    "reservations",
    *_key(holder=ID, epoch=Integer),
    *_needed(owner=Text, day=Date, tokens=BigInteger, cost=Numeric, until=TIME),
    _index("reservations_owner_idx", "owner"),
)


def _unattended() -> list[sa.Column[Any]]:
    """What a schedule and a trigger have in common: whose it is, and what is said where."""
    session = sa.Column("session_id", ID, _of("sessions"))  # null: a new one each time
    return [_seq(), session, *_needed(owner=Text, agent=Text, groups=JSON, message=Text, status=Text, created_at=TIME)]


# It is due at `next_at`, and looked at by a process at `look_at`; its rule counts from `starts_at`. Its last turn may
# still be run again `tries_left` times, null once that has been settled.
schedules = _table(
    "schedules",
    *_key(id=ID),
    *_unattended(),
    *_needed(time_zone=Text, missed=Text, overlap=Text, retries=SmallInteger, made_by=Text, starts_at=TIME),
    *_optional(at=TIME, cron=Text, rrule=Text, until=TIME),
    *_optional(next_at=TIME, look_at=TIME, last_at=TIME, last_turn_id=ID, tries_left=SmallInteger),
    sa.CheckConstraint("status IN ('active', 'paused', 'ended')", name="status"),
    _index("schedules_owner_seq_idx", "owner", "seq", "id"),
    _index("schedules_session_id_idx", "session_id"),
    _index("schedules_look_at_idx", "look_at", where="look_at IS NOT NULL"),
)

triggers = _table(
    "triggers",
    *_key(id=ID),
    *_unattended(),
    *_needed(sealed=Text),
    sa.CheckConstraint("status IN ('active', 'paused')", name="status"),
    _index("triggers_owner_seq_idx", "owner", "seq", "id"),
    _index("triggers_session_id_idx", "session_id"),
)


def written(*values: str) -> tuple[sa.ColumnElement[str], ...]:
    """Returns literals: a statement that is planned for any parameter would not use the partial indexes above."""
    return tuple(sa.literal_column(f"'{value}'", Text) for value in values)


QUEUED, RUNNING = OPEN_TURNS = written("queued", "running")
