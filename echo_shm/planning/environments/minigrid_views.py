"""A grid of MiniGrid's numbers as a vector of zeros and ones, and as words."""

import numpy as np
import numpy.typing as npt

#: In the order of MiniGrid's numbers (``minigrid/core/constants.py``).
OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
DIRECTIONS = ("east", "south", "west", "north")

#: How many kinds of cells a word is said of: not of what is unseen, empty, floor or wall, nor of the agent.
_NAMED = (4, 5, 6, 7, 8, 9)


def flat(image: npt.NDArray[np.uint8], direction: int, carried: tuple[str, str] | None) -> npt.NDArray[np.uint8]:
    """One-hot cells, direction and what is carried.

    Args:
        image: uint8 ``(w, h, 3)``: object, colour and state.
        direction: 0 to 3.
        carried: The object's type and colour, or None.

    Returns:
        uint8 ``(w * h * 20 + 4 + 17,)``.

    """
    cells = image.reshape(-1, 3).astype(np.int64)
    marks = np.zeros((len(cells), len(OBJECTS) + len(COLOURS) + len(STATES)), np.uint8)
    rows = np.arange(len(cells))
    marks[rows, cells[:, 0]] = 1
    marks[rows, len(OBJECTS) + cells[:, 1]] = 1
    doors = cells[:, 0] == OBJECTS.index("door")  # the state of the agent's cell is its direction
    marks[rows[doors], len(OBJECTS) + len(COLOURS) + cells[doors, 2]] = 1
    rest = np.zeros(len(DIRECTIONS) + len(OBJECTS) + len(COLOURS), np.uint8)
    rest[direction] = 1
    if carried is not None:
        rest[len(DIRECTIONS) + OBJECTS.index(carried[0])] = 1
        rest[len(DIRECTIONS) + len(OBJECTS) + COLOURS.index(carried[1])] = 1
    return np.concatenate((marks.ravel(), rest))


def in_words(
    image: npt.NDArray[np.uint8], mission: str, direction: int, carried: tuple[str, str] | None, full: bool
) -> str:
    """What is seen, as sentences.

    Args:
        image: uint8 ``(w, h, 3)``: object, colour and state.
        mission: What is to be done.
        direction: 0 to 3.
        carried: The object's type and colour, or None.
        full: The image is the whole grid; False: what the agent sees, which stands in the middle of the last row.

    """
    said = [f"Mission: {mission}.", f"You face {DIRECTIONS[direction]}."]
    said.append(f"You carry the {carried[1]} {carried[0]}." if carried else "You carry nothing.")
    if full:
        x, y = (int(one[0]) for one in np.nonzero(image[:, :, 0] == OBJECTS.index("agent")))
        heading = direction
    else:
        x, y, heading = image.shape[0] // 2, image.shape[1] - 1, 3
    for column in range(image.shape[0]):
        for row in range(image.shape[1]):
            kind, colour, state = (int(one) for one in image[column, row])
            if kind in _NAMED and (column, row) != (x, y):
                what = f"{COLOURS[colour]} {OBJECTS[kind]}"
                what = f"{STATES[state]} {what}" if kind == OBJECTS.index("door") else what
                said.append(f"A {what} is {_way(column - x, row - y, heading)}.")
    free = _steps_ahead(image, x, y, heading)
    said.append(f"You can go {free} forward.")
    return " ".join(said)


def _way(dx: int, dy: int, heading: int) -> str:
    """Where a cell is from the agent: ``"3 ahead, 1 left"``."""
    ahead, right = _turned(dx, dy, heading)
    parts = [f"{abs(ahead)} {'ahead' if ahead > 0 else 'behind'}"] if ahead else []
    parts += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
    return ", ".join(parts)


def _turned(dx: int, dy: int, heading: int) -> tuple[int, int]:
    """How far ahead and how far to the right: headings are 0 east, 1 south, 2 west, 3 north; y grows southwards."""
    return ((dx, dy), (dy, -dx), (-dx, -dy), (-dy, dx))[heading]


def _steps_ahead(image: npt.NDArray[np.uint8], x: int, y: int, heading: int) -> int:
    """How many cells before the agent can be walked on."""
    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[heading]
    steps = 0
    while 0 <= x + dx < image.shape[0] and 0 <= y + dy < image.shape[1]:
        x, y = x + dx, y + dy
        kind, _, state = image[x, y]
        is_open_door = OBJECTS[kind] == "door" and STATES[state] == "open"
        if OBJECTS[kind] not in ("empty", "floor", "goal") and not is_open_door:
            break
        steps += 1
    return steps
