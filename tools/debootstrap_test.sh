#!/usr/bin/env bash
# What a newcomer meets: a fresh Debian 12 with git and a shell in a folder, a clone of this repository's
# HEAD inside it, and both commands of the README run there. Not part of ./check: it needs root, debootstrap,
# 3 GB of disk, Debian's package archive and some ten minutes.
#
# usage: tools/debootstrap_test.sh [FOLDER]    (default: build/debian12; an existing one is made anew)
set -euo pipefail
repository=$(readlink -f "$(dirname "$0")/..")
folder=$(readlink -m "${1:-$repository/build/debian12}")
say() { echo "debootstrap_test: $*" >&2; }

((EUID == 0)) || { say "run as root"; exit 2; }
command -v debootstrap >/dev/null || { say "debootstrap is missing: apt-get install debootstrap"; exit 2; }

leave() { mountpoint -q "$folder/proc" && umount "$folder/proc" || true; }
trap leave EXIT
leave
rm -rf --one-file-system "$folder"
mkdir -p "$folder"

say "Debian 12 with git into $folder"
debootstrap --variant=minbase --include=git bookworm "$folder" >"$folder.log" 2>&1 ||
  { tail -n 20 "$folder.log" >&2; say "debootstrap failed (all of it: $folder.log)"; exit 1; }
git clone -q --no-local "$repository" "$folder/root/shardfit"
mount -t proc proc "$folder/proc"

inside() {
  say "\$ $1"
  chroot "$folder" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C TERM=dumb \
    bash -c "cd /root/shardfit && $1"
}

inside "git status --short --branch"
inside "time ./shardfit plan examples/01-does-it-fit/plan.yaml"
inside "time ./shardfit --version"
inside "time ./check"
inside "git status --short"
[[ -z $(git -C "$folder/root/shardfit" status --porcelain) ]] || { say "the clone is no longer clean"; exit 1; }
say "both commands work on a fresh Debian 12"
