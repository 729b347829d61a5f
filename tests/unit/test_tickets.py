"""Tickets: one per open that was answered with ESTALE, and each ends exactly once."""

import pytest

from ucfuse.names.inodes import File, InodeTable
from ucfuse.names.tickets import LIFETIME_S, LONGEST_S, Ticket, Tickets
from ucfuse.volume import ETag, Key, ObjectInfo


@pytest.fixture
def table() -> InodeTable:
    return InodeTable()


@pytest.fixture
def tickets() -> Tickets:
    return Tickets()


def _file(table: InodeTable, name: str) -> File:
    info = ObjectInfo(Key(name), 1, ETag('"1"'), 0)
    return table.add_file(table.root, name, info, name)


def _issue(tickets: Tickets, table: InodeTable, thread: int, key: str, now: float) -> File:
    file = _file(table, key.rpartition("/")[2])
    tickets.issue(thread, key, now - 0.1, file, None, is_absent=False, now=now)
    return file


def test_a_ticket_belongs_to_thread_and_key(tickets: Tickets, table: InodeTable) -> None:
    refused = _issue(tickets, table, 7, "d/x", 10.0)

    found = tickets.find(7, "d/x", 10.5)

    assert found is not None
    assert (found.refused, found.arrived_at) == (refused, 9.9)
    assert tickets.find(8, "d/x", 10.5) is None
    assert tickets.find(7, "d/y", 10.5) is None


def test_time_in_which_names_change_in_its_directory_does_not_count(
    tickets: Tickets, table: InodeTable
) -> None:
    """The kernel holds the directory locked, so the repeat of the open has to wait."""
    _issue(tickets, table, 7, "d/x", 10.0)
    _issue(tickets, table, 7, "e/x", 10.0)
    tickets.lock("d/")

    assert tickets.find(7, "d/x", 15.0) is not None
    assert tickets.leads_through(7, "d", 15.0)
    assert tickets.find(7, "e/x", 15.0) is None

    tickets.unlock("d/", 20.0)
    assert tickets.find(7, "d/x", 20.0 + LIFETIME_S / 2) is not None
    assert tickets.find(7, "d/x", 20.0 + LIFETIME_S) is None
    assert {ticket.key for ticket in tickets.expire(20.0 + LIFETIME_S)} == {"d/x", "e/x"}


def test_a_ticket_ends_also_where_names_change_for_ever(
    tickets: Tickets, table: InodeTable
) -> None:
    _issue(tickets, table, 7, "x", 10.0)
    tickets.lock("")
    assert tickets.find(7, "x", 10.0 + LONGEST_S) is None
    assert [ticket.key for ticket in tickets.expire(10.0 + LONGEST_S)] == ["x"]


def test_finding_leaves_a_ticket_and_taking_ends_it(tickets: Tickets, table: InodeTable) -> None:
    _issue(tickets, table, 7, "x", 10.0)

    assert tickets.find(7, "x", 10.1) is tickets.find(7, "x", 10.2)
    assert tickets.take(7, "x", 10.3) is not None
    assert tickets.take(7, "x", 10.3) is None
    assert tickets.end_all(7) == []
    assert tickets.expire(99.0) == []


def test_a_ticket_ends_with_its_time(tickets: Tickets, table: InodeTable) -> None:
    _issue(tickets, table, 7, "x", 10.0)
    _issue(tickets, table, 7, "y", 10.5)

    assert tickets.find(7, "x", 10.0 + LIFETIME_S) is None
    assert tickets.take(7, "x", 10.0 + LIFETIME_S) is None
    assert [ticket.key for ticket in tickets.expire(10.0 + LIFETIME_S)] == ["x"]
    assert tickets.expire(10.0 + LIFETIME_S) == []
    assert [ticket.key for ticket in tickets.expire(11.0, everything=True)] == ["y"]


def test_a_ticket_ends_when_its_thread_goes_on_to_something_else(
    tickets: Tickets, table: InodeTable
) -> None:
    _issue(tickets, table, 7, "x", 10.0)
    _issue(tickets, table, 7, "y", 10.0)
    _issue(tickets, table, 8, "z", 10.0)

    assert {ticket.key for ticket in tickets.end_all(7)} == {"x", "y"}
    assert tickets.find(7, "x", 10.1) is None
    assert tickets.find(8, "z", 10.1) is not None
    assert tickets.end_all(7) == []


def test_threads_that_cannot_be_told_apart_do_not_end_each_others_tickets(
    tickets: Tickets, table: InodeTable
) -> None:
    _issue(tickets, table, 0, "x", 10.0)

    assert tickets.end_all(0) == []
    assert tickets.take(0, "x", 10.1) is not None


def test_a_ticket_leads_through_the_directories_of_its_path(
    tickets: Tickets, table: InodeTable
) -> None:
    _issue(tickets, table, 7, "p/d/e/x", 10.0)

    for directory in ("p", "p/d", "p/d/e", "p/d/e/"):
        assert tickets.leads_through(7, directory, 10.1)
    for other in ("p/d/e/x", "p/d/ee", "p/d/", "q"):
        assert tickets.leads_through(7, other, 10.1) == (other == "p/d/")
    assert not tickets.leads_through(8, "p", 10.1)
    assert not tickets.leads_through(7, "p", 10.0 + LIFETIME_S)


def test_every_ticket_comes_back_exactly_once(tickets: Tickets, table: InodeTable) -> None:
    """Who holds the tickets unpins what came back: twice or never would be a leak."""
    for index in range(20):
        _issue(tickets, table, index % 4, f"k{index}", 10.0 + index / 100)

    back: list[Ticket] = []
    for thread, key in ((1, "k1"), (2, "k6"), (0, "k0")):
        taken = tickets.take(thread, key, 10.5)
        assert taken is not None
        back.append(taken)
    back += tickets.end_all(3)
    back += tickets.expire(10.0 + LIFETIME_S + 0.1)
    back += tickets.expire(0.0, everything=True)

    assert sorted(ticket.key for ticket in back) == sorted(f"k{index}" for index in range(20))
    assert all(ticket.is_over for ticket in back)
