#!/bin/sh
# A real Slurm on emulated hosts (docs/cluster.md):
#
#   python -m bench.cluster --racks 2x2 --once -- sh benchmarks/cluster_slurm.sh ROOT TOPOLOGY.conf 4 GRES.conf
#   python -m bench.cluster --racks 2x2 --once -- sh benchmarks/cluster_slurm.sh ROOT TOPOLOGY.conf 4 '' sbatch --wait job.sh
#
# ROOT: where the distribution's packages are unpacked (dpkg -x), or / where they are installed:
# slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins, munge, libmunge2 and what they need. Tried
# with Debian's 22.05.8. TOPOLOGY.conf: what `python -m topology export topology-conf` wrote; 4: hosts.
# GRES.conf, if given: what `python -m topology export gres-conf` wrote of a host's GPUs. Every host has
# its cores and GPUs then, as Slurm is told; its /dev/nvidiaN are /dev/null.
# Words behind it are a command to run in place of the benchmark, with Slurm's programs on its PATH.
# Where ROOT has munged, it vouches for users (auth/munge); all hosts are one machine's, so one daemon
# serves them. Without it there is auth/none, for all daemons run as the one user of the cluster.
set -eu
root=$1 topology=$2 hosts=$3 gres=${4:-}
shift $(($# < 4 ? $# : 4))
lib=$root/usr/lib/x86_64-linux-gnu
run=/run/slurm
auth=none cred=none
mkdir -p $run/state $run/sbin /run/cg
export LD_LIBRARY_PATH=$lib:$lib/slurm-wlm SLURM_CONF=$run/slurm.conf
# slurmd looks for its step daemon in /usr/sbin, here a mount of the cluster's own. Daemons must have
# these names: under another one, such as the package's slurmd-wlm, they drop every Gres= of a node
# (run_in_daemon in config_record_from_conf_node).
for daemon in slurmctld slurmd slurmstepd; do
    ln -s "$root/usr/sbin/$daemon-wlm" $run/sbin/$daemon
done
mount -t overlay overlay -o "lowerdir=$run/sbin:/usr/sbin" /usr/sbin
if [ -x "$root/usr/sbin/munged" ]; then
    auth=munge cred=munge
    mkdir -p -m 0755 /run/munge
    mkdir -p -m 0700 /run/munged
    head -c 1024 /dev/urandom > /run/munged/key
    chmod 0600 /run/munged/key
    "$root/usr/sbin/munged" --key-file=/run/munged/key --log-file=/run/munged/log \
        --seed-file=/run/munged/seed --pid-file=/run/munge/munged.pid --socket=/run/munge/munge.socket.2
fi
cat > $run/slurm.conf <<END
ClusterName=busbar
SlurmctldHost=head(10.2.0.254)
SlurmUser=root
AuthType=auth/$auth
CredType=cred/$cred
StateSaveLocation=$run/state
SlurmdSpoolDir=$run/spool.%n
SlurmctldPidFile=$run/slurmctld.pid
SlurmdPidFile=$run/slurmd.%n.pid
SlurmctldLogFile=$run/slurmctld.log
SlurmdLogFile=$run/slurmd.%n.log
PluginDir=$lib/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=pmi2
TopologyPlugin=topology/tree
PartitionName=all Nodes=ALL Default=YES State=UP
END
printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/run/cg\n' > $run/cgroup.conf
cp "$topology" $run/topology.conf
node="CPUs=$(nproc)"
if [ -n "$gres" ]; then
    cp "$gres" $run/gres.conf
    echo GresTypes=gpu >> $run/slurm.conf
    gpus=$(grep -c '^Name=gpu' "$gres")
    cores=$(grep -o 'Cores=[^ ]*' "$gres" | grep -o '[0-9]*' | sort -n | tail -1)
    node="CPUs=$((cores + 1)) CoresPerSocket=$((cores + 1)) Gres=gpu:$gpus"
    mkdir $run/dev
    for i in $(seq 0 $((gpus - 1))); do touch $run/dev/nvidia$i; done
    mount -t overlay overlay -o "lowerdir=$run/dev:/dev" /dev
    for i in $(seq 0 $((gpus - 1))); do mount --bind /dev/null /dev/nvidia$i; done
    mount -t tmpfs tmpfs /dev/shm
fi
for i in $(seq 0 $((hosts - 1))); do
    mkdir -p $run/spool.host$i
    echo "NodeName=host$i NodeAddr=10.2.0.$((i + 1)) $node State=UNKNOWN" >> $run/slurm.conf
done
/usr/sbin/slurmctld
for i in $(seq 0 $((hosts - 1))); do
    /run/enter host$i "SLURM_CONF=$SLURM_CONF LD_LIBRARY_PATH=$LD_LIBRARY_PATH /usr/sbin/slurmd -N host$i"
done
export PATH=$root/usr/bin:$PATH
scontrol show topology
until [ "$(sinfo -h -t idle -o %D)" = "$hosts" ]; do sleep 1; done
if [ $# -gt 0 ]; then
    exec "$@"
fi
# Slurm's pmi2 speaks to MPICH 5 in the first version of its protocol.
export MPIR_CVAR_PMI_VERSION=1
srun --mpi=pmi2 -N "$hosts" -n "$hosts" python -m bench.allreduce -A ring,library -b 64K -e 64K -n 6
if [ -n "$gres" ]; then
    sinfo -N -o '%N %T %G'
    # Which GPUs a job gets, for every count there is.
    for n in $(seq 1 "$gpus"); do
        srun --mpi=none -N 1 -n 1 --gres=gpu:"$n" sh -c 'echo "$(hostname): GPUs $CUDA_VISIBLE_DEVICES"'
    done
fi
