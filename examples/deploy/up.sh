#!/usr/bin/env bash
# A federation on this machine, as docs/deploy.md describes it: certificates, keys, a roster, ledgers,
# a SuperLink and SuperNodes with TLS and node authentication, and a Flower project to run on them.
#
#   ./up.sh [FOLDER]      default: ./deployment; `run.sh FOLDER` runs the project, `start.sh FOLDER NAME`
#                         starts what was killed, `down.sh FOLDER` stops everything
#   NODES=5 PORT=8000 NODE_PORT=9100 DROPOUT=0.2 EPSILON=1 DELTA=1e-5    may be set
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-deployment}
nodes=${NODES:-5} port=${PORT:-8000} node_port=${NODE_PORT:-9100}
dropout=${DROPOUT:-0.2} epsilon=${EPSILON:-1} delta=${DELTA:-1e-5}
if [ -e "$folder" ]; then
  echo "$folder exists already; allowed is a new folder: ./up.sh OTHER-FOLDER" >&2
  exit 2
fi
for program in tacit flwr flower-superlink flower-supernode openssl ssh-keygen; do
  command -v "$program" >/dev/null || {
    echo "$program was not found; activate the environment where 'tacit[flower,torch]' is installed," \
      "and install openssl and openssh-client" >&2
    exit 2
  }
done
mkdir -p "$folder/certificates" "$folder/logs"
folder=$(cd "$folder" && pwd)
export FLWR_HOME=$folder/flower TACIT_HOME=$folder/server
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
mkdir -p "$FLWR_HOME"
trap 'echo "failed; what was started is stopped, logs are in $folder/logs" >&2; "$here/down.sh" "$folder"' ERR

echo "1. A certificate for the SuperLink, signed by an authority of our own"
cd "$folder/certificates"
openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj "/CN=federation" \
  -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey rsa:3072 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt \
  -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") 2>/dev/null
cd - >/dev/null

echo "2. Every node makes its keys: one for Flower's node authentication, one for Tacit's roster"
for ((i = 0; i < nodes; i++)); do
  tacit roster key "$folder/nodes/node-$i" >/dev/null
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$i" -f "$folder/nodes/node-$i/flower-key"
done

echo "3. One of them makes the roster from the public keys; all get it and compare its digest"
tacit roster make "$folder/roster.toml" "$folder"/nodes/node-* --federation clinics \
  --dropout "$dropout" --epsilon "$epsilon" --delta "$delta"
for ((i = 0; i < nodes; i++)); do
  cp "$folder/roster.toml" "$folder/nodes/node-$i/"
  tacit ledger create "$folder/nodes/node-$i/ledger.sqlite" --federation clinics \
    --epsilon "$epsilon" --delta "$delta" >/dev/null
  tacit roster check "$folder/nodes/node-$i" >/dev/null
done

echo "4. The SuperLink"
printf 'nodes=%s\nport=%s\nnode_port=%s\n' "$nodes" "$port" "$node_port" >"$folder/settings"
"$here/start.sh" "$folder" superlink
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "deployed"

[superlink.deployed]
address = "127.0.0.1:$port"
root-certificates = "$folder/certificates/ca.crt"
END

echo "5. The nodes: registered by their public keys, started with their private ones"
for ((i = 0; i < nodes; i++)); do
  flwr supernode register "$folder/nodes/node-$i/flower-key.pub" deployed --name "node-$i" >/dev/null
  "$here/start.sh" "$folder" "node-$i"
done

echo "6. A project"
tacit new "$folder/clinics" >/dev/null
sed -i "s|^roster_file = \"\"|roster_file = \"$folder/roster.toml\"|" "$folder/clinics/pyproject.toml"
trap - ERR
cat <<END
Up: a SuperLink on port $port and $nodes SuperNodes; logs in $folder/logs. Now run:
  $here/run.sh $folder
END
