"""What `stat` and listings show of an inode, put together from its name and its content."""

from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File, Node, needs_mtime
from ucfuse.volume import Attributes

__all__ = ["attributes_of", "lacks_mtime", "learn_mtime"]


def attributes_of(services: Services, node: Node) -> Attributes:
    """Return the attributes as far as they are known now, without asking the store."""
    valid_s = services.superblock.valid_s(node)
    if isinstance(node, Directory):
        return Attributes(node.number, True, 0, node.mtime_ns, 2, valid_s)
    content = services.contents.known(node)
    size = node.version.size if node.version is not None else 0
    mtime_ns = (node.version.mtime_s or 0) * 1_000_000_000 if node.version is not None else 0
    if content is not None:
        size = content.size
        if content.is_dirty or mtime_ns == 0:
            mtime_ns = content.written_ns
    return Attributes(node.number, False, size, mtime_ns, int(node.has_name), valid_s)


def lacks_mtime(node: Node) -> bool:
    """Whether the store has to be asked for LastModified, which the commit did not tell."""
    return isinstance(node, File) and needs_mtime(node) and not node.is_local


async def learn_mtime(services: Services, node: Node) -> None:
    """Ask for LastModified where the commit did not tell it."""
    if isinstance(node, File) and lacks_mtime(node):
        await services.lookups.refresh(node)
