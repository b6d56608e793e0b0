"""The pages of a shop. A page depends on the goal and on where one is, and on nothing else.

So a page can be asked for in this process or over HTTP, in any order, and is the same.
"""

import dataclasses
import html
import json
import urllib.parse
from typing import Any, Literal

from echo_shm.planning.environments.shop_catalogue import Goal, Product
from echo_shm.planning.environments.shop_reward import reward
from echo_shm.planning.environments.shop_search import SearchEngine

#: Products of one page of results, and of all of them, as in WebShop.
PAGE, MOST = 10, 50
SUB_PAGES = ("Description", "Features", "Reviews")

Kind = Literal["search", "results", "item", "sub_page", "done"]
_KINDS = ("search", "results", "item", "sub_page", "done")


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a customer is.

    Attributes:
        kind: Which page.
        keywords: What was searched for.
        page: Which page of the results, from 1.
        asin: Which product.
        options: Name and value of each option that was chosen.
        sub_page: Which of a product's further pages.

    """

    kind: Kind = "search"
    keywords: str = ""
    page: int = 1
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub_page: str = ""

    def path(self) -> str:
        """The part of an URL that stands for it."""
        fields = {key: value for key, value in dataclasses.asdict(self).items() if value and key != "options"}
        if self.options:
            fields["options"] = json.dumps(dict(self.options))
        return urllib.parse.urlencode(fields)

    @staticmethod
    def of_path(query: str) -> "Location":
        """The location of such a part.

        Raises:
            ValueError: It stands for none.

        """
        fields = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        kind, page = fields.get("kind", "search"), fields.get("page", "1")
        options = json.loads(fields.get("options", "{}"))
        if kind not in _KINDS or not page.isascii() or not page.isdigit() or not 1 <= len(page) <= 4:
            raise ValueError(f"{query!r:.200} stands for no page")
        if not isinstance(options, dict) or not all(isinstance(one, str) for one in options.values()):
            raise ValueError(f"{query!r:.200}: options must be a JSON object of strings")
        asin, sub_page = fields.get("asin", ""), fields.get("sub_page", "")
        return Location(kind, fields.get("keywords", ""), int(page), asin, tuple(options.items()), sub_page)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Element:
    """A piece of a page: a text, and where a click on it leads.

    Attributes:
        text: What is read.
        tag: Its tag in HTML.
        to: Where it leads; None: it cannot be clicked.

    """

    text: str
    tag: str = "p"
    to: Location | None = None


@dataclasses.dataclass(frozen=True)
class Page:
    """What is seen at a location.

    Attributes:
        elements: What is on it, from above.
        has_search_bar: Whether it asks for keywords.
        reward: Of the purchase, 0 to 1; 0 before it.
        done: Whether the purchase was made.

    """

    elements: tuple[Element, ...]
    has_search_bar: bool = False
    reward: float = 0.0
    done: bool = False

    def text(self) -> str:
        """What WebShop's text mode observes: the texts with ``[SEP]`` between."""
        return " [SEP] ".join(element.text for element in self.elements)

    def links(self) -> dict[str, Location]:
        """For what can be clicked, in lower case: where it leads."""
        return {element.text.lower(): element.to for element in self.elements if element.to is not None}

    def html(self, base: str) -> str:
        """The page as HTML, whose links begin with ``base``."""
        lines = []
        for one in self.elements:
            inner = html.escape(one.text)
            if one.to is not None:
                inner = f'<a href="{html.escape(f"{base}?{one.to.path()}")}">{inner}</a>'
            lines.append(f"<{one.tag}>{inner}</{one.tag}>")
        if self.has_search_bar:
            fields = '<input name="keywords"><input type="hidden" name="kind" value="results">'
            lines.append(f'<form action="{html.escape(base)}">{fields}<input type="submit"></form>')
        return f"<!DOCTYPE html>\n<html><body>\n{chr(10).join(lines)}\n</body></html>\n"

    def described(self, base: str) -> dict[str, Any]:
        """The page for programs: ``observation``, ``has_search_bar``, ``links``, ``reward``, ``done``."""
        return {
            "observation": self.text(),
            "has_search_bar": self.has_search_bar,
            "links": {text: f"{base}?{to.path()}" for text, to in self.links().items()},
            "reward": self.reward,
            "done": self.done,
        }


