#!/usr/bin/env bash
# Run a Flower app on what up.sh started, and end with 0 only if the run completed.
# `flwr run --stream` also ends with 0 when the run failed, so the SuperLink is asked how it ended.
#   ./run.sh FOLDER [APP [MORE OPTIONS OF flwr run]]      default APP: FOLDER/clinics
set -euo pipefail
if [ $# -lt 1 ] || [ ! -f "$1/settings" ]; then
  echo "Expected: ./run.sh FOLDER [APP [OPTIONS]], with a FOLDER that up.sh made." >&2
  exit 2
fi
folder=$(cd "$1" && pwd)
app=${2:-$folder/clinics}
export FLWR_HOME=$folder/flower FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
said=$(mktemp)
trap 'rm -f "$said"' EXIT

flwr run "$app" deployed --stream "${@:3}" 2>&1 | tee "$said" || true
run=$(sed -n 's/.*Successfully started run \([0-9]*\).*/\1/p' "$said" | head -1)
if [ -z "$run" ]; then
  echo "The run was not started: $(tail -1 "$said")" >&2
  exit 1
fi
# The log may end before the run does: a SuperLink that was killed comes back, a silent ServerApp is waited for.
for ((asked = 0; asked < 60; asked++)); do
  ended=$(flwr ls deployed --run-id "$run" --format json 2>/dev/null | python3 -c '
import json, sys
try:
    (run,) = json.load(sys.stdin)["runs"]
    print(run["status"], run["status-details"])
except (KeyError, ValueError):
    pass') || true
  case $ended in
  finished:completed*)
    echo "Run $run completed."
    exit 0
    ;;
  finished:*)
    why=${ended#* }
    [ "$why" != N/A ] || why="Flower gives no reason; look at the log above"
    echo "Run $run did not complete (${ended%% *}): $why" >&2
    exit 1
    ;;
  esac
  sleep 2
done
echo "Run $run has not ended (${ended:-the SuperLink does not answer}); look at $folder/logs." >&2
exit 1
