# Sourced by the scripts of this folder. Sets here, this folder, and build.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
build=$here/../build

# keep <file> <command...>: shows what the command prints, and keeps it with the script's name and the
# commit in bench/results/<machine>/<file>.
keep() {
  local results commit
  results=$here/results/$(python3 "$here/machine.py")
  commit=$(git -C "$here" describe --always --dirty)  # before the kept file changes
  mkdir -p "$results"
  {
    echo "# bench/$(basename "$0")   (commit $commit)"
    "${@:2}"
  } | tee "$results/$1"
}
