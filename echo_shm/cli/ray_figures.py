"""What the shards of a replay on a Ray cluster say of themselves, as the replay's directory knows it.

This process joins the cluster as a driver that runs nothing. Ray is imported here alone, and not before it is needed.
"""

import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from echo_shm.cli import console
from echo_shm.errors import EchoShmError

if TYPE_CHECKING:
    from echo_shm.adapters.ray.directory import Look, Loss
    from echo_shm.replay import TableInfo

#: How long a cluster's head may take to accept a connection (seconds).
_PATIENCE = 5.0

#: How many characters of a node's id are shown.
ID = 8

#: What ``--help`` says of Ray.
HELP = """\
on Ray:
  --ray      shows all shards of a RayReplay, from a node of its cluster
  --address  of the cluster, HOST:PORT; without it $RAY_ADDRESS, or the cluster
             that this machine is a node of
"""


class Rates(NamedTuple):
    """Items a second."""

    inserted: float
    sampled: float


class _Heard(NamedTuple):
    """A report, when it reached the directory by this process's clock, and the rates since the one before."""

    at: float
    incarnation: int
    tables: "dict[str, TableInfo]"
    rates: dict[str, Rates]


class RayFigures:
    """The figures of one replay, which is asked again and again.

    Args:
        name: The replay's; None: the only one of the cluster.
        address: The cluster's, as for ``ray.init()``.

    Attributes:
        name: The replay's.
        look: What its directory said last.

    Raises:
        UsageError: Ray is not installed.
        EchoShmError: There is no such cluster, or no such replay there, or its directory does not answer.

    """

    def __init__(self, name: str | None, address: str) -> None:
        self._ray = _connected(address)
        self.name = _chosen(name, _names(self._ray))
        self._heard: dict[int, _Heard] = {}
        found = self._ask()
        if found is None:
            raise EchoShmError(
                f"replay {self.name!r} of this cluster does not answer: it is being closed, or overloaded"
            )
        self.look = found
        self._hear(found, found.at)

    def read(self) -> bool:
        """Asks again. Returns False if the replay was closed. If there is no answer, what it said last stays."""
        found = self._ask()
        if found is None:
            with contextlib.suppress(self._ray.exceptions.RayError):  # the cluster's head is away
                return self.name in _names(self._ray)
            return True
        if found.roster.epoch >= self.look.roster.epoch:  # otherwise it was just started again, and knows nothing yet
            before, self.look = self.look, found
            self._hear(found, before.at)
        return True

    def _ask(self) -> "Look | None":
        from echo_shm.adapters.ray.directory import ABSENT, NAMESPACE, Look

        try:
            directory = self._ray.get_actor(self.name, NAMESPACE)
            return Look(*self._ray.get(directory.look.remote(), timeout=ABSENT))
        except (self._ray.exceptions.RayError, ValueError):  # it is not there, or does not answer in time
            return None

    def _hear(self, look: "Look", before: float) -> None:
        """Takes note of reports that came since the look before."""
        for number, (report, age) in look.reports.items():
            at, old = look.at - age, self._heard.get(number)
            if old is None or old.incarnation != report.incarnation:
                self._heard[number] = _Heard(at, report.incarnation, report.tables, {})
            elif at > before or report.tables != old.tables:
                rates = {
                    name: _rates(old.tables[name], info, at - old.at)
                    for name, info in report.tables.items()
                    if name in old.tables
                }
                self._heard[number] = _Heard(at, report.incarnation, report.tables, rates)

    # -- what they say

    @property
    def tables(self) -> list[str]:
        """The tables of the shards."""
        return list(dict.fromkeys(name for report, _ in self.look.reports.values() for name in report.tables))

    @property
    def steps(self) -> tuple[int, int]:
        """How many steps all shards have, and how many they have room for."""
        reports = [report for report, _ in self.look.reports.values()]
        return sum(one.num_steps for one in reports), sum(one.capacity for one in reports)

    def of_table(self, table: str) -> "dict[int, TableInfo]":
        """What each shard said of a table, by its number."""
        return {number: report.tables[table] for number, (report, _) in self.look.reports.items()}

    def rates(self, table: str) -> dict[int, Rates]:
        """Of each shard between its last two reports; 0 as long as there is one, and where the shard is absent."""
        none = Rates(0.0, 0.0)
        return {
            number: none if self.look.is_absent(number) else self._heard[number].rates.get(table, none)
            for number in self.look.reports
        }

    def shares(self, table: str) -> dict[int, float]:
        """With which probability a draw is of each shard. Absent ones have none."""
        from echo_shm.adapters.ray.shares import Shares, mass_of

        present = {one.number for one in self.look.present}
        masses = {number: mass_of(info) for number, info in self.of_table(table).items() if number in present}
        return Shares(masses, 0.0, 0.0).share

    def state(self, number: int) -> str:
        """``here``, ``absent``, or ``new``: it has not reported yet."""
        if self.look.is_absent(number):
            return "absent"
        return "here" if number in self.look.reports else "new"

    @property
    def silence(self) -> float:
        """For how long the directory has said nothing (seconds)."""
        return time.monotonic() - self.look.at


def words_of(loss: "Loss") -> str:
    """What went with a shard, in a line."""
    had = "it had never reported"
    if loss.num_steps >= 0:
        items = "".join(f", {console.plural(count, 'item')} of table {name!r}" for name, count in loss.tables.items())
        had = f"it had {console.plural(loss.num_steps, 'step')}{items}"
    end = "; it was restored on another node" if loss.restored else ""
    return f"shard {loss.number} was lost on node {loss.node[:ID]} ({loss.host}): {had}{end}"


def _rates(before: "TableInfo", now: "TableInfo", span: float) -> Rates:
    """A checkpoint that was restored may have smaller figures."""
    if span <= 0:
        return Rates(0.0, 0.0)
    return Rates(max(0, now.inserted - before.inserted) / span, max(0, now.sampled - before.sampled) / span)


def _connected(address: str) -> Any:
    """Ray, with this process as a driver of the cluster."""
    ray = console.need("ray", "ray")
    if not ray.is_initialized():
        try:
            _reach(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
            where = f"no Ray cluster at {named!r}" if named else "this machine is no node of a Ray cluster"
            said = " ".join(str(error).split())
            raise EchoShmError(f"{where}: run this on a node, or name it with --address HOST:PORT ({said})") from None
    return ray


def _reach(address: str) -> None:
    """Raises an error if nobody listens where a cluster's head should be. Ray itself would try it for a minute."""
    from ray._private.services import canonicalize_bootstrap_address

    if "://" not in address and (found := canonicalize_bootstrap_address(address)):
        host, _, port = found.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
        except OSError as error:
            raise OSError(f"{found}: {error}") from None


def _names(ray: Any) -> list[str]:
    """The replays of the cluster."""
    from echo_shm.adapters.ray.directory import NAMESPACE

    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in found if one["namespace"] == NAMESPACE)


def _chosen(name: str | None, names: list[str]) -> str:
    if not names:
        raise EchoShmError("no replay is on this Ray cluster: a RayReplay has to be open, in whichever process")
    if name is None and len(names) > 1:
        raise EchoShmError(f"{len(names)} replays are on this Ray cluster: name one of {', '.join(names)}")
    if name is not None and name not in names:
        raise EchoShmError(f"no replay {name!r} is on this Ray cluster: use one of {', '.join(names)}")
    return names[0] if name is None else name
