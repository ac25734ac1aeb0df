#!/usr/bin/env bash
# size.sh <source root>: sources have at most so many lines and files, and the lab and the profiler at
# most such a share of the lines. Limits only go down: they are the figures of the day, rounded up.
#
# When this fails, make something else shorter: find what already does it, or what nobody needs any
# more. Raise a limit only together with a sentence in the commit on what the new lines are worth, and
# lower it where the figures have fallen by more than a hundred lines or ten files.
set -euo pipefail
cd "$1"
max_lines=86872 max_files=444 max_percent=42
failures=0

sources() { find "$@" -regextype posix-extended -regex '.*\.(cpp|h|cu|cuh)'; }
lines() { sources "$@" | xargs cat | wc -l; }

# check <what> <figure> <limit>
check() {
  echo "$1: $2 of at most $3"
  [ "$2" -le "$3" ] || { echo "too much, by $(($2 - $3)); tests/lint/size.sh says what to do"; failures=1; }
}

all=$(lines src apps)
check "lines of src and apps" "$all" $max_lines
check "files of src and apps" "$(sources src apps | wc -l)" $max_files
check "percent of them in the lab and the profiler" \
  $((($(lines src/lab src/profiler) * 100 + all - 1) / all)) $max_percent
exit $failures
