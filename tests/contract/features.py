"""Where the servers differ from AWS S3. Tests ask this table and then expect the difference.

A feature that a server gains shows as a failing test: change the table then.
"""

from dataclasses import dataclass, fields

from tests.servers.given import given_lacks, given_server

__all__ = ["FEATURES", "Features"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """True is what AWS S3 does."""

    verifies_credentials: bool = True
    copy_checks_source: bool = True
    copy_honours_condition: bool = True
    complete_honours_if_match: bool = True
    upload_is_ordered_by_its_creation: bool = True
    completes_once: bool = True
    keeps_empty_segments: bool = True
    keeps_newlines: bool = True
    directories_are_no_objects: bool = True  # SeaweedFS answers for "a/" once "a/b" is there
    limits_key_length: bool = True
    refuses_gone_upload: bool = True  # moto: 500
    verifies_checksums: bool = True
    keeps_checksums: bool = True
    checks_copied_range: bool = True


FEATURES = {
    "memory": Features(),
    "seaweedfs": Features(
        upload_is_ordered_by_its_creation=False,
        completes_once=False,
        keeps_empty_segments=False,
        directories_are_no_objects=False,
    ),
    "moto": Features(
        verifies_credentials=False,
        copy_checks_source=False,
        copy_honours_condition=False,
        complete_honours_if_match=False,
        upload_is_ordered_by_its_creation=False,
        completes_once=False,
        keeps_newlines=False,
        limits_key_length=False,
        refuses_gone_upload=False,
        verifies_checksums=False,
        keeps_checksums=False,
        checks_copied_range=False,
    ),
}


def _given_features() -> Features:
    lacks = set(given_lacks())
    unknown = lacks - {field.name for field in fields(Features)}
    if unknown:
        raise ValueError(f"S3_LACKS: no such feature: {', '.join(sorted(unknown))}")
    return Features(**dict.fromkeys(lacks, False))


if given_server() is not None:
    FEATURES = {"memory": FEATURES["memory"], "given": _given_features()}
