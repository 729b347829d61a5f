#!/usr/bin/env python3
"""TCP proxy that gives a loopback S3 server the timing of a remote one.

Each request waits LATENCY milliseconds before its first byte reaches the server, and each
connection's response is held to BANDWIDTH MB/s (0: unlimited).  Bulk bytes move with splice(2),
so the proxy itself costs little CPU.

usage: s3lag.py LISTEN_PORT TARGET_PORT [--latency MS] [--bandwidth MB_PER_S]
"""

import argparse
import contextlib
import os
import socket
import threading
import time

CHUNK = 256 * 1024


def splice_all(src, dst, pipe_r, pipe_w, limit):
    n = os.splice(src.fileno(), pipe_w, limit)
    left = n
    while left:
        left -= os.splice(pipe_r, dst.fileno(), left)
    return n


def pump_responses(server, client, bandwidth, answered):
    pipe_r, pipe_w = os.pipe()
    ready = time.monotonic()
    try:
        while True:
            n = splice_all(server, client, pipe_r, pipe_w, CHUNK)
            if n == 0:
                break
            answered.set()
            if bandwidth:
                ready = max(ready, time.monotonic() - 0.005) + n / bandwidth
                pause = ready - time.monotonic()
                if pause > 0.001:
                    time.sleep(pause)
    except OSError:
        pass
    finally:
        os.close(pipe_r), os.close(pipe_w)
        for s in (client, server):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def serve(client, target, latency, bandwidth):
    server = socket.create_connection(("127.0.0.1", target))
    for s in (client, server):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answered = threading.Event()
    answered.set()  # the first request waits too
    threading.Thread(
        target=pump_responses, args=(server, client, bandwidth, answered), daemon=True
    ).start()
    try:
        while data := client.recv(CHUNK):
            if answered.is_set():  # a new request begins
                answered.clear()
                time.sleep(latency)
            server.sendall(data)
    except OSError:
        pass
    finally:
        for s in (client, server):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("listen", type=int)
    p.add_argument("target", type=int)
    p.add_argument("--latency", type=float, default=15.0, metavar="MS")
    p.add_argument("--bandwidth", type=float, default=90.0, metavar="MB_PER_S")
    a = p.parse_args()
    threading.stack_size(256 * 1024)
    with socket.create_server(("127.0.0.1", a.listen), backlog=1024) as listener:
        while True:
            client, _ = listener.accept()
            threading.Thread(
                target=serve,
                args=(client, a.target, a.latency / 1000, a.bandwidth * 1e6),
                daemon=True,
            ).start()


if __name__ == "__main__":
    main()
