"""The shop: the right purchase gets 1, pages over HTTP are those of this process, WebShop's files can be read."""

import dataclasses
import html.parser
import http.client
import json
import random
import urllib.error
import urllib.parse
import urllib.request

import pytest

from echo_shm.planning.environments import Shop
from echo_shm.planning.environments.shop_pages import Location
from echo_shm.planning.environments.shop_reward import alike, reward


def buy(env, asin, options):
    """Searches with the instruction, pages to a product, chooses, reads and buys it."""
    _, _, _, _, info = env.step(f"search[{env.goal.instruction}]")
    while f"click[{asin.lower()}]" not in info["admissible_commands"]:
        _, _, _, _, info = env.step("click[Next >]")
    for action in (asin, *options, "Features", "< Prev"):
        assert f"click[{action.lower()}]" in info["admissible_commands"]
        _, reward, _, _, info = env.step(f"click[{action}]")
        assert reward == 0
    return env.step("click[Buy Now]")


def test_the_product_that_is_wanted_gets_a_reward_of_1():
    """For every customer. With another option it gets less, and none gets more than 1."""
    env = Shop(products=60)
    for number, goal in enumerate(env.pages.goals):
        env.reset(options={"game": number})
        observation, worth, terminated, _, info = buy(env, goal.product.asin, goal.options)
        assert (worth, terminated, info["success"]) == (1.0, True, True)
        assert observation == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0000"
        name, values = next(iter(goal.product.options.items()))
        wrong = {name: next(value for value in values if value not in goal.options)}
        assert reward(goal.product, wrong, goal) == pytest.approx((2 + 1) / (2 + 2 + 1))
        for other in env.pages.goals[:8]:
            assert 0 <= reward(other.product, dict.fromkeys(other.product.options, ""), goal) <= 1


def test_the_parts_of_the_reward():
    """WebShop's formula: each wanted thing that is missing costs its part, and another type costs all."""
    goal = Shop(products=1, website_type="books").pages.goals[0]
    chosen = dict(zip(goal.product.options, goal.options, strict=True))
    dear = dataclasses.replace(goal.product, price=goal.price_limit + 1)
    plain = dataclasses.replace(
        goal.product, attributes=(), title=goal.product.query, description="", features=("nothing",)
    )
    other = dataclasses.replace(goal.product, title="zebra", query="zebra", product_category="zoo")
    assert reward(goal.product, chosen, goal) == 1
    assert reward(dear, chosen, goal) == pytest.approx(4 / 5)
    assert reward(plain, chosen, goal) == pytest.approx(3 / 5)
    assert reward(goal.product, {}, goal) == pytest.approx(3 / 5)
    assert reward(other, chosen, goal) == 0
    assert alike("navy blue", "blue navy")
    assert alike("long sleeve", "long sleeves")
    assert not alike("red", "green")
    assert not alike("", "red")


def test_observations_are_as_webshops():
    """The search page, the results and a product's page, with [SEP] between."""
    env = Shop(products=40, website_type="kitchen")
    observation, info = env.reset(seed=0)
    goal = env.goal
    assert observation == f"WebShop [SEP] Instruction: [SEP] {goal.instruction} [SEP] Search"
    assert info["available_actions"] == {"has_search_bar": True, "clickables": []}
    observation, *_, info = env.step(f"search[{goal.product.query}]")
    head = f"Instruction: [SEP] {goal.instruction} [SEP] Back to Search [SEP] Page 1 (Total results: "
    assert observation.startswith(head)
    assert info["available_actions"]["clickables"][0] == "back to search"
    asin = info["available_actions"]["clickables"][-1]
    observation, *_ = env.step(f"CLICK[{asin}]")
    assert observation == env.step("click[no such thing]")[0], "a wrong click changes nothing"
    observation, *_ = env.step(f"click[{asin}]")
    product = env.pages._products[asin.upper()]
    name, values = next(iter(product.options.items()))
    assert f" [SEP] < Prev [SEP] {name} [SEP] {' [SEP] '.join(values)} [SEP] " in observation
    assert observation.endswith(
        f"{product.title} [SEP] Price: {product.price_text} [SEP] Rating: {product.rating} [SEP] Description [SEP] "
        "Features [SEP] Reviews [SEP] Buy Now"
    )


