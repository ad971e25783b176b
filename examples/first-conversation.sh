#!/usr/bin/env bash
# A first conversation: search a mailbox, say yes, read the mail. Start the service with `make run` first.
set -euo pipefail
SEGUE=${SEGUE:-http://127.0.0.1:${PORT:-8000}}

field() { # field PATH: prints a field of the JSON on standard input, as message.content
  python3 -c 'import functools, json, sys; print(functools.reduce(lambda value, key: value[key], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

say() { # say TEXT: sends a message and prints the answer
  printf '\n> %s\n\n' "$1"
  curl -sS --fail-with-body "$SEGUE/sessions/$session/chat" -H 'Content-Type: application/json' \
    -d "{\"message\": \"$1\"}" | field message.content
}

session=$(curl -sS --fail-with-body -X POST "$SEGUE/sessions" -H 'Content-Type: application/json' -d '{}' | field id)
say "Cerca le mail di Rossi"
say "sì, grazie"
