# To be sourced by the other scripts here: steps that log their output and print little on the
# screen.

logs=$root/build/logs
mkdir -p "$logs"

# logged <name> <command...>: runs the command with its output in build/logs/<name>.log. If it
# fails, prints the end of that log.
logged() {
  local log=$logs/$1.log
  shift
  "$@" >"$log" 2>&1 </dev/null && return 0
  local status=$?
  echo "--- the last lines of $log" >&2
  tail -n 40 "$log" >&2
  return "$status"
}

# progress [time_left]: copies its input, and shows on descriptor 3 how far a build or a test run has come, based
# on ninja's counts "[3/155]" and ctest's "3/1790 Test": in steps of 10 %, or in a line with the time left.
exec 3>&1
progress() {
  local line shown=0 percent left begin=$SECONDS
  while IFS= read -r line; do
    printf '%s\n' "$line"
    [[ $line =~ ^[[:space:]]*\[?([1-9][0-9]*)/([0-9]+)(\]|\ Test) ]] || continue
    percent=$((BASH_REMATCH[1] * 100 / BASH_REMATCH[2]))
    if [ -n "${1-}" ]; then
      left=$(((SECONDS - begin) * (BASH_REMATCH[2] - BASH_REMATCH[1]) / BASH_REMATCH[1]))
      if [ -t 3 ]; then
        printf '\r    %3d %%, %d:%02d left ' "$percent" $((left / 60)) $((left % 60)) >&3
        if [ "$percent" = 100 ]; then echo >&3; fi
      elif [ $((percent / 10)) -gt $((shown / 10)) ]; then
        printf '    %3d %%, %d:%02d left\n' "$percent" $((left / 60)) $((left % 60)) >&3
        shown=$percent
      fi
    elif [ $((percent / 10)) -gt $((shown / 10)) ]; then
      printf '%d%% ' $((percent / 10 * 10)) >&3
      shown=$percent
    fi
  done
}

# configured <preset> <build folder> [<option>...]: configures it, from scratch if the folder was
# made for another location.
configured() {
  local cache=$root/$2/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    rm -rf "$cache" "$root/$2/CMakeFiles"
  fi
  logged "configure_$1" cmake -S "$root" --preset "$1" "${@:3}"
}

# Prints "passed failed skipped" of what ctest printed. A test that did not run counts as skipped
# only if it reported so itself; a test whose program is missing has failed.
count_tests() {
  awk '
    !/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { next }
    / Passed +[0-9.]+ sec$/ { passed++; next }
    /\*\*\*(Skipped|Not Run \(Disabled)/ { skipped++; next }
    { failed++ }
    END { print passed + 0, failed + 0, skipped + 0 }
  ' "$1"
}
