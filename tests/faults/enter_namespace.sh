#!/bin/sh
# enter_namespace.sh HOST COMMAND...: runs a command as one of the two hosts made by namespaces.sh,
# with the host's own network and name; also used as mpirun's rsh agent.
host=$1
shift
case $host in
  10.77.0.1) name=nodea ;;
  10.77.0.2) name=nodeb ;;
  *) exit 64 ;;
esac
exec ip netns exec "barestep-$name" unshare --uts sh -c "hostname $name; exec sh -c '$(printf %s "$*" | sed "s/'/'\\\\''/g")'"
