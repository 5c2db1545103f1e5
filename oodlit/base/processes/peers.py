"""Propagate the cause of one process's failure to all other processes.

Process 0 listens, the others connect to it, and it forwards what one of them reports. A process that disappears leaves
a closed connection behind. None of this uses collectives, in which a process may be waiting.
"""

import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist

from oodlit.base.errors import ProcessFailedError, add_note

PATIENCE_S = 20.0
"""How long a process may continue after hearing that another one failed, before it is ended."""
DELIVERY_S = 10.0
"""How long a failing process waits until all others know the cause, and how long they wait for it."""
STARTING_S = 60
"""How long a process tries to reach process 0."""
MAX_TEXT = 2000
"""Longest cause to send, in characters."""

_log = logging.getLogger("oodlit.base.processes.peers")


class Peers:
    """The other processes of a run.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        key: Name of the run in the key-value store of the launcher; the same in all processes.
    """

    def __init__(self, rank: int, world_size: int, key: str) -> None:
        self.rank, self.world_size, self.key = rank, world_size, key
        self.cause = ""
        """The cause of the failure, once a process has failed."""
        self.sockets: dict[int, socket.socket] = {}
        """Connections by the process at their other end."""
        self._aware: set[int] = set()
        """Processes that know the cause, are done, or are gone."""
        self._news = threading.Condition(threading.RLock())
        self._is_open = True
        self._store: Any = None
        _start_thread(self._run)

    def tell(self, cause: str) -> None:
        """Send the cause of this failure to all other processes, unless one failed before; wait until they know it."""
        others = set(range(1, self.world_size)) if self.rank == 0 else {0}
        with self._news:
            if not self.cause:
                self.cause = cause
                self._send_to_all({"cause": cause})
            self._news.wait_for(lambda: others <= self._aware, timeout=DELIVERY_S)

    def wait_for_cause(self) -> str:
        """Wait briefly for the failure message of another process and return it; empty if none arrives."""
        with self._news:
            self._news.wait_for(lambda: self.cause, timeout=DELIVERY_S)
            return self.cause

    def close(self, *, is_done: bool) -> None:
        """Leave, since this process has done its part or has reported why it fails."""
        with self._news:
            self._is_open = False
            if is_done:
                self._send_to_all({"bye": True})
                self._end_search()
            for connection in self.sockets.values():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self.sockets.clear()

    def _run(self) -> None:
        """Connect to the other processes and listen. If that fails, only launchers and timeouts detect failures."""
        try:
            self._store = _store()
            self._listen(self._store) if self.rank == 0 else self._connect(self._store)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: from the store
            if self._is_open and not self._is_over():
                _log.warning(
                    "rank %d cannot connect to the other processes to exchange errors (%s). If another process"
                    " fails, this process only stops at a timeout, or when the launcher ends it",
                    self.rank,
                    error,
                )
            self._end_search()

    def _end_search(self) -> None:
        """Process 0: let processes that have not connected yet stop looking for it."""
        if self.rank == 0 and self._store is not None:
            with suppress(RuntimeError):
                self._store.set(self.key, "null")

    def _is_over(self) -> bool:
        """Return whether process 0 is done, or does not listen."""
        with suppress(RuntimeError):
            return self._store is not None and self._store.check([self.key]) and self._store.get(self.key) == b"null"
        return False

    def _listen(self, store: Any) -> None:
        """Process 0: accept the connections of all other processes."""
        token = secrets.token_hex(16)
        with _server(store.host, self.world_size) as server:
            hosts = [store.host, socket.gethostname()]
            store.set(self.key, json.dumps({"hosts": hosts, "port": server.getsockname()[1], "token": token}))
            server.settimeout(1.0)
            while self._is_open:
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    _start_thread(self._greet, connection, token)

    def _greet(self, connection: socket.socket, token: str) -> None:
        """Process 0: serve one connection, if it comes from a process of this run."""
        with connection, connection.makefile("r", encoding="utf-8") as lines:
            try:
                connection.settimeout(STARTING_S)
                hello = json.loads(lines.readline(1000))
                rank = int(hello["rank"]) if hello["token"] == token else 0
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                return
            if 0 < rank < self.world_size:
                self._talk(rank, connection, lines)

    def _connect(self, store: Any) -> None:
        """Other processes: connect to process 0."""
        if (place := json.loads(store.get(self.key))) is None:
            return
        with _reach(place["hosts"], place["port"]) as connection, connection.makefile("r", encoding="utf-8") as lines:
            _send(connection, {"token": place["token"], "rank": self.rank})
            if not lines.readline():
                raise OSError("process 0 did not answer")
            self._talk(0, connection, lines)

    def _talk(self, other: int, connection: socket.socket, lines: Iterator[str]) -> None:
        """Listen to one other process until it leaves."""
        connection.settimeout(None)
        _keep_alive(connection)
        with self._news:
            if not self._is_open:
                return
            self.sockets[other] = connection
            if self.rank == 0:
                _send(connection, {"welcome": True})
            if self.cause:
                _send(connection, {"cause": self.cause})
        is_done = False
        with suppress(OSError, ValueError):
            for line in lines:
                message = json.loads(line)
                is_done = is_done or "bye" in message
                self._hear(other, message.get("cause", ""))
                if "cause" in message:
                    _send(connection, {"heard": True})
        self._hear(other, "" if is_done else f"rank {other} of {self.world_size} disappeared (crashed or stopped)")

    def _hear(self, other: int, cause: str) -> None:
        """Record the first cause, forward it, and make sure that this process ends."""
        with self._news:
            self._aware.add(other)
            is_first = bool(cause) and not self.cause and self._is_open
            if is_first:
                self.cause = cause
                self._send_to_all({"cause": cause}, but=other)
            self._news.notify_all()
        if is_first:
            _log.error("rank %d of %d stops because %s", self.rank, self.world_size, cause)
            _start_thread(self._end_in_time)

    def _end_in_time(self) -> None:
        """End this process if it does not end itself: what it waits for may never happen."""
        time.sleep(PATIENCE_S)
        if self._is_open:
            _end(self.cause)

    def _send_to_all(self, message: dict[str, object], *, but: int | None = None) -> None:
        for other, connection in self.sockets.items():
            if other != but:
                _send(connection, message)


