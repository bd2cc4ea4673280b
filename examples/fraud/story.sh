#!/usr/bin/env bash
# From a plan to books that anybody can check: twenty banks, simulated on Flower, tune a fraud detector.
#
#   TACIT_DATA=/folder/with/creditcard.csv ./story.sh [FOLDER]      default: ./banks
#   CLIENTS=20 CANDIDATES=16 EPSILON=3                              may be set
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-banks}
clients=${CLIENTS:-20} candidates=${CANDIDATES:-16} epsilon=${EPSILON:-3}
if [ -e "$folder" ]; then
  echo "$folder exists already; allowed is a new folder: ./story.sh OTHER-FOLDER" >&2
  exit 2
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export TACIT_HOME=$folder/server

echo "1. What would it cost, and can it work?"
tacit plan --clients "$clients" --candidates "$candidates" --votes 3 --epsilon "$epsilon" --delta 1e-5

echo "2. Every bank makes a key; the public ones become the roster, which all banks hold"
for ((i = 0; i < clients; i++)); do
  members+=("$folder/run/members/$(printf 'client-%04d' "$i")")
  tacit roster key "${members[i]}" >/dev/null
done
tacit roster make "$folder/roster.toml" "${members[@]}" --federation banks --dropout 0.1 \
  --epsilon "$epsilon" --delta 1e-5
for member in "${members[@]}"; do
  cp "$folder/roster.toml" "$member/"
  tacit ledger create "$member/ledger.sqlite" --federation banks --epsilon "$epsilon" --delta 1e-5 >/dev/null
done
tacit roster check "${members[0]}"

echo "3. They vote, and train with the winner; the report is written"
tacit tune "$here/plan.toml" --set "federation.clients=$clients" --set "search.candidates=$candidates" \
  --set "privacy.epsilon=$epsilon" --out "$folder/run"

echo "4. An auditor compares the server's ledger with what the banks signed, and adds up their sealed votes again"
tacit ledger verify "$TACIT_HOME/ledgers/banks.sqlite" --receipts "$folder/run/members" --roster "$folder/roster.toml" \
  --transcript "$folder/run/transcripts"

echo "5. The budget is spent: the same question again is refused before any bank is asked"
if tacit tune "$here/plan.toml" --set "federation.clients=$clients" --set "search.candidates=$candidates" \
  --set "privacy.epsilon=$epsilon" --set 'federation.engine="local"' --out "$folder/again"; then
  echo "it was not refused" >&2
  exit 1
fi
echo "Open $folder/run/report.html"
