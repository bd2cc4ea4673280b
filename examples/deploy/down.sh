#!/usr/bin/env bash
# Stop what up.sh started, with all its child processes; keys, ledgers and results stay.
#   ./down.sh [FOLDER]
set -euo pipefail
folder=${1:-deployment}
shopt -s nullglob
started=("$folder"/logs/*.pid)
if [ ${#started[@]} -eq 0 ]; then
  echo "Nothing that up.sh started is running in $folder."
  exit 0
fi
for file in "${started[@]}"; do
  kill -- "-$(cat "$file")" 2>/dev/null || true
  kill -CONT -- "-$(cat "$file")" 2>/dev/null || true # what is stopped does not hear that it should end
done
for file in "${started[@]}"; do
  group=$(cat "$file")
  for ((wait = 0; wait < 50; wait++)); do
    kill -0 -- "-$group" 2>/dev/null || break
    sleep 0.2
  done
  kill -9 -- "-$group" 2>/dev/null || true
  rm "$file"
done
echo "Down; keys, ledgers and results are still in $folder."
