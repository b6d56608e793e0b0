"""A small world of rooms, doors, containers, things and keys: what is in it, what can be done, and what is said.

The numbers of a world, which the lists below are indexed by: rooms 0 to R-1, containers 0 to C-1, locks (doors and then
containers: whatever can be open or closed), and things. A place is a room, or R plus a container, or HELD.
"""

import dataclasses

HELD = -1
NONE = -1
LOCKED, CLOSED, OPEN = range(3)
STATES = ("locked", "closed", "open")

#: What a command does: its first number. The others are what it does it with.
GO, TAKE, DROP, PUT, UNLOCK, OPEN_IT, CLOSE_IT, LOOK, COUNT = range(9)

Command = tuple[int, int, int]


@dataclasses.dataclass(slots=True)
class World:
    """An episode's world. What is fixed comes first; the last three fields change.

    Attributes:
        rooms: Their names.
        exits: For each room: direction, the room there, and the lock of the door between, or NONE.
        containers: For each container: the room that it is in, and its lock.
        locks: The names of doors and containers.
        keys: For each lock, the thing that unlocks it, or NONE.
        things: Their names.
        goal: What must be so: a thing (or NONE), and its place; without a thing, the room to be in.
        here: The room in which the player is.
        states: For each lock: LOCKED, CLOSED or OPEN.
        places: For each thing: its place.

    """

    rooms: list[str]
    exits: list[list[tuple[str, int, int]]]
    containers: list[tuple[int, int]]
    locks: list[str]
    keys: list[int]
    things: list[str]
    goal: tuple[int, int]
    here: int
    states: list[int]
    places: list[int]

    def copy(self) -> "World":
        """A world that changes apart from this one."""
        return dataclasses.replace(self, states=self.states[:], places=self.places[:])

    def is_done(self) -> bool:
        """Whether the goal is reached."""
        thing, place = self.goal
        return self.here == place if thing == NONE else self.places[thing] == place

    def goal_text(self) -> str:
        """The goal as a sentence."""
        thing, place = self.goal
        if thing == NONE:
            return f"Goal: go to the {self.rooms[place]}."
        if place == HELD:
            return f"Goal: take the {self.things[thing]}."
        return f"Goal: put the {self.things[thing]} in the {self.locks[self.containers[place - len(self.rooms)][1]]}."

    def commands(self) -> dict[str, Command]:
        """What can be done now: each command, and what :meth:`apply` takes for it."""
        found: dict[str, Command] = {}
        for direction, room, lock in self.exits[self.here]:
            if lock == NONE or self.states[lock] == OPEN:
                found[f"go {direction}"] = (GO, room, 0)
            if lock != NONE:
                self._add_lock(found, lock)
        open_here = []
        for container, (room, lock) in enumerate(self.containers):
            if room == self.here:
                self._add_lock(found, lock)
                if self.states[lock] == OPEN:
                    open_here.append((len(self.rooms) + container, self.locks[lock]))
        for thing, place in enumerate(self.places):
            name = self.things[thing]
            if place == HELD:
                found[f"drop {name}"] = (DROP, thing, 0)
                for inside, container_name in open_here:
                    found[f"put {name} in {container_name}"] = (PUT, thing, inside)
            elif place == self.here:
                found[f"take {name}"] = (TAKE, thing, 0)
            else:
                for inside, container_name in open_here:
                    if place == inside:
                        found[f"take {name} from {container_name}"] = (TAKE, thing, 0)
        found["look"] = (LOOK, 0, 0)
        found["inventory"] = (COUNT, 0, 0)
        return found

    def _add_lock(self, found: dict[str, Command], lock: int) -> None:
        name, state = self.locks[lock], self.states[lock]
        if state == OPEN:
            found[f"close {name}"] = (CLOSE_IT, lock, 0)
        elif state == CLOSED:
            found[f"open {name}"] = (OPEN_IT, lock, 0)
        elif self.places[self.keys[lock]] == HELD:
            found[f"unlock {name} with {self.things[self.keys[lock]]}"] = (UNLOCK, lock, 0)

    def apply(self, command: Command) -> str:
        """Does what is one of :meth:`commands`, and says what came of it."""
        what, which, where = command
        if what == GO:
            self.here = which
            return self.room_text()
        if what == LOOK:
            return self.room_text()
        if what == COUNT:
            return self.carried_text()
        if what in (TAKE, DROP, PUT):
            self.places[which] = (HELD, self.here, where)[what - TAKE]
            return f"You {('take', 'drop', 'put away')[what - TAKE]} the {self.things[which]}."
        self.states[which] = (CLOSED, OPEN, CLOSED)[what - UNLOCK]
        said = f"You {('unlock', 'open', 'close')[what - UNLOCK]} the {self.locks[which]}."
        return f"{said} {self._inside(which)}" if what == OPEN_IT and self._container_of(which) != NONE else said

    def room_text(self) -> str:
        """The room in which the player is."""
        said = [f"You are in the {self.rooms[self.here]}."]
        for direction, _, lock in self.exits[self.here]:
            way = "A way" if lock == NONE else f"The {STATES[self.states[lock]]} {self.locks[lock]}"
            said.append(f"{way} leads {direction}.")
        for room, lock in self.containers:
            if room == self.here:
                open_one = self.states[lock] == OPEN
                said.append(
                    self._inside(lock) if open_one else f"The {self.locks[lock]} is {STATES[self.states[lock]]}."
                )
        there = self._listed(self.here)
        if there:
            said.append(f"You see {there}.")
        return " ".join(said)

    def carried_text(self) -> str:
        """What the player carries."""
        return f"You carry {self._listed(HELD) or 'nothing'}."

    def _container_of(self, lock: int) -> int:
        return next((number for number, (_, own) in enumerate(self.containers) if own == lock), NONE)

    def _inside(self, lock: int) -> str:
        inside = self._listed(len(self.rooms) + self._container_of(lock))
        return f"The {self.locks[lock]} is open. It holds {inside or 'nothing'}."

    def _listed(self, place: int) -> str:
        return ", ".join([f"the {self.things[thing]}" for thing, one in enumerate(self.places) if one == place])


