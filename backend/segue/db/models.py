"""All tables, and the unique indexes that settle races.

`seq` of a turn or message counts in its session; that of other rows is counted by PostgreSQL, and is 0 for those older
than the column, which their ids order. An id or a time never does: each is of the clock of one process.
`turn_seq` of a message is the seq of the message that opened its turn: `seq` orders arrival, `turn_seq` a history.
`gaps` counts the seqs below `next_seq` that are of no message in the history; null is not counted yet.
`result_bytes` counts all bytes of results a session ever stored, `stored_before` its value when a result was stored.
`opaque` of a message or a plan is what a provider wants back with its calls; nothing but a request to it has that.
`read_by` of a turn is the one that its message steered: it has become part of that one, and never ran.
`branch` of a turn or message is set if it is no longer in the history, `left_at` of a message says since when.
`note` is what the model is told with a message; one `by_program` is no word of the user's.
A `definition` is the digest of a tool's. A call that ran unasked names its `mandate_id`, and `covered` says then where
its values come from, by path; it was `granted` if that was for its session. `effect` of a call is what its tool was as
it started, null if it only reads and needed no yes, and `approval` says who said yes to it and how. A mandate with a
`plan_id` was remembered of a decision. Uses are counted in its row, of the day `used_on` in its time zone. `grants` is
the release's before: its rows are mirrored in `mandates` by a trigger of migration 0043, and it goes with the next.
`attachments` of a message are the files that it carries, as they were then.
`agent` of a turn is that of its session when it was first claimed. Its `run` says what its last run did when, and
its `timeline` which processes had it before.
`client_id` is what a client calls a session that it has not made here; another user may use the same.
`summary_references` are the lines of JSON that list the results of the turns in the summary.
`sealed` is encrypted, and opens for its owner and server only: tokens of users, secrets of clients.
`tool_choice` has the names of the tools that requests have, if there are more than they may have.
A schedule is due at `next_at`, and looked at by a process at `look_at`; its rule counts from `starts_at`. Its last
turn may still be run again `tries_left` times, null once that has been settled.
`summary_seq` is the `turn_seq` of the last turn in the summary, `summary_until` that of the last one it is to cover.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL, TSVECTOR

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _id() -> Text:
    return Text(collation="C")


def _time() -> DateTime:
    return DateTime(timezone=True)


def _json() -> JSONB:
    return JSONB(none_as_null=True)


def _seq() -> Column[int]:
    return Column("seq", BigInteger, Identity(), nullable=False)


def _session_key() -> ForeignKey:
    return ForeignKey("sessions.id", ondelete="CASCADE")


api_keys = Table(
    "api_keys",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text),
    Column("scopes", _json(), nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", _time(), nullable=False),
    Column("last_used_at", _time()),
    Column("revoked_at", _time()),
    Column("expires_at", _time()),
    Column("groups", _json(), nullable=False, server_default=text("'[]'")),
    Column("roles", _json(), nullable=False, server_default=text("'[]'")),
    Index("api_keys_owner_idx", "owner", "id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("title", Text),
    Column("language", Text),
    Column("time_zone", Text, nullable=False, server_default=text("'UTC'")),
    Column("metadata", _json(), nullable=False),
    Column("agent", Text, nullable=False, server_default=text("'segue'")),
    Column("archived", Boolean, nullable=False, server_default=text("false")),
    Column("pinned", Boolean, nullable=False, server_default=text("false")),
    Column("next_seq", BigInteger, nullable=False, server_default=text("1")),
    Column("gaps", BigInteger),
    Column("last_turn_id", _id()),
    Column("result_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("summary", Text),
    Column("summary_seq", BigInteger, nullable=False, server_default=text("0")),
    Column("summary_until", BigInteger),
    Column("summary_due_at", _time()),
    Column("summary_references", _json()),
    Column("summary_tries", Integer, nullable=False, server_default=text("0")),
    Column("tool_choice", _json()),
    Column("title_due_at", _time()),
    Column("created_at", _time(), nullable=False),
    Column("updated_at", _time(), nullable=False),
    Index("sessions_list_idx", "owner", "archived", "updated_at", "id"),
    Index("sessions_pinned_idx", "owner", "archived", "updated_at", "id", postgresql_where=text("pinned IS true")),
    Index("sessions_activity_idx", "updated_at"),
    Index("sessions_title_due_idx", "title_due_at", postgresql_where=text("title_due_at < 'infinity'")),
    Index("sessions_summary_due_idx", "summary_due_at", postgresql_where=text("summary_due_at IS NOT NULL")),
)

client_sessions = Table(
    "client_sessions",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("client_id", _id(), primary_key=True),
    Column("session_id", _id(), _session_key(), nullable=False),
    Index("client_sessions_session_id_idx", "session_id"),
)

turns = Table(
    "turns",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("request", _json(), nullable=False),
    Column("agent", Text),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("left_s", Float),
    Column("worker", Text),
    Column("lease_until", _time()),
    Column("report", _json()),
    Column("error", _json()),
    Column("error_extra", _json()),  # beside it: an older release reads no other names there
    Column("idempotency_key", Text),
    Column("body_hash", Text),
    Column("created_at", _time(), nullable=False),
    Column("queued_at", _time(), nullable=False, server_default=func.now()),
    Column("started_at", _time()),
    Column("finished_at", _time()),
    Column("cancel_requested_at", _time()),
    Column("facts_due_at", _time()),
    Column("branch", Text),
    Column("read_by", _id()),
    Column("timeline", _json()),
    Column("run", JSON(none_as_null=True)),  # as text: JSONB takes twice as much for it
    CheckConstraint("status IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="status"),
    Index("turns_session_id_seq_key", "session_id", "seq", unique=True),
    Index(
        "turns_idempotency_key_key",
        "session_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("turns_one_running_key", "session_id", unique=True, postgresql_where=text("status = 'running'")),
    Index("turns_open_idx", "session_id", "seq", postgresql_where=text("status IN ('queued', 'running')")),
    Index("turns_failed_idx", "session_id", "seq", postgresql_where=text("error IS NOT NULL")),
    Index("turns_failed_id_idx", "id", postgresql_where=text("error IS NOT NULL")),
    Index("turns_facts_due_idx", "facts_due_at", postgresql_where=text("facts_due_at IS NOT NULL")),
)

messages = Table(
    "messages",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("turn_id", _id(), ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("turn_seq", BigInteger, nullable=False),
    Column("role", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("tool_calls", _json()),
    Column("tool_call_id", _id()),
    Column("opaque", _json()),
    Column("cut_off", Boolean, nullable=False, server_default=text("false")),
    Column("branch", Text),
    Column("left_at", _time()),
    Column("note", Text),
    Column("attachments", _json()),
    Column("by_program", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", _time(), nullable=False),
    CheckConstraint("role IN ('user', 'assistant', 'tool')", name="role"),
    CheckConstraint("(role = 'tool') = (tool_call_id IS NOT NULL)", name="tool_call"),
    Index("messages_session_id_seq_key", "session_id", "seq", unique=True),
    # Without the seq within a turn: the messages of a turn share one entry.
    Index("messages_session_id_turn_seq_idx", "session_id", "turn_seq"),
    Index("messages_branch_idx", "session_id", "branch", "seq", postgresql_where=text("branch IS NOT NULL")),
    Index("messages_turn_id_idx", "turn_id"),
    Index("messages_tool_call_id_key", "tool_call_id", unique=True, postgresql_where=text("tool_call_id IS NOT NULL")),
)

feedback = Table(
    "feedback",
    metadata,
    Column("message_id", _id(), ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    _seq(),
    Column("rating", Text, nullable=False),
    Column("comment", Text),
    Column("created_at", _time(), nullable=False),
    CheckConstraint("rating IN ('up', 'down')", name="rating"),
    Index("feedback_seq_idx", "seq"),
)

stream_tokens = Table(
    "stream_tokens",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("turn_id", _id(), ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at", _time(), nullable=False),
    Index("stream_tokens_turn_id_idx", "turn_id"),
    Index("stream_tokens_expires_at_idx", "expires_at"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("origin_message_id", _id(), nullable=False),
    Column("goal", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("current_step", Integer, nullable=False),
    Column("steps", _json(), nullable=False),
    Column("granted_to", _id()),
    Column("granted_step", Integer),
    Column("taken_on_by", _id()),
    Column("tool_hash", Text),
    Column("asked_in", _id()),
    Column("blocked_tools", _json()),
    Column("made_with", _json()),
    Column("texts", _json(), nullable=False, server_default=text("'{}'")),
    Column("opaque", _json()),
    Column("answers", _json()),
    Column("reminded", Boolean, nullable=False, server_default=text("false")),
    Column("for_group", Text),
    Column("later_group", Text),
    Column("later_at", _time()),
    Column("decided_by", _json()),
    Column("created_at", _time(), nullable=False),
    Column("expires_at", _time(), nullable=False),
    CheckConstraint(
        "status IN ('active', 'waiting', 'completed', 'failed', 'cancelled', 'expired', 'superseded')", name="status"
    ),
    Index("plans_session_id_seq_idx", "session_id", "seq", "id"),
    Index("plans_one_open_key", "session_id", unique=True, postgresql_where=text("status IN ('active', 'waiting')")),
    Index("plans_for_group_idx", "for_group", "later_group", postgresql_where=text("for_group IS NOT NULL")),
    Index(
        "plans_decided_by_idx",
        "decided_by",
        postgresql_using="gin",
        postgresql_ops={"decided_by": "jsonb_path_ops"},
        postgresql_where=text("decided_by IS NOT NULL"),
    ),
)

grants = Table(
    "grants",
    metadata,
    Column("session_id", _id(), _session_key(), primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("definition", Text, nullable=False),
    Column("plan_id", _id(), nullable=False),
    Column("created_at", _time(), nullable=False),
)

mandates = Table(
    "mandates",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("owner", Text, nullable=False),
    Column("session_id", _id(), _session_key()),
    Column("agent", Text),
    Column("tool", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("args", _json(), nullable=False, server_default=text("'{}'")),
    Column("most_total", Integer),
    Column("most_per_day", Integer),
    Column("sum_path", Text),
    Column("most_sum", Numeric),
    Column("unattended", Boolean, nullable=False, server_default=text("false")),
    Column("valid_until", _time()),
    Column("time_zone", Text, nullable=False, server_default=text("'UTC'")),
    Column("plan_id", _id()),
    Column("created_at", _time(), nullable=False),
    Column("used_total", Integer, nullable=False, server_default=text("0")),
    Column("used_on", Date),
    Column("used_today", Integer, nullable=False, server_default=text("0")),
    Column("used_sum", Numeric, nullable=False, server_default=text("0")),
    Index("mandates_owner_idx", "owner", "tool"),
    Index("mandates_remembered_key", "session_id", "tool", unique=True, postgresql_where=text("plan_id IS NOT NULL")),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("turn_id", _id(), ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", _id(), ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("args", _json(), nullable=False),
    Column("status", Text, nullable=False),
    Column("summary", Text, nullable=False, server_default=text("''")),
    Column("preview", Text, nullable=False, server_default=text("''")),
    Column("identifiers", _json()),
    Column("size_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("plan_id", _id()),
    Column("step_id", Integer),
    Column("granted", Boolean, nullable=False, server_default=text("false")),
    Column("mandate_id", _id()),
    Column("covered", _json()),
    Column("effect", _json()),
    Column("approval", _json()),
    Column("settled_by", _id()),
    Column("started_at", _time(), nullable=False),
    Column("duration_ms", Integer),
    Column("expires_at", _time()),
    CheckConstraint("status IN ('running', 'succeeded', 'failed', 'unknown')", name="status"),
    Index("tool_calls_session_id_seq_idx", "session_id", "seq", "id"),
    Index("tool_calls_turn_id_idx", "turn_id"),
    Index("tool_calls_message_id_idx", "message_id"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("session_id", _id(), primary_key=True),  # stays when the session is deleted
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("tool_call_id", _id(), nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("signature", Text),
    Column("signed_by", Text),
    Index("receipts_tool_call_id_idx", "tool_call_id"),
)

receipt_contents = Table(
    "receipt_contents",
    metadata,
    Column("session_id", _id(), _session_key(), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("salt", Text, nullable=False),
    Column("content", Text, nullable=False),  # as text: its hash is of what it says to the letter
)

tool_results = Table(
    "tool_results",
    metadata,
    Column("tool_call_id", _id(), ForeignKey("tool_calls.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("expires_at", _time(), nullable=False),
    Column("session_id", _id(), _session_key()),
    Column("stored_before", BigInteger),
    CheckConstraint("kind IN ('json', 'text')", name="kind"),
    Index("tool_results_expires_at_idx", "expires_at"),
    Index("tool_results_quota_idx", "session_id", "stored_before"),
)

attachments = Table(
    "attachments",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("name", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("summary", Text, nullable=False),
    Column("identifiers", _json()),
    Column("text", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("created_at", _time(), nullable=False),
    Index("attachments_session_id_seq_idx", "session_id", "seq", "id"),
)

tool_states = Table(
    "tool_states",
    metadata,
    Column("session_id", _id(), _session_key(), primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("health", _json(), nullable=False),
    Column("updated_at", _time(), nullable=False),
    Index("tool_states_tool_status_idx", "tool", "status"),
    Index("tool_states_not_available_idx", "session_id", "tool", postgresql_where=text("status <> 'available'")),
)

tool_state_changes = Table(
    "tool_state_changes",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("session_id", _id(), _session_key(), nullable=False),
    Column("tool", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("reason", Text),
    Column("reason_code", Text),
    Column("turn_id", _id()),
    Column("at", _time(), nullable=False),
    Index("tool_state_changes_session_id_seq_idx", "session_id", "seq", "id"),
    Index("tool_state_changes_at_idx", "at"),
)

tool_definitions = Table(
    "tool_definitions",
    metadata,
    Column("tool", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("source", Text, nullable=False),
    _seq(),
    Column("definition", _json(), nullable=False),
    Column("since", _time(), nullable=False),
    Index("tool_definitions_source_seq_idx", "source", "seq"),
)

tool_holds = Table(
    "tool_holds",
    metadata,
    Column("tool", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("since", _time(), nullable=False),
    Column("until", _time()),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, Identity(), primary_key=True),
    Column("at", _time(), nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("session_id", _id()),  # stays when the session is deleted
    Column("turn_id", _id()),
    Column("tool", Text),
    Column("details", _json(), nullable=False),
    Column("request_id", Text),
)

webhook_events = Table(
    "webhook_events",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("session_id", _id(), _session_key()),
    Column("type", Text, nullable=False),
    Column("data", _json(), nullable=False),
    Column("created_at", _time(), nullable=False),
    Column("due_at", _time(), nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("failure", Text),
    Column("failed_at", _time()),
    Column("leased_until", _time()),
    Index("webhook_events_seq_idx", "seq"),
    Index("webhook_events_due_at_idx", "due_at"),
    Index("webhook_events_session_id_seq_idx", "session_id", "seq"),
)

memories = Table(
    "memories",
    metadata,
    Column("id", _id(), primary_key=True),
    _seq(),
    Column("owner", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("importance", SmallInteger, nullable=False),
    Column("session_id", _id()),  # stays when the session is deleted
    Column("message_id", _id(), ForeignKey("messages.id", ondelete="SET NULL")),
    # Erasing a fact erases the facts that it replaced.
    Column("superseded_by", _id(), ForeignKey("memories.id", ondelete="CASCADE")),
    Column("search", TSVECTOR, nullable=False),
    Column("embedding", ARRAY(REAL)),
    Column("embedding_model", Text),
    Column("created_at", _time(), nullable=False),
    Column("last_used_at", _time()),
    CheckConstraint("kind IN ('fact', 'preference', 'personal_info', 'contact', 'project')", name="kind"),
    Index("memories_owner_seq_idx", "owner", "seq", "id", postgresql_where=text("superseded_by IS NULL")),
    Index(
        "memories_told_once_key", "owner", "content_hash", unique=True, postgresql_where=text("superseded_by IS NULL")
    ),
    Index("memories_embedding_model_idx", "embedding_model", postgresql_where=text("superseded_by IS NULL")),
    Index("memories_session_id_idx", "session_id", postgresql_where=text("session_id IS NOT NULL")),
    Index("memories_message_id_idx", "message_id", postgresql_where=text("message_id IS NOT NULL")),
    Index("memories_superseded_by_idx", "superseded_by", postgresql_where=text("superseded_by IS NOT NULL")),
)

mcp_logins = Table(
    "mcp_logins",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("id", _id(), nullable=False),
    Column("version", Integer, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("scope", Text),
    Column("created_at", _time(), nullable=False),
    Column("expires_at", _time()),
    Column("refreshing_until", _time()),
)

mcp_login_attempts = Table(
    "mcp_login_attempts",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("expires_at", _time(), nullable=False),
    Index("mcp_login_attempts_owner_idx", "owner", "server"),
)

mcp_clients = Table(
    "mcp_clients",
    metadata,
    Column("server", Text, primary_key=True),
    Column("issuer", Text, primary_key=True),
    Column("redirect_uri", Text, primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("created_at", _time(), nullable=False),
)

mcp_tool_lists = Table(
    "mcp_tool_lists",
    metadata,
    Column("server", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("tools", _json(), nullable=False),
    Column("listed_at", _time(), nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("model", Text, nullable=False),
    Column("session_id", _id(), ForeignKey("sessions.id", ondelete="SET NULL")),
    Column("calls", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("cost", Numeric),
    Column("unpriced_calls", BigInteger, nullable=False, server_default=text("0")),  # those that `cost` lacks
    Index("usage_owner_day_idx", "owner", "day"),
    Index("usage_day_idx", "day"),
    Index(
        "usage_session_key", "session_id", "day", "model", unique=True, postgresql_where=text("session_id IS NOT NULL")
    ),
)

user_groups = Table(  # that a user was in on a day, of those whose usage counts
    "user_groups",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("name", Text, primary_key=True),
    Index("user_groups_day_idx", "day", "name"),
)

user_limits = Table(
    "user_limits",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("requests_per_minute", BigInteger),
    Column("turns_per_minute", BigInteger),
    Column("concurrent_turns", BigInteger),
    Column("tokens_per_day", BigInteger),
    Column("cost_per_day", Numeric),
    Column("revision", BigInteger, Identity(), nullable=False),
)

reservations = Table(
    "reservations",
    metadata,
    Column("holder", _id(), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", Numeric, nullable=False),
    Column("until", _time(), nullable=False),
    Index("reservations_owner_idx", "owner"),
)


def _unattended() -> list[Column[Any]]:
    """What a schedule and a trigger have in common: whose it is, and what is said where."""
    return [
        _seq(),
        Column("owner", Text, nullable=False),
        Column("session_id", _id(), _session_key()),  # null: a new one each time
        Column("agent", Text, nullable=False),
        Column("groups", _json(), nullable=False),
        Column("message", Text, nullable=False),
    ]


schedules = Table(
    "schedules",
    metadata,
    Column("id", _id(), primary_key=True),
    *_unattended(),
    Column("at", _time()),
    Column("cron", Text),
    Column("rrule", Text),
    Column("time_zone", Text, nullable=False),
    Column("until", _time()),
    Column("missed", Text, nullable=False),
    Column("overlap", Text, nullable=False),
    Column("retries", SmallInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("starts_at", _time(), nullable=False),
    Column("next_at", _time()),
    Column("look_at", _time()),
    Column("last_at", _time()),
    Column("last_turn_id", _id()),
    Column("tries_left", SmallInteger),
    Column("created_at", _time(), nullable=False),
    CheckConstraint("status IN ('active', 'paused', 'ended')", name="status"),
    Index("schedules_owner_seq_idx", "owner", "seq", "id"),
    Index("schedules_session_id_idx", "session_id"),
    Index("schedules_look_at_idx", "look_at", postgresql_where=text("look_at IS NOT NULL")),
)

triggers = Table(
    "triggers",
    metadata,
    Column("id", _id(), primary_key=True),
    *_unattended(),
    Column("sealed", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", _time(), nullable=False),
    CheckConstraint("status IN ('active', 'paused')", name="status"),
    Index("triggers_owner_seq_idx", "owner", "seq", "id"),
    Index("triggers_session_id_idx", "session_id"),
)


def written(*values: str) -> tuple[ColumnElement[str], ...]:
    """Returns values as literals of a statement. With parameters PostgreSQL would not use the partial indexes above,
    because it plans a prepared statement for any value.
    """
    return tuple(literal_column(f"'{value}'", Text) for value in values)


QUEUED, RUNNING = OPEN_TURNS = written("queued", "running")
