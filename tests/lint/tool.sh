# find_clang_tool <name>: sets `tool` to the clang tool with this name, or ends the test as skipped.
# Versions other than 14 (Debian 12's) format code differently and have different checks.
find_clang_tool() {
  local candidate version
  for candidate in "$1-14" "$1"; do
    version=$("$candidate" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p') || true
    if [ "$version" = 14 ]; then
      tool=$candidate
      return
    fi
  done
  echo "skipped: $1 14 is not installed; install $1, or run scripts/setup.sh --tests"
  exit 77
}
