#!/usr/bin/env bash
# Runs the rig where there is no Docker engine and perhaps no image registry, as root on Debian or
# Ubuntu: builds the images, mounts, works on the mount from a second container, runs the mount
# tests in a third, and takes everything down.
#
#   docker/run-with-podman.sh [GROUP...]     test groups, default: mount
#
# It installs podman, debootstrap and podman-compose if they are missing. Where Debian's image cannot
# be pulled it is made with debootstrap. What pip is told on this host (mirrors, certificates) holds
# in the builds too, and is in no image.
set -euo pipefail
cd "$(dirname "$0")/.."

BASE_IMAGE="docker.io/library/debian:bookworm-slim"
SUITE="bookworm"
MIRROR="http://deb.debian.org/debian"
WORK="${TMPDIR:-/tmp}/ucfuse-rig"
START_DEADLINE_S=120

say() { echo "== $*"; }

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# A mount namespace of our own: what the rig mounts is gone with it, whatever happens.
enter_namespace() {
    [ "$(id -u)" = 0 ] || fail "needs root: run it with sudo"
    [ -e /dev/fuse ] || fail "/dev/fuse is missing: modprobe fuse"
    [ "${UCFUSE_RIG_INSIDE:-}" = yes ] \
        || UCFUSE_RIG_INSIDE=yes exec unshare -m --propagation private "$0" "$@"
}

install_tools() {
    local missing=()
    command -v podman >/dev/null || missing+=(podman)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v crun >/dev/null || missing+=(crun)
    python3 -c "import ensurepip, venv" 2>/dev/null || missing+=(python3-venv)
    if [ "${#missing[@]}" -gt 0 ]; then
        say "installing ${missing[*]}"
        apt-get update -qq >/dev/null
        DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    if ! "$WORK/venv/bin/podman-compose" --version >/dev/null 2>&1; then
        say "installing podman-compose"
        python3 -m venv --clear "$WORK/venv"
        "$WORK/venv/bin/pip" install -q podman-compose
    fi
    export PATH="$WORK/venv/bin:$PATH"
}

# podman wants cgroups of version 2 alone, and limits that may be set. Without cgroups at all it
# would not let a container see the processes of the host.
settle_limits() {
    run_options=(--ulimit nofile=10000:10000 --ulimit nproc=10000:10000)
    if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then
        say "cgroups of version 1 here: showing podman those of version 2, without limits"
        umount -l -R /sys/fs/cgroup
        mount -t cgroup2 none /sys/fs/cgroup
        run_options+=(--pids-limit=0)
    fi
}

make_base_image() {
    podman image exists "$BASE_IMAGE" && return
    say "pulling $BASE_IMAGE"
    timeout 60 podman pull -q "$BASE_IMAGE" 2>/dev/null && return
    say "it cannot be pulled: making it with debootstrap"
    rm -rf "$WORK/base"
    debootstrap --variant=minbase "$SUITE" "$WORK/base" "$MIRROR" >"$WORK/debootstrap.log" \
        || fail "debootstrap failed: see $WORK/debootstrap.log"
    tar -C "$WORK/base" -c . | podman import -q - "$BASE_IMAGE" >/dev/null
    rm -rf "$WORK/base"
}

# What pip is configured to on this host, as a file for the builds, with the paths that it names:
# below another root, since the packages of the image own files of these names.
pip_volumes() {
    python3 - "$WORK/pip.conf" <<'PYTHON'
import configparser, os, re, subprocess, sys

listing = subprocess.run(
    [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
).stdout
there, paths, settings = "/mnt/host", set(), {}


def move(match):
    scheme, path = match.groups()
    if not os.path.exists(path):
        return match[0]
    paths.add(os.path.dirname(path) if scheme else path)  # an index has its files beside it
    return f"{scheme or ''}{there}{path}"


for line in listing.splitlines():
    name, value = line.split("=", 1)
    words = value.strip("'\"").split()
    moved = [re.sub(r"^(file://)?(/.*)", move, word) for word in words]
    settings[name.rsplit(".", 1)[1]] = " ".join(moved)
config = configparser.RawConfigParser()
config["global"] = settings
with open(sys.argv[1], "w") as file:
    config.write(file)
print(f"--volume={sys.argv[1]}:/etc/pip.conf:ro")
for path in sorted(paths):
    print(f"--volume={path}:{there}{path}:ro")
PYTHON
}

build_images() {
    local volumes target
    mapfile -t volumes < <(pip_volumes)
    for target in ucfuse store test; do
        say "building $target"
        # OCI's own format has no health checks; without isolation no limits need setting.
        podman build --format docker --isolation chroot --network host "${volumes[@]}" \
            --target "$target" --tag "$(image_of "$target")" -f docker/Dockerfile . \
            >"$WORK/build-$target.log" 2>&1 \
            || { tail -20 "$WORK/build-$target.log"; fail "the build of $target failed"; }
    done
}

image_of() {
    case "$1" in ucfuse) echo ucfuse ;; *) echo "ucfuse-$1" ;; esac
}

compose() {
    podman-compose --podman-run-args="${run_options[*]}" --profile work --profile test \
        -f docker/compose.yaml -f docker/compose.seaweedfs.yaml -f docker/compose.podman.yaml "$@"
}

# Without systemd nobody else runs podman's health checks.
wait_until_healthy() {
    local end_at=$((SECONDS + START_DEADLINE_S))
    until podman healthcheck run ucfuse_ucfuse_1 >"$WORK/health.log" 2>&1; do
        [ "$SECONDS" -lt "$end_at" ] || {
            cat "$WORK/health.log"
            podman logs ucfuse_ucfuse_1
            fail "it did not mount"
        }
        sleep 1
    done
}

take_down() {
    local left
    # `compose down` knows only services: what `compose run` started goes on if a signal ends us.
    mapfile -t left < <(podman ps -aq --filter label=io.podman.compose.project=ucfuse)
    [ "${#left[@]}" = 0 ] || podman rm -f -t 10 "${left[@]}" >/dev/null 2>&1 || true
    compose down -v >/dev/null 2>&1 || true
    umount -l "$UCFUSE_VOLUMES" 2>/dev/null || true
}

main() {
    enter_namespace "$@"
    mkdir -p "$WORK"
    install_tools
    settle_limits
    make_base_image
    build_images

    export UCFUSE_VOLUMES="$WORK/volumes"
    take_down # what a killed run left
    mkdir -p "$UCFUSE_VOLUMES"
    mount --bind "$UCFUSE_VOLUMES" "$UCFUSE_VOLUMES"
    mount --make-rshared "$UCFUSE_VOLUMES"
    trap take_down EXIT

    say "mounting"
    # Step by step: podman-compose cannot wait for a service that ends, or for one to be healthy.
    compose up -d --no-build --no-deps store
    compose run -T --rm --no-deps bucket
    compose up -d --no-build --no-deps ucfuse
    wait_until_healthy
    say "working in a second container"
    compose run -T --rm --no-deps work
    say "tests: ${*:-mount}"
    compose run -T --rm --no-deps test "${@:-mount}"
}

main "$@"
