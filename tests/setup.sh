# shellcheck shell=bash
# Sourced by examples/quickstart.sh and tests/run.sh: installs what is missing on Debian or Ubuntu.
#
#   set_up EXTRAS     system packages, .venv in the checkout, ucfuse with these extras in it
#
# Says nothing when there is nothing to do. Uses sudo where the user is not root.

MIN_PYTHON="3.11"

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root: $*; install sudo, or run it as root"
    fi
}

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# A Python that was built from source brings its headers; Debian's has them in a package.
has_headers() {
    "$1" -c "import os, sysconfig; open(os.path.join(sysconfig.get_path('include'), 'Python.h'))" \
        2>/dev/null
}

missing_packages() {
    local python
    command -v fusermount3 >/dev/null || echo fuse3
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
    command -v gcc >/dev/null || echo gcc libc6-dev
    if python="$(find_python)"; then
        has_headers "$python" || echo python3-dev
        "$python" -c "import ensurepip, venv" 2>/dev/null || echo python3-venv
    else
        echo python3 python3-dev python3-venv
    fi
    case "$1" in *examples*) command -v java >/dev/null || echo openjdk-17-jre-headless ;; esac
    case "$1" in *test*) command -v systemd-analyze >/dev/null || echo systemd ;; esac
}

install_system_packages() {
    local packages
    packages="$(missing_packages "$1" | xargs)"
    [ -n "$packages" ] || return 0
    command -v apt-get >/dev/null \
        || fail "install what Debian calls: $packages; then run this again"
    echo "Installing $packages"
    # shellcheck disable=SC2086 # one word per package
    { as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends $packages; } >/dev/null \
        || fail "apt-get could not install: $packages"
}

install_python_packages() {
    local python stamp
    python="$(find_python)" || fail "needs Python $MIN_PYTHON or newer, has $(python3 --version)"
    stamp=".venv/.installed-$(cat pyproject.toml <(echo "$1") | sha256sum | cut -c1-16)"
    [ ! -e "$stamp" ] || return 0
    .venv/bin/python -c "" 2>/dev/null || "$python" -m venv --clear .venv
    echo "Installing ucfuse[$1] into .venv"
    PIP_ROOT_USER_ACTION=ignore .venv/bin/pip install -qq --disable-pip-version-check \
        -e ".[$1]"
    touch "$stamp"
}

set_up() {
    install_system_packages "$1"
    install_python_packages "$1"
    export PATH="$PWD/.venv/bin:$PATH"
}
