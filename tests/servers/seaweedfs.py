"""SeaweedFS: the store that `ucfuse mount --dev` embeds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.identities import all_identities
from tests.servers.server import Server
from ucfuse import embedded

__all__ = ["running_seaweedfs"]


@contextmanager
def running_seaweedfs(work: Path) -> Iterator[Server]:
    """Run a server whose data is thrown away. Raises `ConfigError` if it cannot start."""
    store = embedded.start(
        work / "seaweedfs", log_path=work / "seaweedfs.log", others=list(all_identities())
    )
    try:
        yield Server("seaweedfs", store.endpoint_url, store.access_key, store.secret_key)
    finally:
        store.stop(keep_data=False)
