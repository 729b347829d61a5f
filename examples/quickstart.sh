#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to files at /Volumes that are objects in a store, in one command.
#
# Installs what is missing, starts a store on this machine, mounts its bucket, works with files
# while boto3 looks at the same objects, and unmounts. Run it as root or as a user with sudo, as
# often as you like. What it wrote stays in the store: `ucfuse mount --dev` shows it again.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/setup.sh
set_up dev

VOLUME=/Volumes/main/default/demo

run() {
    echo "\$ ${*/#as_root/sudo}"
    "$@"
}

# The embedded store through boto3: what every other program that knows S3 would see.
boto3() {
    python - "$@" <<'PYTHON'
import json, subprocess, sys
import boto3
from ucfuse.embedded import ACCESS_KEY, SECRET_KEY

volume, action, *arguments = sys.argv[1:]
mounts = json.loads(subprocess.check_output(["ucfuse", "status", "--json"]))
[mount] = [mount for mount in mounts if mount["mountpoint"] == volume]
bucket = boto3.resource(
    "s3", endpoint_url=mount["endpoint_url"], region_name="us-east-1",
    aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
).Bucket("dev")
if action == "list":
    for found in bucket.objects.all():
        print(f"  s3://dev/{found.key}  {found.size} bytes")
elif action == "get":
    sys.stdout.buffer.write(bucket.Object(arguments[0]).get()["Body"].read())
elif action == "put":
    bucket.put_object(Key=arguments[0], Body=arguments[1].encode())
PYTHON
}

expect() {
    [ "$2" = "$3" ] || fail "$1: expected '$3', found '$2'"
}

[ -e /dev/fuse ] || fail "/dev/fuse is missing: run 'modprobe fuse', or give it to the container"
if [ "$(id -u)" != 0 ]; then
    # Debian's own mode; some containers leave the device to root.
    [ -w /dev/fuse ] || run as_root chmod 666 /dev/fuse
    if [ ! -O "$VOLUME" ] && ! mountpoint -q "$VOLUME"; then
        run as_root mkdir -p "$VOLUME"
        run as_root chown "$(id -un)" "$VOLUME"
    fi
fi
if mountpoint -q "$VOLUME"; then
    run ucfuse umount "$VOLUME"
fi

echo "== A store on this machine, its bucket as a directory (the store takes some seconds)"
run ucfuse mount --dev "$VOLUME"
trap 'ucfuse umount "$VOLUME"' EXIT

echo "== Files"
run mkdir -p "$VOLUME/hello/world"
echo "written as a file" >"$VOLUME/hello/world/file.txt"
run cp LICENSE "$VOLUME/hello/"
run ls -lR "$VOLUME"

echo "== The same as objects, seen by boto3"
boto3 "$VOLUME" list
expect "the object" "$(boto3 "$VOLUME" get hello/world/file.txt)" "written as a file"
boto3 "$VOLUME" get hello/LICENSE | cmp - LICENSE

echo "== An object that boto3 puts is a file at once"
boto3 "$VOLUME" put hello/object.txt "put as an object"
run cat "$VOLUME/hello/object.txt"
echo
expect "the file" "$(cat "$VOLUME/hello/object.txt")" "put as an object"

echo "== Done"
trap - EXIT
run ucfuse umount "$VOLUME"
! mountpoint -q "$VOLUME" || fail "$VOLUME is still mounted"
echo "It works. Again, to play with: .venv/bin/ucfuse mount --dev $VOLUME"
