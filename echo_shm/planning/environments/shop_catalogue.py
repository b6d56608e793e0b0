"""What a shop sells and what its customers want: generated from a number."""

import dataclasses
import random

#: The departments of a generated shop: kinds of products, and what they can be.
_DEPARTMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "electronics": (
        ("headphones", "keyboard", "speaker", "charger", "webcam", "monitor stand", "power bank", "microphone"),
        ("wireless", "noise cancelling", "fast charging", "water resistant", "foldable", "backlit", "long lasting"),
        {"color": ("black", "white", "navy blue", "silver", "red"), "style": ("basic", "standard", "professional")},
    ),
    "clothing": (
        ("jacket", "sweater", "shirt", "trousers", "scarf", "running shoes", "raincoat", "socks"),
        ("machine washable", "slim fit", "waterproof", "long sleeve", "quick drying", "hand made", "non slip"),
        {"color": ("black", "green", "burgundy", "grey", "yellow"), "size": ("small", "medium", "large", "x-large")},
    ),
    "books": (
        ("novel", "cookbook", "atlas", "dictionary", "travel guide", "poetry collection", "biography"),
        ("illustrated", "large print", "award winning", "signed", "abridged", "annotated"),
        {"format": ("paperback", "hardcover", "audio"), "language": ("english", "french", "spanish")},
    ),
    "kitchen": (
        ("kettle", "frying pan", "knife set", "blender", "teapot", "baking tray", "cutting board", "lunch box"),
        ("stainless steel", "dishwasher safe", "non stick", "heat resistant", "easy clean", "bpa free", "compact"),
        {"color": ("black", "copper", "white", "mint green"), "size": ("small", "medium", "large")},
    ),
}

DEPARTMENTS = tuple(_DEPARTMENTS)

#: What WebShop has between a product's categories.
ARROW = "\u203a"

_BRANDS = ("Alder", "Borealis", "Cinder", "Dovetail", "Ember", "Fjord", "Garnet", "Harbour", "Isobar", "Juniper")
_CODE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclasses.dataclass(frozen=True)
class Product:
    """What is sold. The fields are those of WebShop's products that its pages and its reward use.

    Attributes:
        asin: Its code: ten letters and digits.
        title: What the results and its page call it.
        category: Its department.
        query: The search under which it was found; in a generated shop, its kind.
        product_category: The categories that it is in, parted by :data:`ARROW`.
        price: Dollars: what the reward compares.
        price_text: What its pages say: ``"$12.5"``, or a range.
        rating: What its page says.
        description: A text.
        features: Texts.
        reviews: Texts.
        attributes: What it is, as an instruction asks for it; no page lists them.
        options: For each option, the values to choose from.

    """

    asin: str
    title: str
    category: str
    query: str
    product_category: str
    price: float
    price_text: str
    rating: str
    description: str
    features: tuple[str, ...]
    reviews: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a customer wants.

    Attributes:
        product: The product that the instruction was made from.
        instruction: What the customer says.
        attributes: What it must be.
        options: Values that must be chosen.
        price_limit: Dollars: it must not cost more.

    """

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float


def make_catalogue(seed: int, products: int, department: str) -> tuple[list[Product], list[Goal]]:
    """Products, and one goal for each. The same arguments give the same.

    Raises:
        ValueError: There is no such department.

    """
    if department != "all" and department not in _DEPARTMENTS:
        raise ValueError(f"website_type={department!r}: use 'all' or one of {', '.join(_DEPARTMENTS)}")
    rng = random.Random(seed)
    made: dict[str, Product] = {}
    while len(made) < products:
        product = _product(rng, rng.choice(DEPARTMENTS) if department == "all" else department)
        made.setdefault(product.asin, product)
    return list(made.values()), [_goal(rng, product) for product in made.values()]


def _product(rng: random.Random, department: str) -> Product:
    kinds, traits, choices = _DEPARTMENTS[department]
    kind, brand = rng.choice(kinds), rng.choice(_BRANDS)
    attributes = tuple(rng.sample(traits, 3))
    options = {
        name: tuple(sorted(rng.sample(values, rng.randint(2, len(values))), key=values.index))
        for name, values in choices.items()
    }
    price = rng.randint(400, 15000) / 100
    # One attribute is in the title, one in the features, one in the description: pages must be read.
    return Product(
        asin="B0" + "".join(rng.choices(_CODE, k=8)),
        title=f"{brand} {attributes[0].title()} {kind.title()}",
        category=department,
        query=kind,
        product_category=f"{department} {ARROW} {kind}",
        price=price,
        price_text=f"${price}",
        rating=f"{rng.randint(20, 50) / 10}",
        description=f"This {kind} by {brand} is {attributes[2]}.",
        features=(f"It is {attributes[1]}", f"Made by {brand}", f"Comes in {len(options)} options"),
        reviews=(rng.choice(("Does what it says.", "As expected.", "I would buy it again.", "It broke at once.")),),
        attributes=attributes,
        options=options,
    )


def _goal(rng: random.Random, product: Product) -> Goal:
    """A goal that this product meets. The price limit is a multiple of ten, up to forty above, as WebShop draws it."""
    attributes = tuple(rng.sample(product.attributes, 2))
    chosen = {name: rng.choice(values) for name, values in product.options.items()}
    limit = float(10 * (int(product.price) // 10 + rng.randint(2, 4)))
    wanted = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
    words = f"i am looking for a {', '.join(attributes)} {product.query} with {wanted}"
    instruction = f"{words}, and price lower than {limit:.2f} dollars"
    return Goal(product, instruction, attributes, tuple(chosen.values()), limit)
