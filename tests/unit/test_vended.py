"""Keys of a catalog are renewed on time, shared by all who need them, and their end is told."""

import math
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ucfuse.config import Keys
from ucfuse.errors import (
    AccessDenied,
    CredentialsExpired,
    StoreUnavailable,
    Throttled,
    VolumeError,
)
from ucfuse.store.s3.vended import VendedCredentials
from ucfuse.tasks import deadline

LIFE_S = 3600.0


class Catalog:
    """Vends numbered keys, or fails as told. Its wall clock is trio's."""

    def __init__(self, life_s: float | None = LIFE_S) -> None:
        self.life_s = life_s
        self.failure: VolumeError | None = None
        self.is_silent = False
        self.asked: list[tuple[bool, float]] = []
        self.troubles: dict[str, str] = {}

    async def __call__(self, *, for_changes: bool) -> Keys:
        self.asked.append((for_changes, trio.current_time()))
        await trio.lowlevel.checkpoint()
        if self.is_silent:
            await trio.sleep(math.inf)
        if self.failure is not None:
            raise self.failure
        ends = None if self.life_s is None else trio.current_time() + self.life_s
        number = len(self.asked)
        return Keys(access_key=f"KEY{number}", secret_key="s", expires_at_s=ends)

    def credentials(self, nursery: trio.Nursery) -> VendedCredentials:
        return VendedCredentials(
            "uc://a.b.c", self, nursery, self.troubles, wall_s=trio.current_time
        )


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def credentials(catalog: Catalog, nursery: trio.Nursery) -> VendedCredentials:
    return catalog.credentials(nursery)


async def key_of(credentials: VendedCredentials, *, for_changes: bool = False) -> str:
    return str((await credentials.at_hand(for_changes=for_changes)).access_key_id)


async def pass_time(clock: MockClock, seconds: float) -> None:
    """Let time go by in steps that are small beside the life of a key."""
    for _ in range(200):
        clock.jump(seconds / 200)
        await wait_all_tasks_blocked()


async def test_keys_to_change_are_asked_for_when_they_are_needed(
    catalog: Catalog, credentials: VendedCredentials
) -> None:
    """README, Governed volumes: others once a program first changes something."""
    assert await key_of(credentials) == "KEY1"
    assert await key_of(credentials) == "KEY1"
    assert [asked for asked, _ in catalog.asked] == [False]

    assert await key_of(credentials, for_changes=True) == "KEY2"
    assert await key_of(credentials) == "KEY1"
    assert [asked for asked, _ in catalog.asked] == [False, True]


async def test_all_who_need_keys_wait_for_one_question(
    catalog: Catalog, credentials: VendedCredentials
) -> None:
    keys: list[str] = []

    async def need() -> None:
        keys.append(await key_of(credentials))

    async with trio.open_nursery() as programs:
        for _ in range(5):
            programs.start_soon(need)

    assert keys == ["KEY1"] * 5
    assert len(catalog.asked) == 1


async def test_keys_are_renewed_at_half_of_their_life_without_being_asked_for(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock
) -> None:
    await credentials.at_hand(for_changes=False)
    began = trio.current_time()

    await pass_time(mock_clock, 3 * LIFE_S)

    times = [at - began for _, at in catalog.asked]
    assert len(times) in (6, 7)
    assert all(late - early < 0.55 * LIFE_S for early, late in pairwise(times))


async def test_keys_without_an_end_are_never_renewed(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    catalog = Catalog(life_s=None)
    credentials = catalog.credentials(nursery)
    await credentials.at_hand(for_changes=False)

    mock_clock.jump(1e6)
    await wait_all_tasks_blocked()

    assert await key_of(credentials) == "KEY1"


async def test_a_failed_renewal_is_tried_again_and_the_old_keys_stay_in_use(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock
) -> None:
    await credentials.at_hand(for_changes=False)
    catalog.failure = Throttled("uc://a.b.c", "slow down")
    await pass_time(mock_clock, 0.75 * LIFE_S)
    assert await key_of(credentials) == "KEY1"
    assert 10 < len(catalog.asked) < 100
    assert catalog.troubles == {"read": str(catalog.failure)}

    catalog.failure = None
    await pass_time(mock_clock, 60)

    assert await key_of(credentials) != "KEY1"
    assert catalog.troubles == {}


EXPIRED: dict[str, tuple[VolumeError, type[VolumeError]]] = {
    "refused": (AccessDenied("v", "no privilege"), AccessDenied),
    "throttled": (Throttled("v", "slow down"), CredentialsExpired),
    "down": (StoreUnavailable("v", "no connection"), CredentialsExpired),
}


@pytest.mark.parametrize("case", EXPIRED)
async def test_keys_that_expired_and_cannot_be_renewed_say_why(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock, case: str
) -> None:
    """README, Governed volumes: EACCES, with the cause."""
    await credentials.at_hand(for_changes=False)
    catalog.failure, expected = EXPIRED[case]
    await pass_time(mock_clock, 1.1 * LIFE_S)
    began = trio.current_time()

    with pytest.raises(expected, match=catalog.failure.detail):
        await credentials.at_hand(for_changes=False)

    assert trio.current_time() - began < 1.0
    catalog.failure = None
    mock_clock.jump(2.0)
    assert await key_of(credentials) == f"KEY{len(catalog.asked)}"


async def test_a_catalog_that_stalls_is_not_waited_for_once_keys_have_expired(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock
) -> None:
    catalog.life_s = 5.0
    await credentials.at_hand(for_changes=False)
    catalog.is_silent = True
    await pass_time(mock_clock, 6.0)
    mock_clock.rate = 1000  # what waits now waits a thousand times shorter
    began = trio.current_time()

    with pytest.raises(CredentialsExpired, match="no answer"):
        await credentials.at_hand(for_changes=False)

    assert trio.current_time() - began < 5.0


async def test_the_first_question_ends_with_the_patience_of_who_asks(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock
) -> None:
    catalog.is_silent = True
    mock_clock.autojump_threshold = 0

    with pytest.raises(StoreUnavailable), deadline(2.0, "v"):
        await credentials.at_hand(for_changes=False)


async def test_rejected_keys_are_asked_for_anew_but_not_for_every_request(
    catalog: Catalog, credentials: VendedCredentials, mock_clock: MockClock
) -> None:
    rejected = await credentials.at_hand(for_changes=True)
    assert not await credentials.renew(rejected)  # they are new
    mock_clock.jump(11)

    assert await credentials.renew(rejected)
    assert await key_of(credentials, for_changes=True) == "KEY2"
    assert not await credentials.renew(await credentials.at_hand(for_changes=True))
    assert len(catalog.asked) == 2


async def test_where_clocks_differ_keys_that_come_expired_are_used(
    nursery: trio.Nursery,
) -> None:
    catalog = Catalog(life_s=-600.0)
    credentials = catalog.credentials(nursery)

    for _ in range(10):
        assert (await credentials.at_hand(for_changes=False)).access_key_id == "KEY1"


async def test_keys_do_not_show_in_texts(catalog: Catalog) -> None:
    keys = Keys(access_key="KEY", secret_key="hush", session_token="hush too")

    assert "hush" not in repr(keys)
