#!/usr/bin/env bash
# Installs what is missing, then runs every check: lint, unit, contract, fs, model, mount, data.
#
#   tests/run.sh [--long] [GROUP...]     --long: also the tests that take minutes
#
# With S3_ENDPOINT (and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) the groups contract and mount use
# that server; S3_LACKS names what it lacks beside AWS S3, as tests/contract/features.py calls it.
# Without /dev/fuse the mount tests cannot run: with CI=true that is a failure, else they are named
# as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/setup.sh
set_up dev,examples,test

echo "== lint"
ruff check
ruff format --check
mypy
lint-imports
hadolint docker/Dockerfile
check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose*.yaml

options=()
groups=()
for argument in "$@"; do
    case "$argument" in
    unit | contract | fs | model | mount | data) groups+=("$argument") ;;
    -*) options+=("$argument") ;;
    *) fail "$argument: no group of tests; there are unit, contract, fs, model, mount and data" ;;
    esac
done
[ "${#groups[@]}" -gt 0 ] || groups=(unit contract fs model mount data)
skipped=""
if [ ! -e /dev/fuse ]; then
    [ "${CI:-}" != true ] || fail "/dev/fuse is missing: the mount tests cannot run"
    mapfile -t groups < <(printf '%s\n' "${groups[@]}" | grep -vx mount || true)
    skipped="mount (no /dev/fuse)"
fi

# pytest ends with 5 where an option like -k left a group without tests.
NO_TESTS=5

# Mounts mostly wait, so the other groups run beside them; what those say comes afterwards.
run_beside_mount() {
    local code=0 code_beside=0
    said="$(mktemp)"
    echo "== mount, and beside it $*"
    python -m pytest "${@/#/tests/}" "${options[@]}" >"$said" 2>&1 &
    beside=$!
    trap 'kill -INT "$beside" 2>/dev/null; wait "$beside"; rm -f "$said"' EXIT
    python -m pytest tests/mount "${options[@]}" || code=$?
    wait "$beside" || code_beside=$?
    trap - EXIT
    echo "== $*"
    cat "$said"
    rm -f "$said"
    [ "$code" != "$NO_TESTS" ] || return "$code_beside"
    [ "$code_beside" = 0 ] || [ "$code_beside" = "$NO_TESTS" ] || return "$code_beside"
    return "$code"
}

mapfile -t others < <(printf '%s\n' "${groups[@]}" | grep -vx mount || true)
if [ "${#others[@]}" = 0 ] || [ "${#others[@]}" = "${#groups[@]}" ]; then
    echo "== ${groups[*]}"
    python -m pytest "${groups[@]/#/tests/}" "${options[@]}"
else
    run_beside_mount "${others[@]}"
fi
[ -z "$skipped" ] || echo "skipped: $skipped"
