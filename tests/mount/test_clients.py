"""What machine-learning libraries do to files, as the same system calls."""

import fcntl
import json
import os
import struct
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from .harness import Mount, Volume
from .programs import run_python

MiB = 1 << 20


def test_tensorboard_appends_each_record_by_an_open_of_its_own(volume: Volume) -> None:
    expected = b""
    for step in range(30):
        record = struct.pack("<QI", step, step) * 5
        with open(volume.path / "events.out", "ab") as file:
            file.write(record)
        expected += record
    assert volume.bucket.get("events.out") == expected


def test_safetensors_sizes_the_file_first_then_writes_and_renames(mount: Mount) -> None:
    data = os.urandom(20 * MiB)
    mount.bucket.put("model.safetensors", b"the last one")
    temporary = mount.path / ".model.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, len(data))
    for start in range(0, len(data), MiB):
        os.pwrite(fd, data[start : start + MiB], start)
    os.close(fd)
    sent = mount.status()["store_bytes_sent"]
    os.rename(temporary, mount.path / "model.safetensors")
    assert mount.status()["store_bytes_sent"] - sent < MiB, "a rename sends no bytes"
    assert mount.bucket.files() == {"model.safetensors"}
    assert mount.bucket.get("model.safetensors") == data


def read_mapped_slices(path: str) -> None:
    import mmap

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for start in range(0, len(mapped), 3 << 20):
            assert mapped[start] == (start >> 20) % 251, start


def test_safetensors_reads_a_mapping(volume: Volume) -> None:
    data = b"".join(bytes([number % 251]) * MiB for number in range(40))
    volume.bucket.put("m.safetensors", data)
    run_python(read_mapped_slices, volume.path / "m.safetensors")


def test_distributed_checkpoint_writes_shards_then_renames_its_metadata(mount: Mount) -> None:
    directory = mount.path / "step-100"
    directory.mkdir()
    shards = {f"__{rank}_{n}.distcp": os.urandom(3 * MiB) for rank in range(2) for n in range(4)}

    def write(name: str) -> None:
        with open(directory / name, "wb") as file:
            for start in range(0, len(shards[name]), 500_000):
                file.write(shards[name][start : start + 500_000])
                file.flush()
            os.fsync(file.fileno())

    with mount.counting() as counts, ThreadPoolExecutor(8) as pool:
        list(pool.map(write, shards))
    assert counts.store["PUT"] == len(shards), "fsync and close are one upload together"
    for _ in range(2):
        with open(directory / ".metadata.tmp", "wb") as file:
            file.write(b"metadata")
            os.fsync(file.fileno())
        (directory / ".metadata").unlink(missing_ok=True)
        os.rename(directory / ".metadata.tmp", directory / ".metadata")
    place = mount.bucket.below("step-100")
    assert place.files() == {*shards, ".metadata"}
    assert all(place.get(name) == data for name, data in shards.items())


def test_checkpoint_directory_is_committed_by_its_rename(volume: Volume) -> None:
    temporary = volume.path / "checkpoint-7.tmp"
    (temporary / "state").mkdir(parents=True)
    for number in range(20):
        (temporary / "state" / f"{number}").write_bytes(b"%d" % number * 1000)
    os.rename(temporary, volume.path / "checkpoint-7")
    names = {f"checkpoint-7/state/{number}" for number in range(20)}
    assert volume.bucket.files() == names
    assert "checkpoint-7" in os.listdir(volume.path)


def test_datasets_move_incomplete_files_into_place_under_a_lock(volume: Volume) -> None:
    with open(volume.path / "cache.lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (volume.path / "data.incomplete").write_bytes(b"arrow" * 1000)
        os.replace(volume.path / "data.incomplete", volume.path / "data.arrow")
    assert volume.bucket.get("data.arrow") == b"arrow" * 1000
    seconds = volume.bucket.modified_s("data.arrow")
    assert (volume.path / "data.arrow").stat().st_mtime == seconds


def test_many_threads_read_one_file_at_random_places(volume: Volume) -> None:
    data = os.urandom(32 * MiB)
    volume.bucket.put("columns.parquet", data)
    wrong: list[int] = []

    def read(column: int) -> None:
        with open(volume.path / "columns.parquet", "rb", buffering=0) as file:
            for chunk in range(8):
                start = (chunk * 4 + column % 4) * MiB + column * 1000
                os.lseek(file.fileno(), start, os.SEEK_SET)
                if file.read(100_000) != data[start : start + 100_000]:
                    wrong.append(start)

    threads = [threading.Thread(target=read, args=(column,)) for column in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_spark_committer_renames_out_of_its_temporary_tree(volume: Volume) -> None:
    for task in range(3):
        attempt = volume.path / f"_temporary/0/_temporary/attempt_{task}"
        attempt.mkdir(parents=True)
        (attempt / f"part-{task}").write_bytes(b"rows")
        (attempt / f".part-{task}.crc").write_bytes(b"crc")
        os.rename(attempt, volume.path / f"_temporary/0/task_{task}")
        for name in (f"part-{task}", f".part-{task}.crc"):
            os.rename(volume.path / f"_temporary/0/task_{task}" / name, volume.path / name)
    subprocess.run(["rm", "-r", volume.path / "_temporary"], check=True, timeout=30)
    (volume.path / "_SUCCESS").touch()
    parts = {f"part-{task}" for task in range(3)} | {f".part-{task}.crc" for task in range(3)}
    assert volume.bucket.names() == {*parts, "_SUCCESS"}


def test_json_written_by_a_temporary_file_and_replace(volume: Volume) -> None:
    path = volume.path / "config.json"
    for number in range(5):
        with tempfile.NamedTemporaryFile("w", dir=volume.path, delete=False) as file:
            json.dump({"number": number}, file)
        os.replace(file.name, path)
        assert json.loads(path.read_text()) == {"number": number}
        assert json.loads(volume.bucket.get("config.json")) == {"number": number}
    assert volume.bucket.names() == {"config.json"}


def test_module_made_after_a_failed_import_is_found(volume: Volume) -> None:
    run_python(import_after_a_failure, volume.path)


def import_after_a_failure(directory: str) -> None:
    import sys
    from importlib import import_module

    sys.path.insert(0, directory)
    try:
        import_module("fresh_module")
    except ImportError:
        with open(f"{directory}/fresh_module.py", "w") as file:
            file.write("value = 42\n")
    assert import_module("fresh_module").value == 42
