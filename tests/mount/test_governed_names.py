"""A Unity Catalog above the mount: which names show, what they cost, and what opens a volume."""

import errno
import os
import subprocess

import pytest

from tests.servers.unity import Kind, Trouble, UnityServer

from .harness import MountCatalog, ucfuse
from .programs import eventually, fails_with
from .witness import Bucket


@pytest.mark.promise("P54", "P56")
def test_a_user_finds_his_volumes_and_works_in_them_without_keys_of_his_own(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: names and keys come from the catalog."""
    unity.add("main.other.frozen", "vended099/").is_shown = False
    unity.add("second.default.local", location="file:///tmp/volume")
    governed.put("d/f", b"data")
    mount = mount_catalog()
    images = mount.path / "main/default/images"

    assert sorted(os.listdir(mount.path)) == ["main", "second"]
    assert os.listdir(mount.path / "main") == ["default"]
    assert os.listdir(mount.path / "main/default") == ["images"]
    assert unity.vended == []  # nothing in it was used
    assert (images / "d/f").read_bytes() == b"data"
    assert unity.vended == [("main.default.images", "READ_VOLUME")]
    (images / "d/new").write_bytes(b"new")
    (images / "d/f").rename(images / "g")
    os.makedirs(images / "deep/er", exist_ok=True)

    assert unity.vended[1:] == [("main.default.images", "WRITE_VOLUME")]
    assert governed.files() == {"d/new", "g"}
    (told,) = mount.status()["volumes"]
    assert (told["name"], told["source"]) == ("main.default.images", governed.source)
    assert (told["read_only"], told["problem"]) == (False, "")
    for place in (mount.path, mount.path / "main", mount.path / "main/default"):
        with fails_with(errno.EOPNOTSUPP):
            (place / "made").mkdir()
        with fails_with(errno.ENOENT):
            os.listdir(place / "nothing")
    assert mount.umount().returncode == 0


@pytest.mark.promise("P54")
def test_every_level_is_listed_as_a_whole_and_once_within_the_ttl(
    unity: UnityServer, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: complete, as the server filters it, one listing for all who ask."""
    catalogs = {"big": (200, 1150), "middle": (30, 30), "small": (20, 20)}
    for catalog, (schema_count, volume_count) in catalogs.items():
        for number in range(schema_count):
            unity.empty.add(f"{catalog}.s{number}")
        for number in range(volume_count):
            schema = f"s{0 if number < 950 and catalog == 'big' else number % schema_count}"
            unity.add(f"{catalog}.{schema}.v{number}", location="file:///nowhere")
    hidden = [unity.add(f"big.s1.hidden{number}", "x/") for number in range(5)]
    for volume in hidden:
        volume.is_shown = False
    mount = mount_catalog("--metadata-ttl=5m")

    found = subprocess.run(
        ["find", mount.path, "-mindepth", "1", "-maxdepth", "3", "-printf", "%d %P\n"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    subprocess.run(["ls", "-lR", mount.path / "middle"], capture_output=True, timeout=60)
    subprocess.run(["ls", "-l", mount.path / "big/s0"], capture_output=True, check=True, timeout=60)

    by_depth = {depth: sum(line.startswith(f"{depth} ") for line in found) for depth in (1, 2, 3)}
    assert by_depth == {1: 3, 2: 250, 3: 1200}
    names = {line.split(" ", 1)[1] for line in found if line.startswith("3 ")}
    shown = [name for name, volume in unity.volumes.items() if volume.is_shown]
    assert names == {name.replace(".", "/") for name in shown}
    page_counts = dict(unity.counts)
    # Of more than 100 names each page has an empty one behind it, but for the last.
    assert page_counts.pop("schemas big") == 3
    assert page_counts.pop("volumes big s0") == 2 * 10 - 1
    assert set(page_counts.values()) == {1}
    assert len(page_counts) == 1 + 2 + 249  # what a user sees, and nothing by its name
    assert unity.vended == []


@pytest.mark.promise("P54")
def test_what_is_made_dropped_or_made_anew_in_the_catalog_shows_within_the_ttl(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, whole_bucket: Bucket
) -> None:
    governed.put("f", b"old place")
    unity.add("main.default.text", location="file:///nowhere")
    mount = mount_catalog("--metadata-ttl=100ms")
    images, default = mount.path / "main/default/images", mount.path / "main/default"
    assert (images / "f").read_bytes() == b"old place"
    held = os.open(images / "f", os.O_RDONLY)

    unity.add("main.default.new", location="file:///nowhere")
    unity.remove("main.default.text")
    eventually("the new name", lambda: sorted(os.listdir(default)) == ["images", "new"])
    unity.remove("main.default.images")
    eventually("the end of an open volume's name", lambda: not images.exists())
    unity.add("main.default.images", f"{governed.prefix}below/")
    governed.below("below").put("f", b"new place")

    eventually("the volume in its new place", lambda: (images / "f").exists())
    assert (images / "f").read_bytes() == b"new place"
    assert os.pread(held, 100, 0) == b"old place"
    os.close(held)


@pytest.mark.promise("P55")
def test_one_volume_is_mounted_by_its_name(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: uc://CATALOG.SCHEMA.VOLUME."""
    governed.put("f", b"data")
    mount = mount_catalog(volume="main.default.images")

    assert (mount.path / "f").read_bytes() == b"data"
    assert unity.vended == [("main.default.images", "READ_VOLUME")]
    (mount.path / "g").write_bytes(b"more")

    assert governed.get("g") == b"more"
    told = mount.status()
    assert told["source"] == "uc://main.default.images"
    assert [volume["source"] for volume in told["volumes"]] == [governed.source]


@pytest.mark.promise("P55")
def test_a_hosted_server_keeps_keys_elsewhere_and_names_in_lower_case(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: the open-source server, and the one that Databricks hosts."""
    unity.hosted = True
    governed.put("f", b"data")
    one = mount_catalog(volume="Main.Default.IMAGES")
    assert (one.path / "f").read_bytes() == b"data"
    assert one.umount().returncode == 0

    mount = mount_catalog()
    (mount.path / "main/default/images/g").write_bytes(b"more")
    assert governed.get("g") == b"more"
    assert not (mount.path / "Main").exists()
    assert os.listdir(mount.path) == ["main"]


@pytest.mark.promise("P58")
@pytest.mark.parametrize("trouble", [Trouble.STALL, Trouble.FAILING, "down"])
def test_a_catalog_that_is_slow_or_down_does_not_touch_an_open_volume(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, trouble: Trouble | str
) -> None:
    """README, Governed volumes: only the levels above a volume ask the catalog."""
    governed.put("f", b"data")
    mount = mount_catalog("--metadata-ttl=50ms", "--metadata-timeout=20s")
    images = mount.path / "main/default/images"
    assert (images / "f").read_bytes() == b"data"
    (images / "g").write_bytes(b"first")
    troubled = unity.troubled(trouble) if isinstance(trouble, Trouble) else unity.down()

    with troubled:
        # Each of these would take 20 s if it waited; the watchdog ends the test before.
        for number in range(10):
            assert (images / "f").read_bytes() == b"data"
            (images / f"new{number}").write_bytes(b"new")
            assert os.stat(images).st_ino == images.stat().st_ino
            subprocess.run(["sleep", "0.06"], check=True)
        assert "new3" in os.listdir(images)
    assert governed.has("new9")


def refused_at_start(*arguments: object, environment: dict[str, str]) -> str:
    """Return the one line with which the mount ended before it was there."""
    done = ucfuse("mount", *map(str, arguments), environment=environment)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.promise("P59")
def test_a_catalog_that_cannot_be_used_ends_the_start_in_one_line(
    unity: UnityServer, environment: dict[str, str], scratch: object, bucket: Bucket
) -> None:
    """README, When something goes wrong: nothing is mounted by half."""
    unity.add("main.default.local", location="file:///tmp/volume")
    place = f"{scratch}/start-{bucket.prefix.strip('/')}"
    os.makedirs(place)
    catalog = ("--catalog-url", unity.url)

    def line(*arguments: str) -> str:
        return refused_at_start(*catalog, *arguments, place, environment=environment)

    unity.tokens = {"right"}
    assert "see --token-file or UC_TOKEN" in line()
    unity.tokens = None
    assert "only s3: can be mounted" in line("uc://main.default.local")
    assert "see the name and --catalog-url" in line("uc://main.default.none")
    with unity.troubled(Trouble.NONSENSE, Kind.LIST):
        assert "does not answer as a Unity Catalog" in line()
    with unity.down():
        assert "see the network and --catalog-url" in line("--metadata-timeout=1s")
    wrong = ("--catalog-url", f"{unity.url}/elsewhere")
    assert "see the name and --catalog-url" in refused_at_start(
        *wrong, place, environment=environment
    )
