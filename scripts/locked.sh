#!/bin/bash
# Lines of a requirements file with their hashes, for pip's --require-hashes:
#   scripts/locked.sh FILE with|without NAME...     those packages, or all others
set -euo pipefail
awk -v mode="$2" -v names="${*:3}" '
    BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] = 1 }
    /^#/ { next }
    /^[^ ]/ { name = $1; sub(/[=[].*/, "", name); keep = (name in wanted) == (mode == "with") }
    keep' "$1"
