"""What every command says to a wrong path, without a mount, to a dead daemon, without permission.

`test_mistakes` makes each of these mistakes. Ctrl-C is in `test_interrupted`.
"""

from dataclasses import replace

from .mistakes import Cell, Never, Table, Words

__all__ = [
    "DEAD",
    "LOCKED",
    "NOT_OURS",
    "NO_MOUNT",
    "NO_PERMISSION",
    "READ_ONLY",
    "WRONG_PATH",
]

NOWHERE = "/no/such/place"
LISTED = Words("not a ucfuse mount; `ucfuse status` lists them")
NO_DIRECTORY = Words("/no/such/place: no such directory; name that of the mount")
CATALOG = ["--catalog-url", "http://127.0.0.1:1"]

WRONG_PATH: Table = {
    "mount": [
        Cell(["memory:", NOWHERE], Words("create it with: mkdir -p /no/such/place")),
        Cell(
            ["memory:", "{tmp}/file"], Words("not a directory; choose an empty directory"), "file"
        ),
        Cell(["--volumes", NOWHERE, "{tmp}/mnt"], Words("name a file with volumes"), "volumes"),
        Cell(
            [*CATALOG, "--token-file", NOWHERE, "{tmp}/mnt"],
            Words("/no/such/place: cannot be read: No such file or directory; see --token-file"),
            "token",
        ),
        Cell(
            ["--state-dir", "{tmp}/file/x", "memory:", "{tmp}/mnt"],
            Words("cannot be created: Not a directory; choose another with --state-dir"),
            "state",
        ),
    ],
    "umount": [Cell([NOWHERE], LISTED), Cell(["{tmp}/file"], LISTED, "file")],
    "status": [Cell(["--file", NOWHERE], Words("/no/such/place: No such file or directory"))],
    "abort": [Cell([NOWHERE], LISTED)],
    "doctor": [
        Cell([NOWHERE], Words("not a source; write s3://BUCKET", 2)),
    ],
    "cp": [
        Cell([NOWHERE, "s3://mounts/x"], Words("/no/such/place: no such file or directory")),
    ],
    "sync": [
        Cell(["{tmp}/file", "s3://mounts/x"], Words("copy a file with `cp`"), "file"),
        Cell(
            ["--quiet", "s3://mounts/there", "/proc/none/x"],
            Words("/proc/none/x: no such file or directory"),
            "target",
        ),
    ],
    "recover": [
        Cell(["--state-dir", NOWHERE, "list"], NO_DIRECTORY, "list"),
        Cell(["--state-dir", NOWHERE, "commit", "x"], NO_DIRECTORY, "commit"),
        Cell(["--state-dir", NOWHERE, "export", "x", "{tmp}/x"], NO_DIRECTORY, "export"),
        Cell(["discard", NOWHERE], Words("not kept; see `ucfuse recover list`"), "discard"),
    ],
    "run": [Cell([NOWHERE], Words("can't open file '/no/such/place'", 2, of_script=True))],
    "completion": Never("it takes no path; of a wrong shell: test_completion"),
    "mount.ucfuse": [
        Cell(["memory:", NOWHERE], Words("create it with: mkdir -p /no/such/place", 32)),
        Cell(
            ["none", "{tmp}/mnt", "-o", f"volumes={NOWHERE}"],
            Words("name a file with volumes", 32),
            "volumes",
        ),
    ],
}

NEITHER = Words("one of the two is in a bucket: s3://BUCKET/PATH, or a path on a mount", 2)
MOUNTS = Never("it mounts there; test_lifecycle has what is mounted already")
ASKS_NO_MOUNT = Never("it asks no mount")

NO_MOUNT: Table = {
    "mount": MOUNTS,
    "umount": [Cell(["{tmp}"], LISTED), Cell(["--lazy", "/"], LISTED, "lazy")],
    "status": [
        Cell(["--file", "{tmp}"], Words("in no mount of yours; `ucfuse status` lists them")),
        Cell([], Words("no mounts", 0, in_report=True), "all"),
    ],
    "abort": [Cell(["{tmp}"], LISTED)],
    "doctor": ASKS_NO_MOUNT,
    "cp": [Cell(["{tmp}/file", "{tmp}/mnt/f"], NEITHER)],
    "sync": Never("as cp"),
    "recover": Never("it works without: test_recovery.test_it_works_without_a_mount"),
    "run": ASKS_NO_MOUNT,
    "completion": ASKS_NO_MOUNT,
    "mount.ucfuse": MOUNTS,
}

BOTH_MENDS = Words("its daemon has died; mount it again, or run `ucfuse umount {dead}`")
NAMED = Words("the daemon of its mount has died; `ucfuse status` names it")
SHOWN = Words("the daemon has died; run `ucfuse umount {dead}`, or mount it again", in_report=True)
NAME_THAT = Words("inside the mount at {dead}; name that one")

