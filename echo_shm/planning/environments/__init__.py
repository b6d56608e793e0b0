"""Environments in which agents plan, for Gymnasium.

Text worlds, ALFWorld, a web shop, questions about code, ARC and MiniGrid. ``ALFWorldEnvironment`` and the like are
EchoRL's names. A module, and the package that it needs, is imported when one of its names is used.
"""

from typing import TYPE_CHECKING

from echo_shm import lazy

if TYPE_CHECKING:
    from echo_shm.planning.environments.alfworld import Alfworld, ALFWorldEnvironment
    from echo_shm.planning.environments.arc import Arc, ARCEnvironment
    from echo_shm.planning.environments.code import CodeReasoning
    from echo_shm.planning.environments.configs import (
        ALFWorldConfig,
        AlfworldConfig,
        ARCConfig,
        ArcConfig,
        CodeConfig,
        CRUXEvalConfig,
        EnvironmentConfig,
        MiniGridConfig,
        ShopConfig,
        TextWorldConfig,
        TextWorldGamesConfig,
        WebShopConfig,
    )
    from echo_shm.planning.environments.cruxeval import CRUXEvalEnvironment
    from echo_shm.planning.environments.minigrid import MiniGrid, MiniGridEnvironment
    from echo_shm.planning.environments.shop import Shop
    from echo_shm.planning.environments.shop_server import ShopServer
    from echo_shm.planning.environments.text_world import TextWorld
    from echo_shm.planning.environments.textworld_games import TextWorldGames
    from echo_shm.planning.environments.vocabulary import Vocabulary
    from echo_shm.planning.environments.webshop import WebShopEnvironment

#: For each module, its public names.
_NAMES = {
    "alfworld": ("ALFWorldEnvironment", "Alfworld"),
    "arc": ("ARCEnvironment", "Arc"),
    "code": ("CodeReasoning",),
    "configs": (
        "ALFWorldConfig",
        "ARCConfig",
        "AlfworldConfig",
        "ArcConfig",
        "CRUXEvalConfig",
        "CodeConfig",
        "EnvironmentConfig",
        "MiniGridConfig",
        "ShopConfig",
        "TextWorldConfig",
        "TextWorldGamesConfig",
        "WebShopConfig",
    ),
    "cruxeval": ("CRUXEvalEnvironment",),
    "minigrid": ("MiniGrid", "MiniGridEnvironment"),
    "shop": ("Shop",),
    "shop_server": ("ShopServer",),
    "text_world": ("TextWorld",),
    "textworld_games": ("TextWorldGames",),
    "vocabulary": ("Vocabulary",),
    "webshop": ("WebShopEnvironment",),
}

__all__ = [
    "ALFWorldConfig",
    "ALFWorldEnvironment",
    "ARCConfig",
    "ARCEnvironment",
    "Alfworld",
    "AlfworldConfig",
    "Arc",
    "ArcConfig",
    "CRUXEvalConfig",
    "CRUXEvalEnvironment",
    "CodeConfig",
    "CodeReasoning",
    "EnvironmentConfig",
    "MiniGrid",
    "MiniGridConfig",
    "MiniGridEnvironment",
    "Shop",
    "ShopConfig",
    "ShopServer",
    "TextWorld",
    "TextWorldConfig",
    "TextWorldGames",
    "TextWorldGamesConfig",
    "Vocabulary",
    "WebShopConfig",
    "WebShopEnvironment",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.names(__name__, _NAMES)