def test_results_come_ten_a_page():
    """Fifty at most, the best first; each page has the next ones, and leads back."""
    env = Shop(products=200, website_type="kitchen")
    env.reset(seed=0)
    found = [product.asin.lower() for product in env.pages._engine.search("compact", 50)]
    assert len(found) == 50
    _, _, _, _, info = env.step("search[compact]")
    for page in range(5):
        links = info["available_actions"]["clickables"]
        arrows = [arrow for arrow, there in (("< prev", page > 0), ("next >", page < 4)) if there]
        assert links == ["back to search", *arrows, *found[10 * page : 10 * page + 10]]
        *_, info = env.step("click[Next >]")
    *_, info = env.step("click[< Prev]")
    assert info["available_actions"]["clickables"][3] == found[30]


def test_the_budget_and_the_department_choose_customers():
    """And a budget that nobody has is refused."""
    env = Shop(website_type="books", budget_limit=60.0)
    assert env.pages.goals
    assert all(goal.price_limit <= 60 and goal.product.category == "books" for goal in env.pages.goals)
    with pytest.raises(ValueError, match=r"budget_limit=1.0: no customer has so little"):
        Shop(budget_limit=1.0)


class Texts(html.parser.HTMLParser):
    """The texts of a page, and the links with each."""

    def __init__(self, page):
        super().__init__()
        self.found, self.links, self._href = [], {}, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        """A link begins."""
        if tag == "a":
            self._href = dict(attributes)["href"]

    def handle_endtag(self, tag):
        """A link ends."""
        if tag == "a":
            self._href = None

    def handle_data(self, data):
        """A text."""
        if data.strip():
            self.found.append(data)
            if self._href is not None:
                self.links[data.lower()] = self._href


def test_pages_over_http_are_those_of_this_process():
    """A random walk, page by page: as HTML, as JSON and as the environment's observation."""
    env, rng = Shop(products=60), random.Random(0)
    observation, info = env.reset(options={"game": 7})
    with env.serve() as server:
        assert server.url.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)

        def get(path, accept):
            connection.request("GET", path, headers={"Accept": accept})
            return connection.getresponse().read().decode()

        path, done = "/7", False
        for _ in range(40):
            page, told = Texts(get(path, "text/html")), json.loads(get(path, "application/json"))
            assert " [SEP] ".join(page.found) == told["observation"] == observation
            assert page.links == told["links"]
            assert list(told["links"]) == info["available_actions"]["clickables"]
            assert (told["done"], told["has_search_bar"]) == (done, info["available_actions"]["has_search_bar"])
            if done:
                break
            if told["has_search_bar"]:
                words = env.goal.instruction
                path = f"/7?{urllib.parse.urlencode({'kind': 'results', 'keywords': words})}"
                observation, worth, done, _, info = env.step(f"search[{words}]")
            else:
                link = rng.choice(list(told["links"]))
                path = told["links"][link]
                observation, worth, done, _, info = env.step(f"click[{link}]")
        connection.close()
        assert done, "the walk has bought something"
        assert told["reward"] == worth


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/x", "goal 'x': use /0 to /39"),
        ("/40", "goal '40': use /0 to /39"),
        ("/1?kind=item&asin=B0", "product 'B0': the shop does not sell it"),
        ("/1?kind=casino", "stands for no page"),
        ("/1?kind=item&options=[1]", "options must be a JSON object of strings"),
        ("/1?kind=item&options=" + "[" * 20000, "recursion"),
        ("/1?kind=results&keywords=a&page=-1", "stands for no page"),
    ],
)
def test_urls_that_lead_nowhere_say_so(path, message):
    """With a 404, and a text."""
    with Shop(products=40).serve() as server, pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(server.url + path, timeout=10)
    with caught.value as answer:
        assert answer.code == 404
        assert message in answer.read().decode()


