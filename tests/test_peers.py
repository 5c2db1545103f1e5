"""Processes tell each other why one of them fails; here they are threads around one store."""

import json
import re
import socket
import time
from contextlib import suppress
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit.base.processes import peers
from oodlit.base.processes.peers import Peers, describe
from oodlit.errors import ProcessFailedError

PATIENTLY = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def meet(monkeypatch):
    """Peers that have found each other, as many as are asked for."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(peers, "PATIENCE_S", 10_000.0)
    monkeypatch.setattr(peers, "DELIVERY_S", 20.0)
    monkeypatch.setattr(peers, "_end", lambda cause: pytest.fail("a test must not end the process"))
    made: list[Peers] = []

    def meet(world_size: int) -> list[Peers]:
        number = len(made)
        found = [Peers(rank, world_size, f"test/{number}") for rank in range(world_size)]
        made.extend(found)
        wait_for(lambda: len(found[0].sockets) == world_size - 1)
        wait_for(lambda: all(len(one.sockets) == 1 for one in found[1:]))
        found[0].store = store  # lives as long as they do
        return found

    yield meet
    for one in made:
        one.close(is_done=True)


def wait_for(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@given(data=st.data(), world_size=st.integers(2, 5))
@PATIENTLY
def test_all_hear_the_first_cause(meet, data, world_size):
    found = meet(world_size)
    first, second = data.draw(st.permutations(range(world_size)))[:2]
    found[first].tell("the first")
    wait_for(lambda: all(one.cause for one in found))
    found[second].tell("a consequence")
    assert {one.cause for one in found} == {"the first"}
    assert all(one.wait_for_cause() == "the first" for one in found)


@given(data=st.data(), world_size=st.integers(2, 5))
@PATIENTLY
def test_all_hear_that_one_is_gone(meet, data, world_size):
    found = meet(world_size)
    victim = data.draw(st.integers(0, world_size - 1))
    found[victim]._is_open = False
    for connection in list(found[victim].sockets.values()):  # as the system does for a process that is killed
        connection.shutdown(socket.SHUT_RDWR)
    others = [one for one in found if one.rank != victim]
    wait_for(lambda: all(one.cause for one in others))
    assert {one.cause for one in others} == {f"rank {victim} of {world_size} disappeared (crashed or stopped)"}


@given(data=st.data(), world_size=st.integers(2, 4))
@PATIENTLY
def test_those_that_are_done_leave_in_any_order(meet, data, world_size):
    found = meet(world_size)
    order = data.draw(st.permutations(range(world_size)))
    for rank in order[:-1]:
        found[rank].close(is_done=True)
    time.sleep(0.05)  # what is not heard by now is not heard in a run either
    assert not any(one.cause for one in found)
    found[order[-1]].tell("late")
    assert not any(one.cause for one in found if one.rank != order[-1])


def test_who_comes_late_hears_it_too(meet):
    one, *_ = meet(2)
    late = Peers(0, 2, "late")
    start = time.monotonic()
    wait_for(lambda: late._store is not None)
    other = Peers(1, 2, "late")
    late.tell("before anyone connected")
    assert time.monotonic() - start < 15
    assert other.wait_for_cause() == "before anyone connected"
    assert not one.cause
    for each in (late, other):
        each.close(is_done=False)


def test_strangers_are_not_heard(meet):
    found = meet(2)
    place = json.loads(found[0]._store.get("test/0"))
    for hello in (b"\n", b"{}\n", b'{"token": "x", "rank": 1}\n', b"\xff\xfe\n", b"x" * 5000, b"[" * 999 + b"\n"):
        with socket.create_connection(("127.0.0.1", place["port"])) as stranger:
            stranger.sendall(hello)
            stranger.sendall(b'{"cause": "none of your business"}\n')
            stranger.settimeout(10)
            with suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    assert not any(one.cause for one in found)


def test_an_error_in_words():
    with pytest.raises(ValueError, match="two") as caught:
        raise ValueError("two\nlines " + "x" * 5000)
    text = describe(caught.value, "rank 1 of 2")
    assert text.startswith("rank 1 of 2 failed: ValueError: two lines xxx")
    assert re.search(r"x \.\.\. \(test_peers.py, line \d+\); see the output of that process$", text)
    assert len(text) < peers.MAX_TEXT + 200


def test_alone_there_is_nobody_to_tell():
    peers.watch()
    peers.check()
    error = ValueError("mine")
    peers.tell(error)
    peers.unwatch()
    assert not hasattr(error, "__notes__")


def test_a_cause_takes_the_place_of_an_error_of_communication(meet, monkeypatch):
    found = meet(2)
    monkeypatch.setattr(peers, "_current", found[1])
    found[0].tell("the cause")
    with pytest.raises(ProcessFailedError, match="the cause") as caught, peers.named_cause():
        raise RuntimeError("Connection closed by peer")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ProcessFailedError, match="the cause"):
        peers.check()
    with pytest.raises(KeyError), peers.named_cause():
        raise KeyError("custom")


@pytest.mark.parametrize(("host", "is_local"), [("127.0.0.1", True), ("localhost", True), ("node7", False)])
def test_other_machines_reach_process_0_whatever_its_own_name_stands_for_there(host, is_local):
    with peers._server(host, 2) as server:
        place, port = server.getsockname()[:2]
        assert (place == "127.0.0.1") == is_local
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            server.accept()[0].close()


def test_where_process_0_cannot_listen_nobody_waits_for_it(meet, monkeypatch):
    one, *_ = meet(2)

    def refused(*_):
        raise PermissionError(1, "no sockets here")

    monkeypatch.setattr(peers, "_server", refused)
    deaf = Peers(0, 2, "deaf")
    wait_for(lambda: deaf._store is not None and deaf._store.check(["deaf"]))
    other = Peers(1, 2, "deaf")
    wait_for(lambda: other._store is not None and other._is_over())
    assert not one.cause + deaf.cause + other.cause
    for each in (deaf, other):
        each.close(is_done=True)


def test_an_error_without_words_or_attributes_is_told(monkeypatch):
    class Odd(Exception):
        def __str__(self):
            raise OSError("no words")

        def __setattr__(self, name, value):
            raise AttributeError(name)

        def __getattr__(self, name):
            return True

    told = []

    class Others(Peers):
        def __init__(self):
            self.rank, self.world_size, self.cause = 1, 2, "the first"

        def tell(self, cause):
            told.append(cause)

        def close(self, *, is_done):
            assert not is_done

    monkeypatch.setattr(peers, "_current", Others())
    monkeypatch.setattr(peers, "_is_done", False)
    monkeypatch.setattr(peers, "_end_after_main", lambda cause: None)
    error = Odd()
    peers.tell(error)
    peers.tell(error)
    assert re.fullmatch(
        r"rank 1 of 2 on \S+ failed: Odd: the message of this error cannot be shown, because .* raised OSError; .*",
        *told,
    )
    assert vars(error)["__notes__"][-1] == "the first"


def test_what_fails_when_all_have_done_their_part_is_told_to_nobody(monkeypatch):
    joined = []
    monkeypatch.setattr(peers, "_owners", 0)
    monkeypatch.setattr(peers, "_join", lambda: joined.append(1))  # gives None: there are no others
    peers.watch()
    peers.unwatch()
    peers.tell(ValueError("of a logger"))
    assert len(joined) == 1
    peers.watch()
    peers.unwatch()
    peers.forget()  # the trainer is through
    peers.tell(ValueError("of the data of the next run, before it began to listen"))
    assert len(joined) == 3