_current: Peers | None = None
_owners = 0
_is_done = False
"""Whether this process has done its part of a run that is not over yet."""
_runs = count()


def watch() -> None:
    """Start listening to the other processes; every call requires an `unwatch` or a reported error."""
    global _owners, _is_done  # noqa: PLW0603  # a process has one default process group, and one run in it at a time
    _is_done = False
    _join()
    _owners += 1


def unwatch() -> None:
    """Stop listening: this process has done its part, and its later failures do not concern the other processes."""
    global _owners, _current, _is_done  # noqa: PLW0603
    if not _owners:  # it has reported why it fails
        return
    _owners -= 1
    if not _owners:
        _is_done = True
        if _current is not None:
            _current.close(is_done=True)
            _current = None


def forget() -> None:
    """End the run, including the remaining work of this process: later failures belong to another run."""
    global _is_done  # noqa: PLW0603
    _is_done = False


def tell(error: BaseException) -> None:
    """Report to the other processes why this one fails, and leave; if another one failed before, note its cause.

    Nothing is reported for a process that has done its part.
    """
    global _owners, _current, _is_done  # noqa: PLW0603
    if "_oodlit_is_reported" in vars(error):  # by another callback
        return
    object.__setattr__(error, "_oodlit_is_reported", True)  # a frozen dataclass does not allow a normal assignment
    is_done, _is_done = _is_done, False
    peers, _owners = None if is_done else _join(), 0
    if peers is None:
        return
    if not isinstance(error, ProcessFailedError) and _is_of_communication(error):
        peers.wait_for_cause()
    if peers.cause and not isinstance(error, ProcessFailedError):
        add_note(error, peers.cause)
    peers.tell(describe(error, f"rank {peers.rank} of {peers.world_size} on {socket.gethostname()}"))
    peers.close(is_done=False)
    _current = None
    _start_thread(_end_after_main, peers.cause)


