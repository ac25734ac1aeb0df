#!/usr/bin/env bash
# namespaces.sh FAULT_CELLS ARGUMENTS...: runs this program between two hosts that are network
# namespaces of this machine, joined by a virtual cable. Needs root and the right to create
# namespaces; ends with 77 without them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)

clean() {
  ip netns del barestep-nodea 2>/dev/null || true
  ip netns del barestep-nodeb 2>/dev/null || true
}

make() {
  local node
  for node in nodea nodeb; do
    ip netns add "barestep-$node" && ip -n "barestep-$node" link set lo up || return 1
  done
  ip link add cable-a netns barestep-nodea type veth peer name cable-b netns barestep-nodeb &&
    ip -n barestep-nodea addr add 10.77.0.1/24 dev cable-a &&
    ip -n barestep-nodeb addr add 10.77.0.2/24 dev cable-b &&
    ip -n barestep-nodea link set cable-a up && ip -n barestep-nodeb link set cable-b up
}

clean
trap clean EXIT
if ! command -v ip >/dev/null || ! make 2>/dev/null; then
  echo "namespaces: skipped: this machine does not let us make network namespaces"
  exit 77
fi
. "$here/../../scripts/mpi_env.sh"
"$@" --launcher namespaces
