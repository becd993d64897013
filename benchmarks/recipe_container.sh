#!/bin/sh
# The steps of an Apptainer definition where there is no Apptainer: in a clean root, as root.
#
#   debootstrap --variant=minbase bookworm ROOT
#   sh benchmarks/recipe_container.sh ROOT allreduce --ranks 2 -e 1M
#
# ROOT is changed: the checkout's last commit is copied into it, %post runs in it, and then %runscript
# with the words behind ROOT. Mounts are this process's own.
set -eu
root=$1
shift
recipe=$(python -m bench.recipe container --apptainer)
section() {
    printf '%s\n' "$recipe" | awk -v name="%$1" '/^%/ {inside = $1 == name; next} inside' | sed 's/^    //'
}
printf '%s\n' "$recipe" | grep -qx 'From: debian:bookworm-slim'
mkdir -p "$root/src"
git archive HEAD | tar -x -C "$root/src"
export POST="set -eu
$(section post)"
export RUN="$(section environment)
$(section runscript)"
exec unshare --mount sh -c '
    root=$1
    shift
    for place in proc sys dev; do mount --rbind "/$place" "$root/$place"; done
    chroot "$root" sh -c "$POST"
    exec chroot "$root" sh -c "$RUN" run "$@"
' run "$root" "$@"
