# . scripts/mpi_env.sh: settings that Open MPI 4 needs in containers and on small machines, so that
# `mpirun -np 4 ./mlp_ddp` works as typed. To be sourced; it exports and prints nothing.

# In a container, the user is usually root.
export OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# More ranks than cores are allowed. They yield while they wait (busy waiting would cost a scheduler
# tick per message), and are not bound to one core, which their worker threads would have to share.
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none

# Batch systems announce a time limit by SIGUSR1 or SIGUSR2, which mpirun passes on by itself, or by
# SIGXCPU, which would end it.
export OMPI_MCA_ess_base_forward_signals=SIGXCPU

# Reading another process's memory needs a capability that containers lack.
export OMPI_MCA_btl_vader_single_copy_mechanism=none

# A job searches for Omni-Path and similar adapters through libraries that take a fifth of a second
# to find none. This is turned off if the kernel lists no such adapter.
if [ -z "$(find /sys/class/infiniband /sys/class/cxi -mindepth 1 2>/dev/null)" ]; then
  export OMPI_MCA_mtl="${OMPI_MCA_mtl:-^psm,psm2,ofi}"
fi

# A lost host is detected within a minute instead of eight.
export OMPI_MCA_oob_tcp_keepalive_time=30
export OMPI_MCA_oob_tcp_keepalive_intvl=5
export OMPI_MCA_oob_tcp_keepalive_probes=3
