"""Identities of the tests' SeaweedFS: some with few rights, many that are limited to one prefix.

A scope is a prefix of the tests' bucket with an identity that may do nothing anywhere else. What a
catalog vends is limited in the same way, for reading or for changes, and has several keys, so that
old ones can expire.
"""

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = [
    "BUCKET",
    "LISTER",
    "READER",
    "STRANGER",
    "all_identities",
    "credentials_of",
    "environment_of_scope",
    "scope_names",
    "vended_keys",
    "vended_prefixes",
]

BUCKET = "mounts"
SECRET = "not-a-secret"
SCOPE_COUNT = 2000
VENDED_COUNT = 100
KEYS_PER_IDENTITY = 6

READ_ACTIONS = ("Read", "List")
ALL_ACTIONS = ("Read", "List", "Write", "Tagging")


def _identity(name: str, actions: Sequence[str], keys: Sequence[str] = ()) -> dict[str, Any]:
    credentials = [{"accessKey": key, "secretKey": SECRET} for key in keys or (name,)]
    return {"name": name, "credentials": credentials, "actions": list(actions)}


READER = _identity("reader", ["Read", "List"])
"""May read everything and write nothing."""
LISTER = _identity("lister", ["List"])
"""May see which names there are, and read nothing."""
STRANGER = _identity("stranger", ["Read:elsewhere"])
"""May do nothing in any bucket of the tests."""


def credentials_of(identity: dict[str, Any]) -> dict[str, str]:
    """Return what the environment of a process says that is this identity."""
    (pair,) = identity["credentials"]
    return {"AWS_ACCESS_KEY_ID": pair["accessKey"], "AWS_SECRET_ACCESS_KEY": pair["secretKey"]}


def scope_names() -> list[str]:
    """Return the names of the directories that have an identity of their own."""
    return [f"scope{number:04}" for number in range(SCOPE_COUNT)]


def environment_of_scope(prefix: str) -> dict[str, str]:
    """Return what the environment of a process says that may use nothing but its scope.

    Nothing if the prefix lies in no scope.
    """
    name = prefix.partition("/")[0]
    return credentials_of(_scoped(name)) if name.startswith("scope") else {}


def vended_prefixes() -> list[str]:
    """Return the prefixes for which there are keys to vend."""
    return [f"vended{number:03}/" for number in range(VENDED_COUNT)]


def vended_keys(prefix: str, *, for_changes: bool) -> list[tuple[str, str]]:
    """Return access and secret keys that may read this prefix, or also change it."""
    pairs = _vended(prefix, for_changes=for_changes)["credentials"]
    return [(pair["accessKey"], pair["secretKey"]) for pair in pairs]


def all_identities() -> Iterator[dict[str, Any]]:
    """Yield what the server is to know."""
    yield from (READER, LISTER, STRANGER)
    yield from (_scoped(name) for name in scope_names())
    for prefix in vended_prefixes():
        for for_changes in (False, True):
            yield _vended(prefix, for_changes=for_changes)


def _scoped(name: str) -> dict[str, Any]:
    return _identity(name, [f"{action}:{BUCKET}/{name}/*" for action in ALL_ACTIONS])


def _vended(prefix: str, *, for_changes: bool) -> dict[str, Any]:
    name = f"{prefix.strip('/')}-{'writer' if for_changes else 'reader'}"
    actions = ALL_ACTIONS if for_changes else READ_ACTIONS
    return _identity(
        name,
        [f"{action}:{BUCKET}/{prefix}*" for action in actions],
        [f"{name}-{number}" for number in range(KEYS_PER_IDENTITY)],
    )
