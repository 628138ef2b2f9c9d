#!/usr/bin/env bash
# For a machine that takes only small files: vLLM's wheel has 400 MB and more.
#   scripts/wheel_parts.sh cut WHEEL DIRECTORY [MB]     parts of at most MB (60), and their digests, into a new directory
#   scripts/wheel_parts.sh join DIRECTORY               the wheel again, in that directory; refused if a part is missing or changed
set -euo pipefail

case "${1:-}" in
cut)
    [ $# -ge 3 ] && [ -f "$2" ] || { echo "usage: $0 cut WHEEL DIRECTORY [MB]; WHEEL is a file" >&2; exit 2; }
    mkdir "$3"
    split --bytes="${4:-60}MB" --suffix-length=3 --numeric-suffixes "$2" "$3/$(basename "$2").part"
    cd "$3" && sha256sum -- *.part* >parts.sha256
    ;;
join)
    [ $# -eq 2 ] && cd "$2" && [ -f parts.sha256 ] || { echo "usage: $0 join DIRECTORY; it has parts.sha256" >&2; exit 2; }
    sha256sum --check --quiet parts.sha256
    first=$(ls -- *.part000)
    cat -- *.part* >"${first%.part000}"
    ;;
*)
    echo "usage: $0 cut WHEEL DIRECTORY [MB] | join DIRECTORY" >&2
    exit 2
    ;;
esac
