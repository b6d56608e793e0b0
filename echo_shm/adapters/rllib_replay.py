"""The replay behind a buffer for RLlib: it begins, becomes a state, comes from one, and ends."""

import tempfile
from typing import Any

from echo_shm.adapters.folders import check_restorable, read_files, write_files
from echo_shm.adapters.rllib_episodes import Streams
from echo_shm.replay import NStep, Replay, ReplayClient, Table


class Owner:
    """The part of a buffer that has the replay. The rest makes these."""

    capacity: int
    _item: NStep
    _table: Table
    _options: dict[str, Any]
    _replay: Replay | None

    def _begin(self, replay: Replay) -> None:
        self._replay, self._client = replay, ReplayClient(replay.handle)
        self._streams = Streams(self._client.writer, lambda: replay.num_steps)

    def get_state(self) -> dict[str, Any]:
        """All that is stored, as arrays of bytes: see :meth:`Replay.checkpoint`."""
        names = ("_num_items_evicted", "_num_timesteps_added", "_num_episodes_added", "_num_episodes_evicted")
        state = {name: getattr(self, name) for name in (*names, "sampled_timesteps", "_spaces", "_drawn")}
        with tempfile.TemporaryDirectory() as folder:
            if self._replay is not None:
                self._replay.checkpoint(folder)
            return {"item": (self._item.n, self._item.gamma), "counts": state, "files": read_files(folder)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on with such a state. Episodes that went on then do not: their next pieces are episodes of their own.

        The buffer's own capacity and alpha stay, as in RLlib. Of more steps than that the newest come, at once.

        Raises:
            ValueError: The state has another ``n_step`` or ``gamma``, or ``store`` is a directory that is not empty.

        """
        mine, others = (self._item.n, self._item.gamma), tuple(state["item"])
        if others != mine:
            raise ValueError(
                f"set_state(): the state has (n_step, gamma) = {others}, and the buffer {mine}: make a buffer with "
                "those of the state"
            )
        with tempfile.TemporaryDirectory() as folder:
            write_files(folder, state["files"])
            if state["files"]:
                check_restorable(folder, self._options["store"], "set_state()")
            self.close()
            self._replay = None
            if state["files"]:
                self._begin(Replay.restore(folder, [self._table], capacity=self.capacity, **self._options))
        for name, value in state["counts"].items():
            setattr(self, name, value)

    def close(self) -> None:
        """Ends the replay. Idempotent."""
        if self._replay is not None:
            self._streams.close()
            self._client.close()
            self._replay.close()
