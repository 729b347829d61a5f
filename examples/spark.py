#!/usr/bin/env python3
"""A table from Spark Connect to pandas and numpy, and through a volume to Hugging Face datasets.

python examples/spark.py /Volumes/main/default/demo/spark

Needs Java 17 or newer and the extra `examples`. Prints the fingerprint of the dataset,
which stays the same as long as the files do.
"""

import glob
import os
import sys

import datasets
from pyspark.sql import SparkSession, functions

ROWS = 5_000


def load(directory: str) -> datasets.Dataset:
    files = sorted(glob.glob(os.path.join(directory, "*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, split="train")


def main(directory: str) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    spark = builder.getOrCreate()
    try:
        table = spark.range(ROWS).withColumn("half", functions.col("id") / 2)

        # Small tables: straight into memory.
        frame = table.toPandas()
        assert frame["half"].to_numpy().sum() == sum(range(ROWS)) / 2

        # Large ones: as Parquet through the volume; the second write replaces the first.
        path = os.path.abspath(directory)
        table.limit(10).write.mode("overwrite").parquet(f"file://{path}")
        table.write.mode("overwrite").parquet(f"file://{path}")
    finally:
        spark.stop()

    # Check.
    dataset = load(path)
    assert sorted(dataset["id"]) == list(range(ROWS))
    assert "_SUCCESS" in os.listdir(path)
    print(f"fingerprint {dataset._fingerprint}: {len(dataset)} rows in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