# Mounting over it and taking it away are what mends it: test_lifecycle.
DEAD: Table = {
    "mount": [
        Cell(["memory:", "{dead}/sub"], NAMED),
        Cell(["--state-dir", "{dead}/x", "memory:", "{tmp}/mnt"], Words("--state-dir"), "state"),
        Cell(["--volumes", "{dead}/x", "{tmp}/mnt"], Words("name a file with volumes"), "volumes"),
    ],
    "umount": [Cell(["{dead}/sub"], NAME_THAT)],
    "status": [
        Cell([], SHOWN),
        Cell(["--portability"], SHOWN, "portability"),
        Cell(["--file", "{dead}/f"], BOTH_MENDS, "file"),
    ],
    "abort": [Cell(["{dead}"], BOTH_MENDS), Cell(["{dead}/sub"], NAME_THAT, "inside")],
    "doctor": Never("it asks no mount; of a state directory that cannot be used: LOCKED"),
    "cp": [
        Cell(["{tmp}/file", "{dead}/f"], BOTH_MENDS),
    ],
    "sync": [
        Cell(["{dead}", "{tmp}/new"], BOTH_MENDS),
    ],
    "recover": [
        Cell(["--state-dir", "{dead}", "list"], NAMED, "list"),
        Cell(["--state-dir", "{dead}/x", "commit", "x"], NAMED, "commit"),
        Cell(["--state-dir", "{dead}/x", "discard", "x"], NAMED, "discard"),
        Cell(["--state-dir", "{state}", "export", "{kept}", "{dead}/x"], NAMED, "export"),
    ],
    "run": [Cell(["{dead}/f.py"], Words("Transport endpoint", 2, of_script=True))],
    "completion": ASKS_NO_MOUNT,
    "mount.ucfuse": [Cell(["memory:", "{dead}/sub"], replace(NAMED, code=32))],
}

ANOTHER_USER = "mounted by another user, or with another XDG_STATE_HOME; run this as that user"
OF_ANOTHER_USER = Words("on a mount of another user, or with another XDG_STATE_HOME")
TAKEN = Words("is already mounted here; run `ucfuse umount {theirs}` first")

# A mount of root's, seen by somebody else; or, where we are not root, with another XDG_STATE_HOME.
NOT_OURS: Table = {
    "mount": [Cell(["memory:", "{theirs}"], TAKEN, "theirs")],
    "umount": [
        Cell(["{theirs}"], Words(ANOTHER_USER), "theirs"),
        Cell(["--lazy", "{theirs}"], Words(ANOTHER_USER), "theirs-lazy"),
    ],
    "status": [
        Cell(["--file", "{theirs}"], Words("in no mount of yours"), "theirs"),
        Cell([], Words("no mounts", 0, in_report=True), "theirs-all"),
    ],
    "abort": [Cell(["{theirs}"], Words(ANOTHER_USER), "theirs")],
    "cp": [Cell(["{theirs}/f", "{tmp}/new"], OF_ANOTHER_USER, "theirs")],
    "mount.ucfuse": [Cell(["memory:", "{theirs}"], replace(TAKEN, code=32), "theirs")],
}

RUN_AS = Words("Permission denied; run this as a user who may use it")

# Files and directories that one may not use: {locked}, and {secret}, a file.
LOCKED: Table = {
    "mount": [
        Cell(["--volumes", "{secret}", "{tmp}/mnt"], Words("name a file with volumes"), "volumes"),
        Cell(
            [*CATALOG, "--token-file", "{secret}", "{tmp}/mnt"],
            Words("{secret}: cannot be read: Permission denied; see --token-file"),
            "token",
        ),
        Cell(
            ["--state-dir", "{locked}/x", "memory:", "{tmp}/mnt"],
            Words("cannot be created: Permission denied; choose another with --state-dir"),
            "state",
        ),
        Cell(["memory:", "{locked}/x"], RUN_AS, "mountpoint"),
    ],
    "umount": [Cell(["{tmp}/mnt"], RUN_AS, "state", {"XDG_STATE_HOME": "{locked}"})],
    "status": [
        Cell([], RUN_AS, "state", {"XDG_STATE_HOME": "{locked}"}),
        Cell([], RUN_AS, "records", {"XDG_STATE_HOME": "{unreadable}"}),
        Cell(["--file", "{locked}/f"], RUN_AS, "file"),
    ],
    "abort": [Cell(["{tmp}/mnt"], RUN_AS, "state", {"XDG_STATE_HOME": "{locked}"})],
    "doctor": [
        Cell(
            ["--state-dir", "{locked}/x"],
            Words("{locked}/x: Permission denied; choose another with --state-dir", in_report=True),
            "state",
        )
    ],
    "cp": [
        Cell(["s3://mounts/there/f", "{locked}"], Words("no permission to write there"), "down"),
    ],
    "sync": [
        Cell(["--quiet", "{locked}", "s3://mounts/x"], Words("{locked}: permission denied"), "up"),
    ],
    "recover": [
        Cell(["list"], RUN_AS, "list", {"XDG_STATE_HOME": "{unreadable}"}),
        Cell(["--state-dir", "{locked}", "commit", "x"], RUN_AS, "commit"),
        Cell(["--state-dir", "{locked}", "discard", "x"], RUN_AS, "discard"),
        Cell(["--state-dir", "{state}", "export", "{kept}", "{locked}/x"], RUN_AS, "export"),
    ],
    "run": [Cell(["{secret}"], Words("Permission denied", 2, of_script=True))],
    "mount.ucfuse": [
        Cell(
            ["none", "{tmp}/mnt", "-o", "volumes={secret}"],
            Words("name a file with volumes", 32),
            "volumes",
        )
    ],
}

DENIED = Words("AccessDenied: Access Denied; see the credentials in use and what they allow")

# An identity of the store that may read and not write. Of one that may nothing: test_identities.
READ_ONLY: Table = {
    "doctor": [Cell(["{source}"], Words("fail  write: AccessDenied: ", in_report=True), "store")],
    "cp": [Cell(["--quiet", "{tmp}/file", "{source}x"], DENIED, "store")],
    "recover": [
        Cell(["--state-dir", "{state}", "commit", "{kept}"], DENIED, "commit-store"),
        Cell(["--state-dir", "{state}", "discard", "{kept}"], DENIED, "discard-store"),
    ],
}

NO_PERMISSION: Table = {
    **{command: Never("it reads and writes no file") for command in ("completion",)},
    **NOT_OURS,
    **LOCKED,
    **READ_ONLY,
}
