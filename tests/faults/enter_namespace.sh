#!/bin/sh
# enter_namespace.sh HOST COMMAND...: runs a command as one of the two hosts that namespaces.sh makes,
# with the network and the name of its own; also as mpirun's rsh agent.
host=$1
shift
case $host in
  10.77.0.1) name=nodea ;;
  10.77.0.2) name=nodeb ;;
  *) exit 64 ;;
esac
exec ip netns exec "barestep-$name" unshare --uts sh -c "hostname $name; exec sh -c '$(printf %s "$*" | sed "s/'/'\\\\''/g")'"