def walkthrough(world: World) -> list[str]:
    """Commands that reach the goal from here, if every key can be reached. They need not be the fewest."""
    world = world.copy()
    done: list[str] = []

    def do(command: str) -> None:
        done.append(command)
        world.apply(world.commands()[command])

    def open_up(lock: int, room: int) -> None:
        """Opens what is in this room, or leads out of it; fetches the key, and comes back."""
        if world.states[lock] == LOCKED:
            fetch(world.keys[lock])
            go(room)
            do(f"unlock {world.locks[lock]} with {world.things[world.keys[lock]]}")
        if world.states[lock] == CLOSED:
            do(f"open {world.locks[lock]}")

    def go(room: int) -> None:
        while world.here != room:
            direction, lock = _first_step(world, world.here, room)
            if lock != NONE and world.states[lock] != OPEN:
                open_up(lock, world.here)
            do(f"go {direction}")

    def fetch(thing: int) -> None:
        place = world.places[thing]
        if place == HELD:
            return
        if place < len(world.rooms):
            go(place)
            do(f"take {world.things[thing]}")
            return
        room, lock = world.containers[place - len(world.rooms)]
        go(room)
        open_up(lock, room)
        do(f"take {world.things[thing]} from {world.locks[lock]}")

    thing, place = world.goal
    if thing == NONE:
        go(place)
    elif not world.is_done():
        fetch(thing)
        if place != HELD:
            room, lock = world.containers[place - len(world.rooms)]
            go(room)
            open_up(lock, room)
            do(f"put {world.things[thing]} in {world.locks[lock]}")
    return done


def _first_step(world: World, start: int, room: int) -> tuple[str, int]:
    """The direction, and the lock, of the first step of the way between two rooms, whatever is locked."""
    first: dict[int, tuple[str, int]] = {start: ("", NONE)}
    queue = [start]
    for one in queue:
        for direction, there, lock in world.exits[one]:
            if there not in first:
                first[there] = (direction, lock) if one == start else first[one]
                queue.append(there)
    return first[room]
