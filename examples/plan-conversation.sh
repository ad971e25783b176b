#!/usr/bin/env bash
# A plan of three steps: two run, the last waits for a yes. Start the service with `make run` first.
#
#   examples/plan-conversation.sh            both halves, one after the other, in Italian; `both en` in English
#   examples/plan-conversation.sh ask [en]   the first half: the plan waits; the last line is the session's id
#   examples/plan-conversation.sh reply ID "va bene, grazie"    the second half: now, after a restart, …
set -euo pipefail
SEGUE=${SEGUE:-http://127.0.0.1:${PORT:-8000}}

field() { # field PATH: prints a field of the JSON on standard input, as message.content
  python3 -c 'import functools, json, sys; print(functools.reduce(lambda value, key: value[key], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

say() { # say SESSION TEXT: sends a message, prints the answer and the status of the plan and its steps
  printf '\n> %s\n\n' "$2"
  local answer
  answer=$(curl -sS --fail-with-body "$SEGUE/sessions/$1/chat" -H 'Content-Type: application/json' -d "{\"message\": \"$2\"}")
  field message.content <<<"$answer"
  printf '\n[plan: %s]\n' "$(python3 -c 'import json, sys; plan = json.load(sys.stdin)["plan"]; print(plan["status"] + ", " + ", ".join(step["status"] for step in plan["steps"]) if plan else "left as it is")' <<<"$answer")"
}

case "${2:-it}" in
  en) request="Find the mails from Rossi, then read the newest and finally write a reply" yes="yes please" ;;
  *) request="Cerca le mail di Rossi, poi leggi la più recente e infine scrivi una risposta" yes="va bene, grazie" ;;
esac

ask() {
  session=$(curl -sS --fail-with-body -X POST "$SEGUE/sessions" -H 'Content-Type: application/json' -d '{}' | field id)
  say "$session" "$request"
}

case "${1:-both}" in
  ask) ask; echo "$session" ;;
  reply) say "$2" "$3" ;;
  both) ask; say "$session" "$yes" ;;
esac
