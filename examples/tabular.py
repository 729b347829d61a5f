#!/usr/bin/env python3
"""Tables as files on a volume, for pyarrow, pandas, polars, duckdb and datasets.

python examples/tabular.py /Volumes/main/default/demo/tables

Needs the extra `examples`.
"""

import glob
import os
import sys

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 10_000


def make_table() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table({"id": numbers, "square": numbers**2, "word": [f"w{n % 7}" for n in numbers]})


def write_parquet(table: pa.Table, directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    for part in range(4):
        rows = table.slice(part * ROWS // 4, ROWS // 4)
        pq.write_table(rows, os.path.join(directory, f"part-{part}.parquet"))


def totals_of_all_readers(directory: str) -> dict[str, int]:
    files = os.path.join(directory, "*.parquet")
    with duckdb.connect() as database:
        (in_duckdb,) = database.execute(f"select sum(square) from '{files}'").fetchall()
    return {
        "pyarrow": pa.compute.sum(pq.read_table(directory)["square"]).as_py(),
        "pandas": int(pd.read_parquet(directory)["square"].sum()),
        "polars": pl.scan_parquet(files).select(pl.col("square").sum()).collect().item(),
        "duckdb": int(in_duckdb[0]),
        "datasets": sum(load(directory)["square"]),
    }


def load(directory: str) -> datasets.Dataset:
    files = sorted(glob.glob(os.path.join(directory, "*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, split="train")


def main(directory: str) -> None:
    table = make_table()
    parquet = os.path.join(directory, "parquet")
    write_parquet(table, parquet)
    totals = totals_of_all_readers(parquet)

    # Check: all of them read the same.
    expected = sum(n * n for n in range(ROWS))
    assert totals == dict.fromkeys(totals, expected), totals
    print(f"{', '.join(totals)} agree on {directory}")


if __name__ == "__main__":
    main(*sys.argv[1:])
