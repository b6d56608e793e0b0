"""What ``echo-shm dash --ray`` shows of a replay on a Ray cluster: JSON, from what shards report to its directory."""

from typing import TYPE_CHECKING, Any

from echo_shm.cli import console, ray_figures
from echo_shm.cli.ray_figures import RayFigures

if TYPE_CHECKING:
    from echo_shm.adapters.ray.directory import Place
    from echo_shm.replay import TableInfo

#: Most shards, tables and losses that are told of.
_MOST = 256


class RayState:
    """A replay on Ray.

    Args:
        name: The replay's; None: the only one of the cluster.
        address: The cluster's, as for ``ray.init()``.

    Raises:
        UsageError, EchoShmError: As for :class:`RayFigures`.

    """

    def __init__(self, name: str | None, address: str) -> None:
        self._figures = RayFigures(name, address)
        self.what = f"replay {self._figures.name!r}"

    def read(self) -> dict[str, Any] | None:
        """See :meth:`State.read`."""
        figures = self._figures
        if not figures.read():
            return None
        roster, (steps, capacity) = figures.look.roster, figures.steps
        places, losses = roster.places[:_MOST], roster.losses[-_MOST:]
        return {
            "kind": "ray",
            "name": figures.name,
            "silence": figures.silence,
            "steps": steps,
            "capacity": capacity,
            "shards": [self._shard(one) for one in places],
            "more_shards": len(roster.places) - len(places),
            "tables": [self._table(name, places) for name in figures.tables[:_MOST]],
            "losses": [ray_figures.words_of(one) for one in losses],
            "more_losses": len(roster.losses) - len(losses),
            "waits": [],
        }

    def _shard(self, place: "Place") -> dict[str, Any]:
        look = self._figures.look
        report = look.reports[place.number][0] if place.number in look.reports else None
        return {
            "number": place.number, "node": place.node, "host": place.host, "state": self._figures.state(place.number),
            "pid": None if report is None else report.pid, "steps": None if report is None else report.num_steps,
            "capacity": None if report is None else report.capacity,
            "age": None if report is None else look.age(place.number),
        }  # fmt: skip

    def _table(self, name: str, places: "tuple[Place, ...]") -> dict[str, Any]:
        """A table of all shards together, and of each."""
        figures = self._figures
        infos, rates, shares = figures.of_table(name), figures.rates(name), figures.shares(name)
        parts = [
            {"shard": number, "share": shares.get(number), **rates[number]._asdict(), **_part([infos[number]])}
            for number in (one.number for one in places)
            if number in infos
        ]
        rate = ray_figures.Rates(*(sum(of) for of in zip(*rates.values(), strict=True))) if rates else None
        return {"name": name, "parts": parts, **(rate._asdict() if rate else {}), **_part(list(infos.values()))}


def _part(infos: "list[TableInfo]") -> dict[str, Any]:
    """Sums over some shards. A limiter allows what it allows in one of them."""
    limiters = [info.limiter for info in infos]
    return {
        "size": sum(info.size for info in infos),
        "parked": sum(info.parked for info in infos),
        "can_insert": any(one.can_insert for one in limiters),
        "can_sample": any(one.can_sample for one in limiters),
        **{
            field: console.finite(sum(getattr(one, field) for one in limiters))
            for field in ("diff", "min_diff", "max_diff")
        },
    }
