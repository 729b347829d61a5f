#!/usr/bin/env python3
"""A Delta table on a volume: two versions of it, written and read with deltalake.

python examples/delta.py /Volumes/main/default/demo/delta

Needs the extra `examples`. With these options commits are renames, which are safe with
one writer at a time. On a mount with `--hardlinks copy` leave the options out: then commits are
links, of which the store lets one win, and any number of writers on any number of hosts are safe.
"""

import sys

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

OPTIONS = {"MOUNT_ALLOW_UNSAFE_RENAME": "true"}


def write(directory: str, start: int, stop: int, mode: str) -> None:
    rows = pa.table({"id": pa.array(range(start, stop))})
    deltalake.write_deltalake(directory, rows, mode=mode, storage_options=OPTIONS)


def ids(table: deltalake.DeltaTable) -> list[int]:
    parts = [pq.read_table(uri.removeprefix("file://")) for uri in table.file_uris()]
    return sorted(number for part in parts for number in part["id"].to_pylist())


def main(directory: str) -> None:
    write(directory, 0, 100, "overwrite")
    write(directory, 100, 150, "append")

    # Check: both versions are there.
    now = deltalake.DeltaTable(directory)
    before = deltalake.DeltaTable(directory, version=now.version() - 1)
    assert ids(now) == list(range(150))
    assert ids(before) == list(range(100))
    print(f"versions {before.version()} and {now.version()} in {directory}")


if __name__ == "__main__":
    main(*sys.argv[1:])
