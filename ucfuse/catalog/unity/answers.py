"""What the answers of a Unity Catalog server mean: names, places of volumes, keys. Pure.

Everything that comes from the server is judged here: a name that cannot be a directory's does not
show, a location that is no S3 is refused in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ucfuse.catalog.interface import Place, text_of
from ucfuse.catalog.sources import can_be_part, parse_source
from ucfuse.config import Keys, Source
from ucfuse.errors import ConfigError, StoreRefused, UnknownPlace

__all__ = ["LEVELS", "Entry", "entries_of", "entry_of", "keys_of", "next_token", "source_of"]

LEVELS = ("catalogs", "schemas", "volumes")
_IDS = ("id", "schema_id", "volume_id")
# Spark's names of the same place.
_SAME_AS_S3 = ("s3a://", "s3n://")
# What the server gives instead of keys for S3, by the name of the field.
_OTHER_KEYS = {
    "azure_user_delegation_sas": "Azure",
    "azure_aad": "Azure",
    "gcp_oauth_token": "Google Cloud",
    "r2_temp_credentials": "Cloudflare R2",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A catalog, schema or volume. `identity` tells it from another one of the same name.

    `id` and `location` are a volume's.
    """

    name: str
    identity: str
    id: str
    location: str


def entries_of(answer: Mapping[str, Any], above: Place) -> list[Entry]:
    """Return the entries of one page of a listing. Raises `StoreRefused`."""
    try:
        items = answer.get(LEVELS[len(above)]) or []
        entries = [_entry(item, len(above)) for item in items]
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreRefused(text_of(above), f"a listing without names: {error!r}") from error
    return [entry for entry in entries if can_be_part(entry.name)]


def entry_of(answer: Mapping[str, Any], place: Place) -> Entry:
    """Return the entry that was asked for by name. Raises `StoreRefused`."""
    try:
        return _entry(answer, len(place) - 1)
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreRefused(text_of(place), f"an answer without a name: {error!r}") from error


def next_token(answer: Mapping[str, Any]) -> str:
    """Return what asks for the next page, also after an empty one; empty: this was the last."""
    return str(answer.get("next_page_token") or "")


def source_of(entry: Entry, place: Place) -> Source:
    """Return where a volume lies. Raises `UnknownPlace`: not on S3."""
    location = entry.location
    for scheme in _SAME_AS_S3:
        if location.startswith(scheme):
            location = f"s3://{location.removeprefix(scheme)}"
    if not location.startswith("s3://"):
        where = location.partition(":")[0] if location else "nowhere"
        raise UnknownPlace(text_of(place), f"it lies at {where}:, and only s3: can be mounted")
    try:
        return parse_source(location)
    except ConfigError as error:
        raise UnknownPlace(text_of(place), str(error)) from error


def keys_of(answer: Mapping[str, Any], place: Place) -> Keys:
    """Return the keys that were vended. Raises `UnknownPlace`, `StoreRefused`."""
    found = answer.get("aws_temp_credentials")
    if not found:
        kind = next(
            (_OTHER_KEYS[name] for name in _OTHER_KEYS if answer.get(name)), "nothing known"
        )
        raise UnknownPlace(text_of(place), f"credentials for {kind}; only those for S3 can be used")
    try:
        expires_ms = answer.get("expiration_time")
        return Keys(
            access_key=str(found["access_key_id"]),
            secret_key=str(found["secret_access_key"]),
            session_token=found.get("session_token") or None,
            expires_at_s=expires_ms / 1000 if expires_ms else None,
        )
    except (TypeError, KeyError, AttributeError):  # its content is a secret: not in the message
        raise StoreRefused(text_of(place), "credentials without their parts") from None


def _entry(item: Mapping[str, Any], level: int) -> Entry:
    name = str(item["name"])
    number = str(item.get(_IDS[level]) or "")
    location = str(item.get("storage_location") or "")
    return Entry(name, f"{number} {location}", number, location)
