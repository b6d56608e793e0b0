"""The search of a shop: BM25 over titles, descriptions, features and options."""

import collections
import heapq
import math
import re

from echo_shm.planning.environments.shop_catalogue import Product

#: As Lucene's defaults, which WebShop's search has.
_K1, _B = 0.9, 0.4


class SearchEngine:
    """Finds products by words (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond").

    Args:
        products: What is searched. It must not change.

    """

    def __init__(self, products: list[Product]) -> None:
        self._products = products
        self._where: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        lengths = []
        for number, one in enumerate(products):
            options = [value for values in one.options.values() for value in values]
            words = _words(" ".join((one.title, one.query, one.description, *one.features, *options)))
            lengths.append(len(words))
            for word, times in collections.Counter(words).items():
                self._where[word].append((number, times))
        mean = sum(lengths) / max(1, len(lengths))
        self._norms = [_K1 * (1 - _B + _B * length / max(1.0, mean)) for length in lengths]

    def search(self, words: str, most: int = 50) -> list[Product]:
        """The products that fit best, best first; none that has no word of the search."""
        scores: dict[int, float] = collections.defaultdict(float)
        total = len(self._products)
        for word in dict.fromkeys(_words(words)):
            hits = self._where.get(word, ())
            weight = math.log(1 + (total - len(hits) + 0.5) / (len(hits) + 0.5))
            for number, times in hits:
                scores[number] += weight * times / (times + self._norms[number])
        best = heapq.nsmallest(most, scores, key=lambda number: (-scores[number], number))
        return [self._products[number] for number in best]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
