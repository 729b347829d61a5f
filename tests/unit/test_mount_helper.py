"""`mount.ucfuse`: options of mount(8) and fstab become ours, or are left out."""

import pytest

from ucfuse.cli.mount_request import parse_mount
from ucfuse.cli.mounthelper import main, translated
from ucfuse.errors import ConfigError


def test_our_options_are_passed_on_and_those_of_others_left_out() -> None:
    text = "rw,_netdev,noauto,user,nofail,x-systemd.automount,comment=x,metadata_ttl=5s,xattr,uid=7"
    assert list(translated(text.split(","))) == ["--metadata-ttl=5s", "--xattr", "--uid=7"]


def test_read_only_and_no_programs_are_what_they_say() -> None:
    options = list(translated(["ro", "noexec", "no_allow_other"]))
    config = parse_mount([*options, "memory:", "/mnt"], {}).config
    assert config.read_only
    assert not config.allow_other
    assert config.file_mode & 0o111 == 0


@pytest.mark.parametrize("option", ["nonsense", "foreground", "remount", "metadata-ttl5s"])
def test_an_option_that_nobody_knows_is_one_line(option: str) -> None:
    with pytest.raises(ConfigError):
        list(translated([option]))


def test_a_sloppy_mount_leaves_out_what_it_does_not_know() -> None:
    assert list(translated(["nonsense", "xattr"], is_sloppy=True)) == ["--xattr"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["memory:"], 1),
        (["memory:", "/no/such/place"], 32),
        (["memory:", "/mnt", "-o", "nonsense"], 32),
        (["memory:", "/mnt", "-f"], 0),
        (["bucket", "/mnt", "-f"], 1),
        (["--help"], 0),
    ],
)
def test_exit_codes_are_those_of_mount(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert "Traceback" not in capsys.readouterr().err
