#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A quick look at a running server: one chat, then four at the same time, at temperature 0.8.
#   examples/smoke.sh [URL] [MODEL]        default: http://127.0.0.1:8000 and the model that it lists first
# QUIRE_API_KEY is sent as the key when it is set. Exits with 1 when an answer is missing.
set -eu
url=${1:-http://127.0.0.1:8000}
key=${QUIRE_API_KEY:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

ask() { # ask NAME PROMPT MAX_TOKENS: the whole answer into $folder/NAME
  curl -fsS "$url/v1/chat/completions" -H 'Content-Type: application/json' ${key:+-H "Authorization: Bearer $key"} \
    -d "{\"model\":\"$model\",\"messages\":[{\"role\":\"user\",\"content\":\"$2\"}],\"max_tokens\":$3,\"temperature\":0.8}" >"$folder/$1"
}
show() { # the text of the answer, as JSON writes it
  grep -o '"content":"\([^"\\]\|\\.\)*"' "$folder/$1" | head -n 1 | cut -c11-
}

model=${2:-$(curl -fsS "$url/v1/models" ${key:+-H "Authorization: Bearer $key"} | grep -o '"id":"[^"]*"' | head -n 1 | cut -d'"' -f4)}
echo "$url serves $model"

echo "===== one"
ask one "Write a 2-sentence apple story." 512
show one

for i in 1 2 3 4; do
  ask "req$i" "Write a 2-sentence apple story ($i)." 256 &
  eval "pid$i=\$!"
done
failed=0
for i in 1 2 3 4; do
  echo "===== req $i"
  eval "wait \$pid$i" || failed=1
  show "req$i" || failed=1
done
exit $failed
