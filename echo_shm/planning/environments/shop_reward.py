"""What a purchase is worth: WebShop's reward."""

import difflib
import re

from echo_shm.planning.environments.shop_catalogue import ARROW, Goal, Product

#: A likeness of strings above this one is a match.
_ALIKE = 0.85
#: Values of these options must be the very same.
_EXACT = frozenset({"size"})


def reward(product: Product, chosen: dict[str, str], goal: Goal) -> float:
    """WebShop's reward of a purchase, 0 to 1 (Yao et al. 2022, arXiv:2207.01206, section 3).

    ``r_type * (attributes met + options met + price met) / (attributes + options + 1)``: how many of the wanted
    attributes the product has, how many of the wanted options were chosen, whether it costs at most the limit; and
    whether it is of the wanted type at all.

    Where it differs from WebShop's code (``web_agent_site/engine/goal.py``): a title's words count as its nouns, where
    WebShop asks spaCy which they are, so that ``r_type`` can be higher or lower; a likeness is that of difflib, not
    of thefuzz; colours are compared as they are, not by their basic names; a wanted option is met once, however many
    chosen values are like it.

    Args:
        product: What was bought.
        chosen: The value of each chosen option.
        goal: What was wanted.

    """
    met = sum(_has(product, one) for one in goal.attributes)
    met += sum(
        any(_is_chosen(name, value, wanted) for name, value in chosen.items()) or _tells(product, wanted, chosen)
        for wanted in goal.options
    )
    met += product.price <= goal.price_limit
    return type_reward(product, goal.product) * met / (len(goal.attributes) + len(goal.options) + 1)


def type_reward(product: Product, wanted: Product) -> float:
    """1 if a product is of the wanted type, 0 if it has nothing of it, and 0.5 or 0.1 between."""
    words, wanted_words = _words(product.title), _words(wanted.title)
    shared = len(words & wanted_words) / len(wanted_words) if wanted_words else 0.2
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    categories = [{part.strip() for part in one.product_category.split(ARROW)} for one in (product, wanted)]
    same = product.query == wanted.query or len(categories[0] & categories[1]) >= 2 or shared > 0.2
    return 1.0 if same else 0.5


def _words(title: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", title.lower())) - {"and", "for", "the", "with", "from"}


def _has(product: Product, attribute: str) -> bool:
    return any(alike(one, attribute) for one in product.attributes) or attribute in _prose(product)


def _is_chosen(name: str, value: str, wanted: str) -> bool:
    return value == wanted if name.lower() in _EXACT else alike(wanted, value)


def _tells(product: Product, wanted: str, chosen: dict[str, str]) -> bool:
    """Whether the product's own texts have a wanted value that was chosen, perhaps in another spelling."""
    return wanted in chosen.values() and wanted in _prose(product)


def _prose(product: Product) -> str:
    return " ".join((product.title, *product.features, product.description)).lower()


def alike(a: str, b: str) -> bool:
    """Whether two strings are alike by their words: their order, and words that one has more, do not count."""
    words_a, words_b = set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower()))
    if not words_a or not words_b:
        return False
    common = " ".join(sorted(words_a & words_b))
    full_a = f"{common} {' '.join(sorted(words_a - words_b))}".strip()
    full_b = f"{common} {' '.join(sorted(words_b - words_a))}".strip()
    pairs = ((common, full_a), (common, full_b), (full_a, full_b)) if common else ((full_a, full_b),)
    return max(difflib.SequenceMatcher(None, x, y, autojunk=False).ratio() for x, y in pairs) > _ALIKE
