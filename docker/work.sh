#!/usr/bin/env bash
# What a program in another container does on the shared mount: write, read, rename, list, remove.
set -euo pipefail

dir="$1/work-$$"
mkdir -p "$dir/deep/er"
trap 'rm -rf "$dir"' EXIT

head -c 20000000 /dev/urandom > "$dir/big"
cp "$dir/big" "$dir/deep/copy"
cmp "$dir/big" "$dir/deep/copy"
for i in $(seq 20); do echo "line $i" >> "$dir/log"; done
[ "$(wc -l < "$dir/log")" = 20 ]
mv "$dir/deep" "$dir/moved"
cmp "$dir/big" "$dir/moved/copy"
[ "$(ls "$dir")" = "$(printf 'big\nlog\nmoved')" ]
echo "work: all right in $dir"
