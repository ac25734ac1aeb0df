#!/usr/bin/env bash
# namespaces.sh FAULT_CELLS ARGUMENTS...: runs this program between two hosts that are network
# namespaces of this machine; ends with 77 where it does not let us make them.
set -euo pipefail
scripts=$(cd "$(dirname "$0")/../../scripts" && pwd -P)

"$scripts/hosts.sh" down
"$scripts/hosts.sh" up 2 --rate 10gbit
trap '"$scripts/hosts.sh" down' EXIT
. "$scripts/mpi_env.sh"
"$@" --launcher namespaces
