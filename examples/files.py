#!/usr/bin/env python3
"""Ordinary file access: Python's own functions and shell commands.

python examples/files.py /Volumes/main/default/demo/files
"""

import os
import subprocess
import sys


def shell(command: str, *arguments: str) -> str:
    result = subprocess.run(
        ["sh", "-euc", command, "sh", *arguments], check=True, text=True, capture_output=True
    )
    return result.stdout


def main(directory: str) -> None:
    sub_dir = os.path.join(directory, "sub-dir")
    file_path = os.path.join(sub_dir, "test_file")

    os.makedirs(sub_dir, exist_ok=True)
    with open(file_path, "w") as file:
        file.write("Hello, World!")

    # Other programs see it at once, here and wherever else the bucket is used.
    print(shell('ls -l "$1"', sub_dir), end="")
    shell('mkdir -p "$1/made-by-shell"; touch "$1/made-by-shell/empty"', sub_dir)
    shell('echo "one more line" >> "$1"', file_path)

    # Check.
    with open(file_path) as file:
        assert file.read() == "Hello, World!one more line\n"
    assert os.path.getsize(os.path.join(sub_dir, "made-by-shell", "empty")) == 0
    os.rename(file_path, file_path + ".renamed")
    assert sorted(os.listdir(sub_dir)) == ["made-by-shell", "test_file.renamed"]
    shell('rm -r "$1"', sub_dir)
    assert not os.path.exists(sub_dir)
    print(f"wrote, read, listed, renamed and removed files in {directory}")


if __name__ == "__main__":
    main(*sys.argv[1:])