def test_what_is_no_url_is_refused():
    """With a 400, and a text."""
    with Shop(products=1).serve() as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        connection.putrequest("GET", "http://[", skip_host=True)
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (400, b"'http://[' is no URL: Invalid IPv6 URL\n")
        connection.close()


def test_an_option_that_is_not_there_is_refused():
    """A page has the options of its product alone."""
    pages = Shop(products=1).pages
    with pytest.raises(ValueError, match=r"option 'smell'='rose': product .* does not have it"):
        pages.page(pages.goals[0], Location("item", asin=pages.goals[0].product.asin, options=(("smell", "rose"),)))
    with pytest.raises(ValueError, match="sub_page='Secrets': use one of Description"):
        pages.page(pages.goals[0], Location("sub_page", asin=pages.goals[0].product.asin, sub_page="Secrets"))


ITEM = {
    "asin": "B000000001",
    "name": "Copper Pot, Small",
    "category": "garden",
    "query": "Copper Pot ",
    "product_category": "Home \u203a Kitchen \u203a Pots",
    "pricing": "$10.00$1,020.50",
    "full_description": "A pot.",
    "small_description": ["Made of copper", "Easy clean"],
    "customization_options": {"Size": [{"value": " Small/S "}, {"value": "Large"}], "Color": None},
}
DETAILS = {"attributes": ["easy clean"], "instruction": "Find a copper pot.", "instruction_attributes": ["easy clean"]}


def write(folder, human=None, **changes):
    """WebShop's files with one product."""
    (folder / "items_shuffle_1000.json").write_text(json.dumps([{**ITEM, **changes}]))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps({ITEM["asin"]: DETAILS}))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps({ITEM["asin"]: human}))


def test_webshops_files_are_read(tmp_path):
    """A product, its options and its price; a synthetic instruction, or people's where there are any."""
    write(tmp_path)
    env = Shop(path=tmp_path)
    (goal,) = env.pages.goals
    assert goal.product.options == {"size": ("small | s", "large")}
    assert 10 <= goal.product.price <= 1020.5
    assert goal.product.price_text == "$10.0 to $1020.5"
    assert goal.instruction.startswith(f"Find a copper pot. with size: {goal.options[0]}")
    env.reset(seed=0)
    assert buy(env, goal.product.asin, goal.options)[1] == 1.0
    human = [
        {"instruction": "i want a pot.", "instruction_attributes": ["easy clean"], "instruction_options": ["large"]}
    ]
    write(tmp_path, human, pricing="")
    (goal,) = Shop(path=tmp_path).pages.goals
    assert goal.options == ("large",)
    assert goal.product.price == 100.0
    assert goal.instruction == f"i want a pot, and price lower than {goal.price_limit:.2f} dollars"


def test_files_that_are_not_webshops_are_refused(tmp_path):
    """With what is missing, and where it comes from."""
    with pytest.raises(FileNotFoundError, match=r"setup\.sh of https://github\.com/princeton-nlp/WebShop"):
        Shop(path=tmp_path)
    write(tmp_path, asin=3)
    with pytest.raises(ValueError, match="no product of WebShop where one was expected: TypeError"):
        Shop(path=tmp_path)
    write(tmp_path)
    with pytest.raises(ValueError, match="no instruction with attributes for website_type='fashion'"):
        Shop(path=tmp_path, website_type="fashion")
    (tmp_path / "items_ins_v2_1000.json").write_text("{")
    with pytest.raises(ValueError, match=r"items_ins_v2_1000\.json is not JSON"):
        Shop(path=tmp_path)
