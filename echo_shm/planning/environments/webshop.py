"""EchoRL's name of the shop."""

from echo_shm.planning.environments.configs import WebShopConfig
from echo_shm.planning.environments.shop import Shop

__all__ = ["WebShopConfig", "WebShopEnvironment"]


class WebShopEnvironment(Shop):
    """EchoRL's name of :class:`Shop`. There, it sold nine products at most, and had one task, a laptop.

    The actions are WebShop's strings, ``search[...]`` and ``click[...]``, where there they were numbers.
    """
