"""A small web shop, in WebShop's observations and actions."""

import re
from collections.abc import Mapping
from typing import Any

from echo_shm.planning.environments.common import (
    LONGEST_ACTION,
    LONGEST_OBSERVATION,
    Environment,
    Strings,
    observed,
    text,
)
from echo_shm.planning.environments.configs import ShopConfig, configured
from echo_shm.planning.environments.shop_catalogue import Goal, make_catalogue
from echo_shm.planning.environments.shop_files import load_catalogue
from echo_shm.planning.environments.shop_pages import Location, Page, Pages
from echo_shm.planning.environments.shop_server import ShopServer

_ACTION = re.compile(r"\s*(search|click)\s*\[(.+)\]\s*", re.DOTALL)


class Shop(Environment[str, str]):
    """A customer has an instruction, and searches, reads, chooses and buys.

    What of WebShop (Yao et al. 2022, arXiv:2207.01206) it is: the format of observations (its text mode, with
    ``[SEP]``) and of actions, its pages and buttons, ten products a page and fifty a search, and its reward. What it is
    not: the products and instructions are generated, small and regular, unless ``config.path`` has WebShop's own
    files; the search is a BM25 of our own instead of Pyserini; the reward differs in the points that
    :func:`~echo_shm.planning.environments.shop_reward.reward` names; there are no images.

    Actions are strings: ``search[words]``, or ``click[text]`` of what can be clicked, in any case. Another string
    changes nothing and counts as a step. ``click[Buy Now]`` ends the episode with a reward of 0 to 1; all other rewards
    are 0.

    ``info`` has ``"available_actions"`` (``has_search_bar`` and ``clickables``, as WebShop), ``"admissible_commands"``
    (a tuple of all clicks; a search can have any words), ``"instruction"`` and ``"success"`` (a reward of 1).

    Pages are made in this process. :meth:`serve` serves the same ones over HTTP.

    Args:
        config: What is sold; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        FileNotFoundError: ``config.path`` does not have WebShop's files.
        ValueError: No goal fits the configuration.

    """

    def __init__(self, config: ShopConfig | None = None, **fields: Any) -> None:
        self.config = config = configured(ShopConfig, config, fields)
        super().__init__(config)
        if config.path is None:
            products, goals = make_catalogue(config.catalogue_seed, config.products, config.website_type)
        else:
            products, goals = load_catalogue(config.path, config.products, config.website_type)
        if config.budget_limit is not None:
            goals = [goal for goal in goals if goal.price_limit <= config.budget_limit]
        if not goals:
            raise ValueError(
                f"budget_limit={config.budget_limit}: no customer has so little: use a higher one, or None"
            )
        self.pages = Pages(products, goals)
        self.observation_space = Strings(LONGEST_OBSERVATION)
        self.action_space = Strings(LONGEST_ACTION)
        self._goal = goals[0]
        self._page = self.pages.page(self._goal, Location())

    @property
    def goal(self) -> Goal:
        """What this episode's customer wants, for demonstrations."""
        return self._goal

    def serve(self) -> ShopServer:
        """The shop's pages over HTTP on 127.0.0.1. Close the server in the end."""
        return ShopServer(self.pages)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode at the search page. ``options={"game": n}`` is the goal of that number."""
        self._goal = self.pages.goals[self._begin(seed, options, len(self.pages.goals))]
        self._page = self.pages.page(self._goal, Location())
        return observed(self._page.text()), self._info(self._page)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Searches, or clicks."""
        words = text(action)
        truncated = self._count()
        to = self._location(words)
        if to is not None:
            self._page = self.pages.page(self._goal, to)
        page = self._page
        if page.done:
            self._end()
        return observed(page.text()), page.reward, page.done, truncated and not page.done, self._info(page)

    def _location(self, action: str) -> Location | None:
        match = _ACTION.fullmatch(action)
        if match is None:
            return None
        what, words = match[1], match[2].strip().lower()
        if what == "search":
            return Location("results", words) if words else None
        return self._page.links().get(words)

    def _info(self, page: Page) -> dict[str, Any]:
        links = page.links()
        return {
            "available_actions": {"has_search_bar": page.has_search_bar, "clickables": list(links)},
            "admissible_commands": tuple(f"click[{link}]" for link in links),
            "instruction": self._goal.instruction,
            "success": page.done and page.reward == 1.0,
        }
