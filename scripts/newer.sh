#!/bin/bash
# A list of pins with the packages of a second list in the place of its own:
#   scripts/newer.sh requirements-cpu.txt requirements-newer-cpu.txt
# A comment "# Instead of NAME" in the second list leaves a package of the first one out.
set -euo pipefail
pins=$1
newer=$2
replaced=$(sed -n 's/^\([A-Za-z0-9][^=[ ]*\).*==.*/\1/p; s/^# Instead of \([^ ,:]*\).*/\1/p' "$newer")
# shellcheck disable=SC2086 # one word a package
"$(dirname "$0")/locked.sh" "$pins" without $replaced
grep -v '^#' "$newer"
