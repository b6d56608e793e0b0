"""Makes the worlds of TextWorld from a number. Each can be solved: see the order in which keys are placed."""

import random

from echo_shm.planning.environments.configs import TextWorldConfig
from echo_shm.planning.environments.text_world_rules import CLOSED, HELD, LOCKED, NONE, OPEN, World
from echo_shm.planning.environments.vocabulary import Vocabulary

_ROOMS, _COLOURS, _MATERIALS, _CONTAINERS, _THINGS, _REST = (
    words.split()
    for words in (
        "kitchen pantry attic cellar garden library bedroom bathroom hall studio garage balcony workshop nursery "
        "office greenhouse",
        "red blue green yellow black white purple orange brown grey",
        "oak iron glass stone silver bamboo copper marble",
        "chest box drawer cupboard safe basket",
        "apple book coin lamp cup spoon hat rope bottle letter ring clock pen shoe bell mirror",
        "Goal go to the take put in from with drop open close unlock look inventory You are A way leads The is locked "
        "closed It holds nothing see carry away door key do that cannot now",
    )
)
_DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

#: Every word of every world, and of what can be done there.
VOCABULARY = Vocabulary([*_REST, *_DIRECTIONS, *_ROOMS, *_COLOURS, *_MATERIALS, *_CONTAINERS, *_THINGS])

#: How many there can be of each, as names go.
MOST = {
    "rooms": len(_ROOMS),
    "locked_doors": len(_COLOURS),
    "containers": len(_MATERIALS),
    "max_objects": len(_THINGS),
}


def make_world(game: int, config: TextWorldConfig) -> World:
    """The world of a number. The same number and sizes give the same world.

    Rooms are a tree: each but the first hangs on one of a lower number. The key of a door lies in a room of a lower
    number than the room behind it, and the key of a container in a room of at most its number, outside of locked
    containers. So every room and container can be reached, by induction over the numbers.
    """
    rng = random.Random(game)
    exits, parents = _rooms(rng, config.rooms)
    doors = sorted(rng.sample(range(1, config.rooms), config.locked_doors))
    colours = rng.sample(_COLOURS, len(doors))
    locks, states = [f"{colour} door" for colour in colours], [LOCKED] * len(doors)
    for lock, room in enumerate(doors):
        _set_lock(exits, room, parents[room], lock)
    materials = rng.sample(_MATERIALS, config.containers)
    containers = []
    for number, material in enumerate(materials):
        containers.append((rng.randrange(config.rooms), len(locks)))
        locks.append(f"{material} {rng.choice(_CONTAINERS)}")
        states.append(LOCKED if number < config.locked_containers else rng.choice((CLOSED, OPEN)))

    things: list[str] = []
    places: list[int] = []
    keys = [NONE] * len(locks)
    for lock, room in enumerate(doors):
        keys[lock] = len(things)
        things.append(f"{colours[lock]} key")
        inside = [config.rooms + number for number, (there, _) in enumerate(containers) if there < room]
        places.append(rng.choice([*range(room), *inside]))
    for number in range(config.locked_containers):
        room, lock = containers[number]
        keys[lock] = len(things)
        things.append(f"{materials[number]} key")
        inside = [
            config.rooms + i for i, (there, own) in enumerate(containers) if there <= room and states[own] != LOCKED
        ]
        places.append(rng.choice([*range(room + 1), *inside]))
    first_item = len(things)
    things += rng.sample(_THINGS, config.max_objects - first_item)
    places += [rng.randrange(config.rooms + config.containers) for _ in things[first_item:]]
    goal = _goal(rng, config, len(things), first_item, places)
    names = rng.sample(_ROOMS, config.rooms)
    return World(names, exits, containers, locks, keys, things, goal, 0, states, places)


def _rooms(rng: random.Random, rooms: int) -> tuple[list[list[tuple[str, int, int]]], list[int]]:
    """The exits of each room, and the room that each hangs on. Rooms lie on a grid."""
    cells, parents = {(0, 0): 0}, [NONE]
    exits: list[list[tuple[str, int, int]]] = [[]]
    while len(exits) < rooms:
        (x, y), parent = rng.choice(list(cells.items()))
        direction, (dx, dy) = rng.choice(list(_DIRECTIONS.items()))
        cell = (x + dx, y + dy)
        if cell not in cells:
            cells[cell] = len(exits)
            exits[parent].append((direction, len(exits), NONE))
            exits.append([(_OPPOSITE[direction], parent, NONE)])
            parents.append(parent)
    return exits, parents


def _set_lock(exits: list[list[tuple[str, int, int]]], a: int, b: int, lock: int) -> None:
    """A door between two rooms."""
    for one, other in ((a, b), (b, a)):
        exits[one] = [(way, there, lock if there == other else own) for way, there, own in exits[one]]


def _goal(
    rng: random.Random, config: TextWorldConfig, things: int, first_item: int, places: list[int]
) -> tuple[int, int]:
    """A goal that is not reached yet. Its thing moves if it lies in the container already."""
    task = rng.choice(("pick_and_place", "pick", "visit")) if config.task_type == "any" else config.task_type
    if task == "visit":
        return NONE, rng.randrange((config.rooms + 1) // 2, config.rooms)
    thing = rng.randrange(first_item, things)
    if task == "pick":
        return thing, HELD
    place = config.rooms + rng.randrange(config.containers)
    if places[thing] == place:
        places[thing] = rng.randrange(config.rooms)
    return thing, place
