#!/usr/bin/env bash
# Many small files to the local disk, many at a time.
#
#   examples/parallel_copy.sh /Volumes/main/default/demo/images [LOCAL_DIRECTORY]
#
# Without images there it makes some first.
set -euo pipefail

source="$1"
target="${2:-$(mktemp -d)}"
mkdir -p "$target"

if [ ! -d "$source" ]; then
    mkdir -p "$source/train" "$source/test"
    for i in $(seq 40); do
        head -c 150000 /dev/urandom > "$source/train/$i.jpg"
    done
    head -c 150000 /dev/urandom > "$source/test/a name with spaces.jpg"
fi

# Directories first: two `cp --parents` that make the same one get in each other's way.
(cd "$source" && find . -type d -exec mkdir -p "$target/{}" \;)
(cd "$source" && find . -type f -print0 | xargs -0 -P 256 -I {} cp --parents "{}" "$target/")

# Check.
diff -r "$source" "$target"
echo "copied $(find "$target" -type f | wc -l) files from $source to $target"
