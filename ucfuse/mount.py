"""One mount from beginning to end: builds everything, serves, and ends in good order.

The command line calls `serve` in the process that is to be the daemon. Stores, budget and file
system (`assembly`), control socket and kernel session are made here, each in the scope of the one
before, and leave in the opposite order. A clean end commits what can be committed, says what could
not, and unmounts; a crash leaves a mount point that refuses access, never an empty directory.

Concurrency: `trio.run` is here, and the root nursery: signals, control connections, and the watch
for the first answer are its tasks. They end when the kernel session ends.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyfuse3
import trio

from ucfuse import __version__
from ucfuse.assembly import Assembly, assembled
from ucfuse.config import MountConfig
from ucfuse.control import ControlServer, Refusal, User
from ucfuse.errors import ConfigError, StaleName
from ucfuse.fs.caller import Uncommitted
from ucfuse.kernel import mountpoint, session
from ucfuse.kernel.adapter import FuseOperations
from ucfuse.kernel.descriptors import ProcDescriptors
from ucfuse.kernel.pagecache import KernelPageCache
from ucfuse.metrics import Metrics
from ucfuse.process import tune_process
from ucfuse.prometheus import Histograms, serve_metrics
from ucfuse.registry import MountRecord
from ucfuse.reporting import histograms_of, portability_of, status_of
from ucfuse.tasks import end_waits
from ucfuse.volume import InodeNo

__all__ = ["serve"]

log = logging.getLogger(__name__)

# How long a mount waits for the commits that a crash cut off. Large files go on behind it.
REPLAY_PATIENCE_S = 10.0

# A request that waits for a lock waits anew once it has it; with hundreds of them that takes time.
ABORT_PATIENCE_S = 3.0
ABORT_PAUSE_S = 0.01

# The first asks for an end in good order, the second for one without waiting for commits.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(config: MountConfig, runtime_dir: Path, on_usable: Callable[[], None]) -> int:
    """Mount and serve until the mount is taken away or a signal asks for the end.

    The mount point has been prepared. Calls `on_usable` once programs can work. Returns the exit
    code: 1 if something written could not be committed. Raises `ConfigError`: no mount came about.
    """
    tune_process()
    try:
        left = trio.run(_serve, config, runtime_dir, on_usable)
    except ExceptionGroup as group:
        raise _reason_of(group) from group
    return 1 if left else 0


def _reason_of(group: ExceptionGroup[Exception]) -> Exception:
    """Unwrap what the nurseries wrapped: a `ConfigError` alone is for the user to read."""
    matched, rest = group.split(ConfigError)
    reason: Exception | ExceptionGroup[Exception] = group if matched is None or rest else matched
    while isinstance(reason, ExceptionGroup) and len(reason.exceptions) == 1:
        reason = reason.exceptions[0]
    return reason


async def _serve(
    config: MountConfig, runtime_dir: Path, on_usable: Callable[[], None]
) -> Sequence[Uncommitted]:
    probe = ProcDescriptors(config.mountpoint)
    async with trio.open_nursery() as nursery:
        async with assembled(config, probe, KernelPageCache(), nursery) as assembly:
            await assembly.fs.replay(REPLAY_PATIENCE_S)
            mount = _Mount(config, assembly, nursery)
            left = await mount.run(runtime_dir, on_usable)
        nursery.cancel_scope.cancel()
    return left


class _Mount:
    """The running mount: kernel session, signals, and what `control` may ask of it.

    Borrows everything that it is given; owns the kernel session and the control socket.
    """

    def __init__(self, config: MountConfig, assembly: Assembly, nursery: trio.Nursery) -> None:
        self._config = config
        self._fs = assembly.fs
        self._assembly = assembly
        self._metrics = Metrics()
        self._nursery = nursery
        self._began_at = trio.current_time()
        self._warnings: list[str] = []
        self._operations: FuseOperations | None = None
        self._ended = False
        self._failure: ConfigError | None = None
        self._serving = trio.CancelScope()
        # Bounds the commits at the end. Cancelled by whoever does not want to wait for them.
        self._patience = trio.CancelScope()

    async def run(self, runtime_dir: Path, on_usable: Callable[[], None]) -> Sequence[Uncommitted]:
        """Serve to the end; return the files that could not be committed."""
        control = ControlServer(runtime_dir, self._record(), self, self._nursery)
        # Before the kernel session: whoever sees the mount can ask for its status.
        control.open()
        try:
            await self._offer_metrics()
            return await self._serve_kernel(on_usable)
        finally:
            with trio.CancelScope(shield=True):
                await control.aclose()

    async def _serve_kernel(self, on_usable: Callable[[], None]) -> Sequence[Uncommitted]:
        operations = FuseOperations(self._fs, self._config, self._metrics)
        self._operations = operations
        session.attach(operations, self._config, self._config.mountpoint)
        self._nursery.start_soon(self._become_usable, on_usable)
        self._nursery.start_soon(self._end_on_signal)
        with self._serving:
            await session.serve()
        self._ended = True
        left = await self._commit_rest()
        # Not in a `finally`: after a bug the mount point stays, and refuses access. If it were an
        # empty directory, programs would go on and write to the local disk.
        session.detach()
        if self._failure is not None:
            raise self._failure
        return left

    async def _offer_metrics(self) -> None:
        """Let Prometheus ask, if the user wants it. Raises `ConfigError`: the port is taken."""
        if self._config.metrics_port is not None:
            await serve_metrics(
                self._config.metrics_port, self.status, self._all_histograms, self._nursery
            )

    def _all_histograms(self) -> Histograms:
        return {
            "fuse": [("", self._metrics.fuse_latencies)],
            "store": [
                (volume.name, volume.metrics.store_latencies) for volume in self._assembly.volumes
            ],
        }

    async def _become_usable(self, on_usable: Callable[[], None]) -> None:
        try:
            self._warnings += await session.until_usable(self._config.mountpoint)
        except ConfigError as error:
            self._failure = error
            self._stop_serving()
            return
        for warning in self._assembly.warnings + self._warnings:
            log.warning("%s", warning)
        log.info("%s is mounted at %s", self._config.label, self._config.mountpoint)
        on_usable()

    def _stop_serving(self) -> None:
        if not self._ended:  # without its session pyfuse3 would crash
            pyfuse3.terminate()

    async def _end_on_signal(self) -> None:
        with trio.open_signal_receiver(*END_SIGNALS) as signals:
            name = signal.Signals(await anext(signals)).name
            log.info("%s: committing what was written, then unmounting", name)
            self._nursery.start_soon(self._end_in_order)
            await anext(signals)
            log.warning("asked again to end: not waiting for commits")
            self._patience.cancel()
            self._serving.cancel()

    async def _end_in_order(self) -> None:
        """Commit while programs can still be answered, so that none of them waits for the rest."""
        with trio.move_on_after(self._config.commit_timeout_s):
            await self._fs.commit_all()
        self._stop_serving()

    async def _commit_rest(self) -> Sequence[Uncommitted]:
        """Commit what programs wrote up to the end; log and return what could not be."""
        left: Sequence[Uncommitted] | None = None
        self._patience.deadline = trio.current_time() + self._config.commit_timeout_s
        with self._patience:
            left = await self._fs.commit_all()
        if left is None:
            left = self._fs.uncommitted()
        for file in left:
            reason = file.error or "still being written, or no time left"
            log.error("%s: %d bytes were not committed: %s", file.path, file.bytes, reason)
        return left

    # What `control` may ask.

    def status(self) -> Mapping[str, object]:
        """Return what `ucfuse status --json` prints of this mount."""
        uptime_s = trio.current_time() - self._began_at
        told = status_of(self._config, self._assembly, self._metrics, uptime_s=uptime_s)
        return {**told, "warnings": self._assembly.warnings + self._warnings}

    def portability(self) -> Mapping[str, object]:
        """Return what programs did that Databricks' own mount refuses."""
        return portability_of(self._config, self._assembly.encounters)

    def histograms(self) -> Mapping[str, object]:
        """Return how many requests took how long, by kind."""
        return histograms_of(self._assembly, self._metrics)

    async def users(self) -> Sequence[User]:
        """Return the processes that have something of the mount open, as far as we may see."""
        return _named(await trio.to_thread.run_sync(mountpoint.users_of, self._config.mountpoint))

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None]
    ) -> Sequence[Uncommitted]:
        """Commit everything dirty; return what could not be."""
        return await self._fs.commit_all(on_wait)

    def file(self, number: int) -> Mapping[str, object]:
        """Return what is known of one inode."""
        try:
            return asdict(self._fs.describe(InodeNo(number)))
        except StaleName:
            return {"error": "not known any more; try again"}

    async def abort(self) -> int:
        """End what waits. A request may then wait for something else, so until all have ended."""
        under_way = self._operations.under_way if self._operations else set()
        waiting = set(under_way)
        with trio.move_on_after(ABORT_PATIENCE_S):
            while waiting & under_way:
                end_waits()
                await trio.sleep(ABORT_PAUSE_S)
        end_waits()  # what runs with no program behind it
        ended = len(waiting - under_way)
        log.warning("ended on request: %d requests, and what runs behind them", ended)
        return ended

    async def unmount(self, *, lazy: bool = False) -> Refusal | None:
        """Take the mount away, which ends `serve`; or say why it stays."""
        work = partial(mountpoint.unmount, self._config.mountpoint, lazy=lazy)
        try:
            await trio.to_thread.run_sync(work)
        except mountpoint.MountBusy as busy:
            reason = "busy: a process of another user, or a mount inside it, uses it"
            return Refusal(reason, _named(busy.users))
        except ConfigError as error:
            return Refusal(str(error))
        return None

    def _record(self) -> MountRecord:
        return MountRecord(
            mountpoint=str(self._config.mountpoint),
            source=self._config.label,
            pid=os.getpid(),
            version=__version__,
            commit_timeout_s=self._config.commit_timeout_s,
        )


def _named(pids: Sequence[int]) -> list[User]:
    return [User(pid, _command_of(pid)) for pid in pids]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:  # it has ended meanwhile
        return "ended"