def check() -> None:
    """Raise if another process has failed.

    Raises:
        ProcessFailedError: One of them failed; the message names it and its error.
    """
    if _current is not None and _current.cause:
        raise ProcessFailedError(_current.cause)


@contextmanager
def named_cause() -> Iterator[None]:
    """Replace a communication error by its cause: the error of the process that failed.

    Raises:
        ProcessFailedError: Another process failed while this one was waiting for it.
    """
    try:
        yield
    except RuntimeError as error:
        if _current is not None and (cause := _current.wait_for_cause()):
            raise ProcessFailedError(cause) from error
        raise


def describe(error: BaseException, who: str) -> str:
    """Describe an error for the other processes.

    Example:
        >>> describe(ValueError("no such class"), "rank 1 of 3 on node7")
        'rank 1 of 3 on node7 failed: ValueError: no such class; see the output of that process'
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    try:
        said = str(error)
    except Exception as problem:  # a bug in that error's own code
        said = f"the message of this error cannot be shown, because str(error) raised {type(problem).__name__}"
    text = " ".join(f"{type(error).__name__}: {said}".split())
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."
    return f"{who} failed: {text}{where}; see the output of that process"


def _join() -> Peers | None:
    """Connect to the other processes; None if there are none, or if they did not use an address to find each other."""
    global _current  # noqa: PLW0603
    is_alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    if _current is None and not is_alone and "MASTER_ADDR" in os.environ:
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives the processes
        _current = Peers(dist.get_rank(), dist.get_world_size(), f"oodlit/peers/{start}/{next(_runs)}")
    return _current


def _store() -> Any:
    """Open a separate connection to the store by which the processes found each other."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=STARTING_S)
    kind = dist.TCPStore  # type: ignore[attr-defined]
    return kind(address, port, is_master=False, wait_for_workers=False, timeout=patience)


def _server(host: str, backlog: int) -> socket.socket:
    """Open a listening socket: on this machine only if all processes are on it, otherwise on every address.

    The host name is not resolved for that: a machine's own name often resolves to the loopback address.
    """
    if host == "localhost" or host.startswith("127."):
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    with suppress(OSError, ValueError):
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=backlog)


def _reach(hosts: list[str], port: int) -> socket.socket:
    """Connect to the first of several host names that answers."""
    problem: OSError | None = None
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=STARTING_S / len(hosts))
        except OSError as error:
            problem = error
    raise problem or OSError("process 0 announced no host name")


def _keep_alive(connection: socket.socket) -> None:
    """Let the system detect within half a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connection: socket.socket, message: dict[str, object]) -> None:
    with suppress(OSError):  # the other one is gone, which the reader of the connection will notice
        connection.sendall(f"{json.dumps(message)}\n".encode())


def _is_of_communication(error: BaseException) -> bool:
    """Return whether an error was raised while waiting for other processes."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, RuntimeError) and any("torch/distributed" in f.filename.replace("\\", "/") for f in frames)


def _start_thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True, name="oodlit-peers").start()


def _end_after_main(cause: str) -> None:
    """End this process if interpreter shutdown waits for communication with processes that are gone."""
    threading.main_thread().join()
    time.sleep(PATIENCE_S)
    _end(cause)


def _end(cause: str) -> None:
    """End this process without waiting for anything."""
    with suppress(Exception):
        text = f"oodlit: ended this process, which did not stop within {PATIENCE_S:g} s after a failure: {cause}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)


def _close_in_child() -> None:
    """Close the connections in a forked process, such as a data-loading worker: they must end with this process."""
    global _current
    peers, _current = _current, None
    for connection in peers.sockets.values() if peers is not None else ():
        with suppress(OSError):
            os.close(connection.detach())  # so that no later file with that number is closed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
