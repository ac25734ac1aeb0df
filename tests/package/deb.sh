#!/usr/bin/env bash
# deb.sh SOURCE: builds the preset package, makes the Debian package of it, installs that by apt in a bare system
# of this release, runs the programs there, and removes it. Ends with 77 where that cannot be tried: it needs root,
# debootstrap, and a package source that responds.
set -euo pipefail
source=$(realpath "$1")
build=$source/build/package
work=$(mktemp -d)
bare=$work/bare

skip() {
  echo "deb: skipped: $*"
  exit 77
}

wrong() {
  echo "deb: error: $*"
  exit 1
}

for tool in debootstrap cpack dpkg-deb dpkg-shlibdeps apt-get unshare; do
  command -v "$tool" >/dev/null || skip "$tool is not here"
done
[ "$(id -u)" = 0 ] || skip "this user is not root"
# What is mounted below disappears with the namespace.
if [ "${2-}" != inside ]; then
  unshare --mount true 2>/dev/null || skip "this machine allows no mounts"
  rm -rf "$work"
  exec unshare --mount "$0" "$source" inside
fi
trap 'umount -R "$bare/proc" "$bare/dev" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

site=$(apt-get indextargets --format '$(SITE)' | sed -n 1p)
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase "$suite" "$bare" "$site" >"$work/log" 2>&1 ||
  skip "debootstrap: $(tail -n 1 "$work/log")"

(cd "$source" && cmake --preset package && cmake --build --preset package) >"$work/log" 2>&1 ||
  wrong "$(tail -n 30 "$work/log")"
cpack -G DEB -B "$work/package" --config "$build/CPackConfig.cmake" >"$work/log" 2>&1 || wrong "$(cat "$work/log")"
package=$(find "$work/package" -maxdepth 1 -name 'barestep_*.deb')
[ -n "$package" ] || wrong "cpack made no package"
cp "$package" "$bare/barestep.deb"
max_mib=30
[ "$(stat -c %s "$package")" -lt $((max_mib << 20)) ] || wrong "$package has more than $max_mib MiB"
if dpkg-deb --contents "$package" | grep -E '/(home|root|work)/'; then wrong "files outside /usr"; fi

# apt's settings of this machine.
cp /etc/resolv.conf "$bare/etc/"
cp -r /etc/apt/. "$bare/etc/apt/"
mount --rbind /proc "$bare/proc"
mount --rbind /dev "$bare/dev"
there() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot "$bare" "$@"; }
there apt-get update --quiet >"$work/log" 2>&1 || skip "apt-get update: $(tail -n 1 "$work/log")"
there find / -xdev -name '*barestep*' -o -xdev -name 'mlp_*' | sort >"$work/before"
there apt-get install --yes --quiet --no-install-recommends ./barestep.deb openmpi-bin >"$work/log" 2>&1 ||
  wrong "$(tail -n 30 "$work/log")"
# What no package has is loaded when it is first needed.
if readelf -d "$bare"/usr/bin/mlp_* "$bare"/usr/lib/barestep/* | grep -E 'R(UN)?PATH' | grep -vF '[$ORIGIN/../lib/barestep]'; then
  wrong "programs look for libraries in folders of the machine that built them"
fi
missing=$(there ldd /usr/bin/mlp_single /usr/bin/mlp_dp /usr/bin/mlp_ddp /usr/bin/mlp_lab | grep 'not found' || true)
[ -z "$missing" ] || wrong "programs do not start without: $missing"

# said <text> <command...>: the command succeeds and prints the text.
said() {
  local output
  output=$(there "${@:2}" 2>&1) || wrong "'${*:2}' failed: $output"
  grep -qF -- "$1" <<<"$output" || wrong "'${*:2}' did not print '$1': $output"
}
said "Step 01 | " mlp_single --device cpu --dim 64 --depth 2 --steps 2
said "Step 01 | " mlp_dp --devices cpu,cpu --dim 64 --depth 2 --steps 2
said "Step 01 | " mlp_ddp --device cpu --dim 64 --depth 2 --steps 2
said "2 ranks, " bash -c '. /usr/share/barestep/scripts/mpi_env.sh && mpirun -np 2 mlp_ddp --device cpu --dim 64 --steps 2'
said "on 8 x H200" mlp_lab predict --machine h200-nvlink --ranks 1,8 --dim 1024
said "practical3-blank" bash -c 'cd /tmp && mlp_lab sheet practical3 --blank'
said "amdahl" bash -c '. /usr/share/bash-completion/completions/mlp_lab; COMP_WORDS=(mlp_lab run am); COMP_CWORD=2; _mlp_lab; echo "${COMPREPLY[@]}"'
[ -s "$bare/usr/share/man/man1/mlp_ddp.1" ] || wrong "the page for man is missing"
there bash -c "cd /tmp && mlp_lab explore" && [ -s "$bare/tmp/explore.html" ] || wrong "there is no page of mlp_lab explore"

there apt-get purge --yes --quiet barestep >"$work/log" 2>&1 || wrong "$(tail -n 30 "$work/log")"
there find / -xdev -name '*barestep*' -o -xdev -name 'mlp_*' | sort >"$work/after"
diff "$work/before" "$work/after" || wrong "these files are left"
echo "deb: $(basename "$package") was installed, ran and was removed in a bare $suite"
