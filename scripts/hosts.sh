#!/usr/bin/env bash
# hosts.sh: a slow network on one machine. Its hosts are network namespaces, joined by a switch; ranks
# on them exchange over TCP, as between machines.
#
#   scripts/hosts.sh up N [--rate 1gbit] [--delay 1ms]   hosts 1 to N, whose cables carry so much each way
#   scripts/hosts.sh run [-np RANKS] COMMAND...          mpirun over all hosts; a rank on each, if not said
#   scripts/hosts.sh with COMMAND...                     a command whose mpirun is that: mlp_lab and its card
#   scripts/hosts.sh cable HOST down|up|RATE [--delay]   pulls a cable, plugs it in, or changes its rate
#   scripts/hosts.sh down                                removes the hosts and what runs on them
#
# Needs root and the right to make namespaces; without them it ends with 77 and one line.
set -euo pipefail
self=$(realpath "$0")
prefix=barestep-host
switch=barestep-switch
network=10.78.0

# fail CODE WHAT WHY REMEDY
fail() {
  echo "hosts.sh: error: $2: $3; $4" >&2
  exit "$1"
}

hosts() { ip netns list | sed -n "s/^$prefix\([0-9]*\).*/\1/p" | sort -n; }

# Of the options of a cable.
read_rate() {
  rate=1gbit delay=
  while [ $# -gt 0 ]; do
    case $1 in
      --rate) rate=${2-} ;;
      --delay) delay=${2-} ;;
      *) fail 2 "option '$1'" "hosts.sh has none" "see the top of scripts/hosts.sh" ;;
    esac
    shift 2 || fail 2 "option '$1'" "has no value" "see the top of scripts/hosts.sh"
  done
  [[ $rate =~ ^[1-9][0-9]*[kmg]bit$ ]] || fail 2 "--rate '$rate'" "is no rate" "give 100mbit, 1gbit or the like"
  [[ $delay =~ ^([0-9]+(us|ms))?$ ]] || fail 2 "--delay '$delay'" "is no time" "give 500us, 10ms or the like"
}

# shape HOST: both ends of the cable send at most $rate; the host's are $delay late.
shape() {
  # What a cable that has rested carries at once: a packet of the kernel, 64 KiB, or what passes until its clock
  # fires again. With more, exchanges that take turns would be faster than the cable.
  local burst=66kb
  [[ $rate == *gbit ]] && burst=128kb
  [[ $rate =~ ^[0-9]{2,}gbit$ ]] && burst=256kb
  local tbf=(root handle 1: tbf rate "$rate" burst $burst latency 100ms)
  tc -n "$switch" qdisc replace dev "port$1" "${tbf[@]}" &&
    tc -n "$prefix$1" qdisc replace dev cable "${tbf[@]}" || return 1
  [ -z "$delay" ] || tc -n "$prefix$1" qdisc replace dev cable parent 1:1 netem delay "$delay" limit 100000 2>/dev/null ||
    fail 69 "--delay '$delay'" "this kernel has no netem" "leave it out"
}

make_hosts() {
  local i
  ip netns add $switch && ip -n $switch link add bridge type bridge && ip -n $switch link set bridge up || return 1
  for i in $(seq "$1"); do
    ip netns add "$prefix$i" && ip -n "$prefix$i" link set lo up &&
      ip link add cable netns "$prefix$i" type veth peer name "port$i" netns $switch &&
      ip -n $switch link set "port$i" master bridge up &&
      ip -n "$prefix$i" addr add "$network.$i/24" dev cable && ip -n "$prefix$i" link set cable up &&
      shape "$i" || return 1
  done
}

down() {
  local name
  for name in $(hosts | sed "s/^/$prefix/") $(ip netns list | grep -o "^$switch"); do
    ip netns pids "$name" | xargs -r kill -9 2>/dev/null || true
    ip netns del "$name"
  done
}

up() {
  local count=${1-} why
  [[ $count =~ ^[1-9][0-9]?$ ]] || fail 2 "hosts '$count'" "not a number from 1 to 99" "give the number of hosts"
  read_rate "${@:2}"
  [ -z "$(hosts)" ] || fail 75 "hosts" "some are up already" "run scripts/hosts.sh down"
  trap 'down; exit 130' INT TERM
  if ! why=$(make_hosts "$count" 2>&1); then
    down
    [[ $why == "hosts.sh: error"* ]] && { echo "$why" >&2; exit 69; }
    fail 77 "hosts" "this machine does not let us make them (${why%%$'\n'*})" "use one with ip netns, bridge and tbf"
  fi
  echo "$count hosts, $network.1 to $network.$count, $rate each way${delay:+, $delay late}"
}

# enter HOST COMMAND...: in place of this process, with a host's network and name.
enter() {
  exec ip netns exec "$prefix$1" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host$1" "${@:2}"
}

run() {
  local all count ranks i list=
  all=($(hosts))
  count=${#all[@]}
  [ "$count" -gt 0 ] || fail 69 "hosts" "none are up" "run scripts/hosts.sh up 2"
  ranks=$count
  if [ "${1-}" = -np ]; then
    ranks=${2-}
    shift 2 || true
  fi
  [[ $ranks =~ ^[1-9][0-9]*$ ]] && [ $# -gt 0 ] ||
    fail 2 "run" "has no ranks or no command" "see the top of scripts/hosts.sh"
  for i in "${all[@]:0:$ranks}"; do list+=$network.$i:$(((ranks + count - i) / count)),; done
  . "$(dirname "$self")/mpi_env.sh"
  enter 1 mpirun --mca plm_rsh_agent "$self agent" --mca pml ob1 --mca btl self,vader,tcp \
    --mca btl_tcp_if_include $network.0/24 --mca oob_tcp_if_include $network.0/24 \
    --host "${list%,}" -np "$ranks" "$@"
}

with() {
  local folder code=0
  folder=$(mktemp -d)
  trap "rm -rf '$folder'" EXIT
  printf '#!/bin/sh\nPATH=${PATH#*:} exec "%s" run "$@"\n' "$self" >"$folder/mpirun"
  chmod +x "$folder/mpirun"
  PATH=$folder:$PATH "$@" || code=$?
  exit $code
}

cable() {
  local host=${1-}
  hosts | grep -qx "$host" || fail 2 "host '$host'" "there is none" "run scripts/hosts.sh up first"
  case ${2-} in
    down | up) ip -n $switch link set "port$host" "$2" ;;
    *) read_rate --rate "${@:2}" && shape "$host" ;;
  esac
}

[ "$(id -u)" = 0 ] || fail 77 "hosts.sh" "only root can make hosts" "run it with sudo, or in a container as root"
command -v ip tc >/dev/null || fail 69 "ip" "is not here" "install iproute2"
case ${1-} in
  up | run | with | cable) "$@" ;;
  down) down ;;
  agent) enter "${2##*.}" sh -c "${*:3}" ;;  # for mpirun, what ssh would do
  *) fail 2 "command '${1-}'" "is none of up, run, with, cable and down" "see the top of scripts/hosts.sh" ;;
esac
