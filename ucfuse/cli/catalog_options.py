"""The options of `ucfuse mount` that name a Unity Catalog server, and who we are there."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ucfuse.catalog.interface import Place
from ucfuse.catalog.sources import parse_volume_name
from ucfuse.config import CatalogOptions

__all__ = ["TOKEN_VARIABLE", "add_to", "catalog_of", "refuse_nonsense", "volume_of"]

TOKEN_VARIABLE = "UC_TOKEN"
SCHEME = "uc://"
API_PATH = "/api/2.1/unity-catalog"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("catalog")
    group.add_argument(
        "--catalog-url",
        type=_url,
        metavar="URL",
        help="mount the volumes that this Unity Catalog server shows you, or one of them",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"has your token there; read again when it changes (default: {TOKEN_VARIABLE})",
    )


def refuse_nonsense(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with 2 and the usage if these options make no sense together, or with others."""
    source = options.places[0] if len(options.places) == 2 else ""
    if not options.catalog_url:
        if options.token_file:
            parser.error("--token-file: say with --catalog-url whose token it has")
        if source.startswith(SCHEME):
            parser.error(f"{source}: say with --catalog-url which server knows it")
        return
    if options.dev or options.volumes:
        parser.error("--catalog-url excludes --dev and --volumes")
    if options.no_sign_request:
        parser.error("--no-sign-request: the catalog gives the credentials; leave it out")
    if len(options.places) not in (1, 2):
        parser.error("with --catalog-url, name the mount point, or a volume and the mount point")
    if source and parse_volume_name(source.removeprefix(SCHEME)) is None:
        parser.error(f"{source}: not a volume; write uc://CATALOG.SCHEMA.VOLUME")


def catalog_of(
    options: argparse.Namespace, environment: Mapping[str, str]
) -> CatalogOptions | None:
    """Return the server that was named; None: none was."""
    if not options.catalog_url:
        return None
    if options.token_file:
        return CatalogOptions(url=options.catalog_url, token_file=options.token_file.absolute())
    return CatalogOptions(url=options.catalog_url, token=environment.get(TOKEN_VARIABLE) or None)


def volume_of(options: argparse.Namespace) -> Place:
    """Return the only volume to mount; empty: all that there are."""
    if not options.catalog_url or len(options.places) != 2:
        return ()
    return parse_volume_name(options.places[0].removeprefix(SCHEME)) or ()


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r}: not a URL; write http://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            "a URL of scheme, host and port only; the token comes from --token-file or UC_TOKEN"
        )
    return text.rstrip("/").removesuffix(API_PATH)
