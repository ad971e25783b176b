#!/usr/bin/env bash
# How ops watch and control the tools with curl: the example mailbox goes down, is taken away, and comes back.
# Start the service with `make run` first.
set -euo pipefail
SEGUE=${SEGUE:-http://127.0.0.1:${PORT:-8000}}
OFFLINE=${MAILBOX_OFFLINE:-$(dirname "$0")/mailbox/offline} # while this file exists, the mailbox is down
TOOL=mcp_search_emails
trap 'rm -f "$OFFLINE"' EXIT

get() { curl -sS --fail-with-body "$SEGUE$1"; }
send() { # send METHOD PATH BODY
  curl -sS --fail-with-body -X "$1" "$SEGUE$2" -H 'Content-Type: application/json' -d "$3"
}

show() { # show EXPRESSION: prints a Python expression of the JSON on standard input, as 'value["id"]'
  python3 -c 'import json, sys; value = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

new_session() { send POST /sessions '{}' | show 'value["id"]'; }
say() { send POST "/sessions/$1/chat" "{\"message\": \"$2\"}" | show 'value["message"]["content"]'; }
state() { # state SESSION: prints the tool's state in a session
  get "/sessions/$1/tool-states" |
    show "'{status}, available: {available}, failures in a row: {consecutive_failures}, {reason}'.format(**value['tool_states']['$TOOL'])"
}
fleet() { # prints the tool's state for all sessions, and how many sessions have which status
  get "/tool-states?tool=$TOOL" |
    show "'available: {0}, {1}, sessions: {2}'.format(*(lambda tool: (tool['fleet']['available'], tool['fleet']['reason'], tool['sessions']))(value['tools']['$TOOL']))"
}

printf '\n== The tools there are\n'
get /tools | show '"\n".join("{name} ({effect}, {source})".format(**tool) for tool in value["items"])'

session=$(new_session)
printf '\n== %s in a new session\n' "$TOOL"
state "$session"

printf '\n== The mail server goes down; after three failures in a row the tool is out\n'
touch "$OFFLINE"
for _ in 1 2 3; do say "$session" "Cerca le mail di Rossi" >/dev/null; done
state "$session"

printf '\n== Two more sessions, and it is out for everyone\n'
for _ in 1 2; do
  another=$(new_session)
  for _ in 1 2 3; do say "$another" "Cerca le mail di Rossi" >/dev/null; done
done
fleet
get "/tool-states?status=failed&tool=$TOOL" |
  show '"\n".join("{session_id}: {reason_code}, to be tried again at {retry_at}".format(**item) for item in value["items"])'

printf '\n== Taken into maintenance by hand: nothing but a hand lifts it\n'
send PUT "/sessions/$session/tool-states/$TOOL" '{"status": "maintenance", "reason": "The mail server is being moved."}' >/dev/null
state "$session"

printf '\n== The mail server is back; everyone and this session may go on\n'
rm -f "$OFFLINE"
send POST /tool-states/reset "{\"tool_name\": \"$TOOL\", \"session_id\": \"$session\"}" >/dev/null
state "$session"
fleet
printf '> Cerca le mail di Rossi\n'
say "$session" "Cerca le mail di Rossi" | sed -n 1,2p

printf '\n== What happened, newest first\n'
get "/sessions/$session/tool-states/history?tool=$TOOL" |
  show '"\n".join("{at}  {0} → {to}  {reason_code}  {1}".format(item["from"], item["turn_id"] or "a person", **item) for item in value["items"])'
