"""Who may connect, and who has to leave for it."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.admission import IDLE_MIN_S, REPORT_SPACING_S, SEARCH_SPACING_S, Admission, Quota


class Peer:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.sent_command = False
        self.idle_since_s = inf
        self.asked_count = 0
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


class CountingPeer(Peer):
    """Counts how often it is asked whether it has spoken."""

    @property  # type: ignore[override]
    def sent_command(self) -> bool:
        self.asked_count += 1
        return self._spoke

    @sent_command.setter
    def sent_command(self, value: bool) -> None:
        self._spoke = value


def fill(
    admission: Admission, quota: Quota, count: int, *, sent_command: bool = False
) -> list[Peer]:
    peers = [Peer() for _ in range(count)]
    for number, peer in enumerate(peers):
        assert admission.admit(quota, peer, float(number))
        peer.sent_command = sent_command
    return peers


def test_there_is_a_place_for_everybody_until_it_is_full() -> None:
    admission = Admission(3)
    quota = admission.add_quota("TCP")
    peers = fill(admission, quota, 3, sent_command=True)
    assert not admission.admit(quota, Peer(), 5.0)
    assert (quota.count, quota.refused_count, quota.evicted_count) == (3, 1, 0)
    admission.remove(peers[1])
    admission.remove(peers[1])
    assert admission.admit(quota, Peer(), 6.0)
    admission.check()


def test_the_longest_waiting_of_those_without_a_command_goes() -> None:
    admission = Admission(4)
    quota = admission.add_quota("TCP")
    first, second, third, fourth = fill(admission, quota, 4)
    first.sent_command = True
    newcomer = Peer()
    assert admission.admit(quota, newcomer, 9.0)
    assert [p.evicted for p in (first, second, third, fourth)] == [False, True, False, False]
    third.sent_command = True
    assert admission.admit(quota, Peer(), 9.0)
    assert fourth.evicted and not newcomer.evicted
    assert (quota.count, quota.refused_count, quota.evicted_count) == (4, 0, 2)
    admission.check()


def test_who_has_sent_a_command_is_never_evicted() -> None:
    admission = Admission(50)
    quota = admission.add_quota("TCP")
    clients = fill(admission, quota, 50, sent_command=True)
    assert not any(admission.admit(quota, Peer(), 100.0 + number) for number in range(1000))
    assert not any(client.evicted for client in clients)
    assert quota.refused_count == 1000


def test_a_reserved_place_stays_for_its_door() -> None:
    admission = Admission(10)
    tcp, http = admission.add_quota("TCP"), admission.add_quota("HTTP", reserved_count=2)
    fill(admission, tcp, 8, sent_command=True)
    assert not admission.admit(tcp, Peer(), 1.0)
    assert admission.admit(http, Peer(), 1.0)
    assert admission.admit(http, Peer(), 1.0)
    admission.check()


def test_a_silent_crowd_at_one_door_makes_room_for_the_other() -> None:
    admission = Admission(10)
    tcp, http = (
        admission.add_quota("TCP", reserved_count=2),
        admission.add_quota("HTTP", reserved_count=2),
    )
    crowd = fill(admission, tcp, 8)
    fill(admission, http, 2, sent_command=True)
    assert admission.admit(http, Peer(), 9.0)
    assert [peer.evicted for peer in crowd].count(True) == 1
    admission.check()


def test_a_silent_crowd_keeps_what_is_reserved_for_its_door() -> None:
    admission = Admission(4)
    tcp, http = admission.add_quota("TCP", reserved_count=2), admission.add_quota("HTTP")
    crowd = fill(admission, tcp, 2)
    fill(admission, http, 2, sent_command=True)
    assert not admission.admit(http, Peer(), 9.0)
    assert not any(peer.evicted for peer in crowd)


def test_a_door_at_its_own_maximum_takes_from_itself_only() -> None:
    admission = Admission(10)
    tcp, http = admission.add_quota("TCP"), admission.add_quota("HTTP", count_max=2)
    crowd = fill(admission, tcp, 5)
    own = fill(admission, http, 2)
    assert admission.admit(http, Peer(), 9.0)
    assert [peer.evicted for peer in own] == [True, False]
    own[1].sent_command = True
    assert admission.admit(http, Peer(), 9.0)
    assert not any(peer.evicted for peer in crowd)
    admission.check()


def test_the_longest_idle_goes_when_nobody_is_silent() -> None:
    admission = Admission(4)
    http = admission.add_quota("HTTP")
    busy, old, older, young = fill(admission, http, 4, sent_command=True)
    old.idle_since_s, older.idle_since_s, young.idle_since_s = 5.0, 4.0, 6.0
    busy.idle_since_s = inf
    assert admission.admit(http, Peer(), 10.0)
    assert older.evicted and not old.evicted
    # Used since it was found: another one goes.
    old.idle_since_s = 10.0
    for peer in list(http.silent):
        assert isinstance(peer, Peer)
        peer.sent_command = True
    assert admission.admit(http, Peer(), 10.0)
    assert young.evicted and not old.evicted and not busy.evicted


def test_idle_connections_are_not_searched_for_every_newcomer() -> None:
    admission = Admission(2)
    http = admission.add_quota("HTTP")
    first, second = fill(admission, http, 2, sent_command=True)
    assert not admission.admit(http, Peer(), 10.0)
    first.idle_since_s = 1.0
    assert not admission.admit(http, Peer(), 10.0 + SEARCH_SPACING_S / 2)
    assert admission.admit(http, Peer(), 10.0 + SEARCH_SPACING_S)
    assert first.evicted and not second.evicted


def test_who_was_used_a_moment_ago_stays() -> None:
    admission = Admission(1)
    http = admission.add_quota("HTTP")
    only = fill(admission, http, 1, sent_command=True)[0]
    only.idle_since_s = 9.5
    assert not admission.admit(http, Peer(), 10.0)
    assert admission.admit(http, Peer(), 9.5 + IDLE_MIN_S)
    assert only.evicted


def test_clients_are_asked_once_whether_they_have_spoken() -> None:
    admission = Admission(1000)
    quota = admission.add_quota("TCP")
    peers = [CountingPeer() for _ in range(1000)]
    for peer in peers:
        assert admission.admit(quota, peer, 0.0)
        peer.sent_command = True
    for _ in range(100):
        assert not admission.admit(quota, Peer(), 1.0)
    assert max(peer.asked_count for peer in peers) == 1


def test_descriptors_that_ran_out_cost_a_silent_one_its_place() -> None:
    admission = Admission(10)
    tcp = admission.add_quota("TCP", reserved_count=5)
    silent = fill(admission, tcp, 1)[0]
    assert admission.evict_any(1.0) and silent.evicted
    assert not admission.evict_any(2.0)


def test_refusals_are_reported_now_and_then() -> None:
    admission = Admission(1)
    quota = admission.add_quota("TCP")
    fill(admission, quota, 1, sent_command=True)
    assert quota.report(0.0) is None
    admission.admit(quota, Peer(), 0.0)
    assert quota.report(0.0) == "TCP: 1 connection refused, 1 are open and in use"
    for _ in range(7):
        admission.admit(quota, Peer(), 1.0)
    assert quota.report(1.0) is None
    report = quota.report(REPORT_SPACING_S)
    assert report == "TCP: 7 connections refused, 1 are open and in use"
    assert quota.report(2 * REPORT_SPACING_S) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["tcp", "http", "leave", "speak", "rest", "work", "relieve"]),
        st.integers(0, 30),
    ),
    max_size=150,
)


@given(STEPS, st.integers(1, 12), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_clients_stay_and_places_add_up(
    steps: list[tuple[str, int]], count_max: int, reserved_tcp: int, reserved_http: int
) -> None:
    admission = Admission(count_max)
    tcp = admission.add_quota("TCP", reserved_count=reserved_tcp)
    http = admission.add_quota("HTTP", reserved_count=reserved_http, count_max=6)
    inside: list[Peer] = []
    for now_s, (step, number) in enumerate(steps):
        if step in ("tcp", "http"):
            peer = Peer()
            if admission.admit(tcp if step == "tcp" else http, peer, float(now_s)):
                inside.append(peer)
        elif step == "relieve":
            admission.evict_any(float(now_s))
        elif inside:
            peer = inside[number % len(inside)]
            if step == "leave":
                admission.remove(peer)
                inside.remove(peer)
            elif step == "speak":
                peer.sent_command = True
            else:
                peer.idle_since_s = float(now_s) if step == "rest" and peer.sent_command else inf
        for peer in [peer for peer in inside if peer.evicted]:
            assert not peer.sent_command or peer.idle_since_s < inf
            inside.remove(peer)
        assert len(inside) == len(admission)
        admission.check()
