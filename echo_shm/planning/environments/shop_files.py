"""Reads the files of WebShop (princeton-nlp/WebShop), for who has them."""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

from echo_shm.planning.environments.shop_catalogue import Goal, Product

#: The price of what has none, as WebShop has it.
_NO_PRICE = 100.0


def load_catalogue(path: str | os.PathLike[str], products: int, category: str) -> tuple[list[Product], list[Goal]]:
    """The products and goals of a folder with WebShop's files.

    It takes ``items_shuffle.json`` or ``items_shuffle_1000.json`` (products), the ``items_ins_v2`` file of the same
    size (attributes and synthetic instructions) and, if it is there, ``items_human_ins.json`` (instructions of people,
    which are then the goals). As in WebShop, a price range counts as a price drawn from it, and the price limit is
    drawn from the multiples of ten above the price; here both draws are seeded.

    Args:
        path: The folder.
        products: How many products are used at most: the first ones of the file.
        category: WebShop's ``category``; ``"all"``: every one.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: A file is not as WebShop's are, or nothing in it fits.

    """
    folder = Path(path)
    for items, details in (
        ("items_shuffle.json", "items_ins_v2.json"),
        ("items_shuffle_1000.json", "items_ins_v2_1000.json"),
    ):
        if (folder / items).is_file() and (folder / details).is_file():
            break
    else:
        raise FileNotFoundError(
            f"{folder} does not have items_shuffle.json and items_ins_v2.json, nor items_shuffle_1000.json and "
            "items_ins_v2_1000.json: setup.sh of https://github.com/princeton-nlp/WebShop downloads them into data/"
        )
    rng = random.Random(233)
    attributes = _read(folder / details)
    human = _read(folder / "items_human_ins.json") if (folder / "items_human_ins.json").is_file() else None
    found: dict[str, Product] = {}
    goals = []
    try:
        for item in _read(folder / items):
            asin = item["asin"]
            fits = category in ("all", item["category"]) and len(asin) <= 10 and asin != "nan" and asin not in found
            if len(found) == products or not fits:
                continue
            found[asin] = product = _product(rng, item, attributes.get(asin, {}))
            goals += _goals(rng, product, attributes.get(asin, {}), None if human is None else human.get(asin, []))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder} has no product of WebShop where one was expected: {type(error).__name__} {error}"
        ) from None
    if not goals:
        raise ValueError(f"{folder} has no instruction with attributes for website_type={category!r}: use 'all'")
    return list(found.values()), goals


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _product(rng: random.Random, item: dict[str, Any], details: dict[str, Any]) -> Product:
    prices = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", (item.get("pricing") or "").replace(",", ""))][:2]
    text = f"${prices[0]} to ${prices[1]}" if len(prices) == 2 else f"${prices[0] if prices else _NO_PRICE}"
    price = rng.uniform(*prices) if len(prices) == 2 else (prices or [_NO_PRICE])[0]
    options = {
        name.lower(): tuple(one["value"].strip().replace("/", " | ").lower() for one in contents)
        for name, contents in (item.get("customization_options") or {}).items()
        if contents
    }
    points = item.get("small_description") or []
    return Product(
        asin=item["asin"],
        title=item["name"],
        category=item["category"],
        query=item["query"].lower().strip(),
        product_category=item["product_category"],
        price=price,
        price_text=text,
        rating="N.A.",
        description=item.get("full_description") or "",
        features=tuple(points) if isinstance(points, list) else (points,),
        reviews=(),
        attributes=tuple(details.get("attributes", ())),
        options=options,
    )


def _goals(rng: random.Random, product: Product, details: dict[str, Any], human: list[Any] | None) -> list[Goal]:
    """The goals of a product: people's if there is a file of them, else the synthetic one."""
    wanted = human if human is not None else [details]
    goals = []
    for one in wanted:
        attributes = tuple(one.get("instruction_attributes") or ())
        words = one.get("instruction")
        if not attributes or not words:
            continue
        options = one.get("instruction_options") or ()
        chosen = tuple(options.values()) if isinstance(options, dict) else tuple(options)
        if human is None:  # a synthetic instruction names no option: one value of each is drawn, as WebShop lists all
            drawn = {name: rng.choice(values) for name, values in product.options.items()}
            chosen = tuple(drawn.values())
            if drawn:
                words = f"{words} with {', and '.join(f'{name}: {value}' for name, value in drawn.items())}"
        above = [10.0 * n for n in range(1, 100) if 10.0 * n > product.price][:4]
        limit = sorted(rng.sample(above, 2))[1] if len(above) >= 2 else 1e6
        said = f", and price lower than {limit:.2f} dollars" if limit < 1e6 else ""
        goals.append(Goal(product, words.strip(".") + said, attributes, chosen, limit))
    return goals