class Pages:
    """Makes the pages of a shop.

    Args:
        products: What it sells.
        goals: What its customers want.

    """

    def __init__(self, products: list[Product], goals: list[Goal]) -> None:
        self.goals = goals
        self._products = {product.asin: product for product in products}
        self._engine = SearchEngine(products)

    def page(self, goal: Goal, at: Location) -> Page:
        """The page at a location, for the customer who has this goal.

        Raises:
            ValueError: It is the page of a product that is not sold, or of an option that it does not have.

        """
        instruction = (Element("Instruction:", "h4"), Element(goal.instruction, "p"))
        if at.kind == "search":
            # The button needs keywords, so a click on it leads nowhere, as in WebShop.
            return Page((Element("WebShop", "h2"), *instruction, Element("Search", "button")), has_search_bar=True)
        if at.kind == "results":
            return Page((*instruction, *self._results(at)))
        product = self._products.get(at.asin)
        if product is None:
            raise ValueError(f"product {at.asin!r:.40}: the shop does not sell it")
        for name, value in at.options:
            if value not in product.options.get(name, ()):
                raise ValueError(f"option {name!r:.40}={value!r:.40}: product {at.asin} does not have it")
        if at.kind == "done":
            worth = reward(product, dict(at.options), goal)
            said = (Element("Thank you for shopping with us!"), Element("Your score (min 0.0, max 1.0)"))
            return Page((*said, Element(f"{worth:.4f}")), reward=worth, done=True)
        back = Element("Back to Search", "h5", Location())
        if at.kind == "sub_page":
            prev = Element("< Prev", "h5", dataclasses.replace(at, kind="item", sub_page=""))
            return Page((*instruction, back, prev, *_sub_page(product, at.sub_page)))
        return Page((*instruction, back, *_item(product, at)))

    def _results(self, at: Location) -> list[Element]:
        found = self._engine.search(at.keywords, MOST)
        elements = [Element("Back to Search", "h5", Location())]
        elements.append(Element(f"Page {at.page} (Total results: {len(found)})"))
        if at.page > 1:
            elements.append(Element("< Prev", "h5", dataclasses.replace(at, page=at.page - 1)))
        if at.page * PAGE < len(found):
            elements.append(Element("Next >", "h5", dataclasses.replace(at, page=at.page + 1)))
        for product in found[(at.page - 1) * PAGE : at.page * PAGE]:
            to = Location("item", at.keywords, at.page, product.asin)
            elements += [Element(product.asin, "h4", to), Element(product.title), Element(product.price_text)]
        return elements


def _item(product: Product, at: Location) -> list[Element]:
    elements = [Element("< Prev", "h5", Location("results", at.keywords, at.page))]
    chosen = dict(at.options)
    for name, values in product.options.items():
        elements.append(Element(name, "h4"))
        for value in values:
            options = tuple({**chosen, name: value}.items())
            elements.append(Element(value, "li", dataclasses.replace(at, options=options)))
    elements += [Element(product.title, "h2"), Element(f"Price: {product.price_text}")]
    elements.append(Element(f"Rating: {product.rating}"))
    elements += [Element(one, "h5", dataclasses.replace(at, kind="sub_page", sub_page=one)) for one in SUB_PAGES]
    elements.append(Element("Buy Now", "h5", dataclasses.replace(at, kind="done")))
    return elements


def _sub_page(product: Product, sub_page: str) -> list[Element]:
    texts = {"Description": (product.description,), "Features": product.features, "Reviews": product.reviews}
    if sub_page not in texts:
        raise ValueError(f"sub_page={sub_page!r:.40}: use one of {', '.join(SUB_PAGES)}")
    return [Element(text) for text in texts[sub_page]]
