#!/usr/bin/env bash
# Start the SuperLink or a node of what up.sh made, or start it again after it was killed.
#   ./start.sh FOLDER superlink
#   ./start.sh FOLDER node-3
set -euo pipefail
if [ $# -ne 2 ] || [ ! -f "$1/settings" ]; then
  echo "Expected: ./start.sh FOLDER superlink, or ./start.sh FOLDER node-3, with a FOLDER that up.sh made." >&2
  exit 2
fi
folder=$(cd "$1" && pwd) name=$2
# shellcheck source=/dev/null
source "$folder/settings" # nodes, port, node_port
export FLWR_HOME=$folder/flower TACIT_HOME=$folder/server
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
log=$folder/logs/$name.log pid=$folder/logs/$name.pid
if [ -f "$pid" ] && [[ $(ps -o stat= -p "$(cat "$pid")") == [!Z]* ]]; then
  echo "$name is running already, as process $(cat "$pid")." >&2
  exit 2
fi

case $name in
superlink)
  # With a database, a SuperLink that is started again knows its nodes and the runs so far.
  setsid nohup flower-superlink --host 127.0.0.1 --port "$port" --database "$folder/superlink.sqlite" \
    --disable-runtime-dependency-installation --ssl-ca-certfile "$folder/certificates/ca.crt" \
    --ssl-certfile "$folder/certificates/server.crt" --ssl-keyfile "$folder/certificates/server.key" \
    --enable-supernode-auth >>"$log" 2>&1 &
  echo $! >"$pid"
  for ((wait = 0; wait < 300; wait++)); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then exit 0; fi
    kill -0 "$(cat "$pid")" 2>/dev/null || break
    sleep 0.2
  done
  echo "The SuperLink did not start; the end of $log:" >&2
  tail -3 "$log" >&2
  exit 1
  ;;
node-*)
  number=${name#node-}
  if [ ! -d "$folder/nodes/$name" ]; then
    echo "There is no $name in $folder/nodes." >&2
    exit 2
  fi
  # A SuperNode that was killed and comes back within a minute is refused, since the SuperLink has not missed it
  # yet, and ends. So it is started again until it stays.
  setsid nohup bash -c 'until "$@"; do echo "It ended with $? and is started again in 5 s."; sleep 5; done' "$name" \
    flower-supernode --superlink "127.0.0.1:$port" --port $((node_port + number)) \
    --root-certificates "$folder/certificates/ca.crt" \
    --auth-supernode-private-key "$folder/nodes/$name/flower-key" \
    --node-config "partition-id=$number num-partitions=$nodes tacit=\"$folder/nodes/$name\"" \
    >>"$log" 2>&1 &
  echo $! >"$pid"
  ;;
*)
  echo "$name is no part of a deployment; allowed are superlink and node-0, node-1 and so on." >&2
  exit 2
  ;;
esac
