"""Tests on real mounts: /dev/fuse, the daemon in a process of its own, real programs."""
