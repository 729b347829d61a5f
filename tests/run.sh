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
echo "== ${groups[*]}"
python -m pytest "${groups[@]/#/tests/}" "${options[@]}"
[ -z "$skipped" ] || echo "skipped: $skipped"
