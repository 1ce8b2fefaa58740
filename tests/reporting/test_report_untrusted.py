"""`report --data` of a stranger's file: refused with our error, or shown as text; nothing runs."""

import contextlib
import copy
import json
import re
from html.parser import HTMLParser

import pytest

from json_places import changed, places, value_at
from orbitlens.draw.page import lifted_styles, whole_page
from orbitlens.errors import ResultError
from orbitlens.reporting.report import Report

ATTACK = "\"><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
IGNORED = ("words", "orbitlens")  # written for readers of the file, never read


class Elements(HTMLParser):
    """What a page is made of, as a browser would see it."""

    def __init__(self, page):
        super().__init__()
        self.scripts, self.found = 0, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.scripts += tag == "script"
        if tag in ("img", "iframe", "object", "embed") or any(
            name.startswith("on") for name, _ in attributes
        ):
            self.found.append((tag, attributes))


def is_inert(page):
    elements = Elements(page)
    return elements.scripts == 3 and not elements.found  # two of data, one of ours


@pytest.fixture(scope="module")
def small(report_data):
    """Return the data of one model with one layer, and three of each other kind of row."""
    data = json.loads(json.dumps(report_data.to_json()))
    data["models"] = data["models"][:1]
    model = cut(data["models"][0])
    model |= {"shuffled": None, "bands": {}, "clauses": data["models"][0]["clauses"]}
    model["trace"]["twin"] = None
    return {**data, "models": [model]}


def cut(data, name=""):
    """Return data with all lists short."""
    if isinstance(data, dict):
        return {key: cut(item, key) for key, item in data.items()}
    if isinstance(data, list):
        return [cut(item) for item in data[: 1 if name == "layers" else 3]]
    return data


def kinds_of_places(data, wanted):
    """Return one place of each kind: those that differ in more than their numbers in a list."""
    kinds = {}
    for place in places(data):
        value = value_at(data, place)
        if isinstance(value, wanted) and not isinstance(value, bool) and place[0] not in IGNORED:
            kinds.setdefault(tuple("*" if isinstance(k, int) else k for k in place), place)
    return list(kinds.values())


def test_a_number_that_is_markup_is_refused_or_never_read(small):
    whole = Report.from_json(small).html
    asked = kinds_of_places(small, (int, float))
    assert len(asked) > 200
    read = []
    for place in asked:
        try:
            page = Report.from_json(changed(small, place, ATTACK)).html
        except ResultError:
            read.append(place)
            continue
        assert page == whole, place  # a field that is written for readers and derived again
    assert len(read) > 0.8 * len(asked)


@pytest.fixture(scope="module")
def accepted(small):
    """Return the places of texts at which markup is not refused, each with the page it makes."""
    pages = {}
    for place in kinds_of_places(small, str):
        with contextlib.suppress(ResultError):
            pages[place] = Report.from_json(changed(small, place, ATTACK)).html
    return pages


def test_a_text_that_is_markup_is_refused_or_shown_as_text(accepted):
    assert len(accepted) > 30
    assert [place for place, page in accepted.items() if not is_inert(page)] == []
    assert sum("&lt;script&gt;document.title" in page for page in accepted.values()) > 10


def test_markup_in_a_page_would_be_noticed(small):
    page = Report.from_json(small).html
    assert is_inert(page)
    assert not is_inert(page.replace("<h1>", f"<h1>{ATTACK}"))


def all_hostile(small, accepted):
    """Return the data with every text that is not refused replaced at once, names included."""
    data = copy.deepcopy(small)
    for place in accepted:
        data = changed(data, place, ATTACK)
    model = data["models"][0]
    model["missing"][ATTACK] = data["versions"][ATTACK] = ATTACK
    model["scan"]["model"]["sha256"][ATTACK] = ATTACK
    model["orbits"]["tokens"] = [ATTACK] * len(model["orbits"]["tokens"])
    for layer in model["trace"]["layers"]:
        layer["metrics"][ATTACK] = 1.0
    return data


def test_nothing_of_a_hostile_file_runs_in_a_browser(visit, small, accepted, tmp_path):
    file = Report.from_json(all_hostile(small, accepted)).save(tmp_path / "hostile.html")
    assert ATTACK not in file.read_text(encoding="utf-8").partition("<title>")[2][:1000]
    one = visit(file)
    one.drawn_whole()
    for details in one.page.locator("summary").all():
        if details.is_visible():
            details.click()
    one.page.locator(".orbits input[type=checkbox]").check()  # tokens as text
    for reading in one.page.locator(".heads input").all():
        reading.check()
    one.page.locator(".head").nth(2).click()
    one.page.locator("table[data-table=heads] thead button").nth(3).click()
    assert one.page.title() != "run"
    assert one.page.locator("img, iframe").count() == 0
    assert one.complaints == []
    assert one.requests == [file.as_uri()]


def test_the_policy_forbids_what_escaping_let_through(visit, small, tmp_path):
    """The second wall: were a text not escaped somewhere, its script would still not run."""
    page = Report.from_json(small).html.replace("<h1>", f'<h1 style="color:red">{ATTACK}', 1)
    file = tmp_path / "let-through.html"
    file.write_text(page, encoding="utf-8")
    one = visit(file)
    assert one.page.title() != "run"
    assert one.page.evaluate("getComputedStyle(document.querySelector('h1')).color") != (
        "rgb(255, 0, 0)"
    )
    assert sum("Content Security Policy" in text for text in one.complaints) >= 3


def test_no_page_allows_inline_code_by_its_policy(small):
    page = Report.from_json(small).html
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "unsafe" not in policy
    assert re.search(r"script-src 'sha256-[\w+/=]{44}'; style-src 'sha256-[\w+/=]{44}'", policy)
    assert " style=" not in page.partition("<script")[0].partition("</style>")[2]


def test_a_style_that_could_end_its_rule_is_refused():
    with pytest.raises(ValueError, match="end its rule"):
        lifted_styles('<i style="--v:1}body{display:none"></i>')
    page = whole_page("t", '<i style="--v:1">a &lt; b style=&quot;</i>', data={}, styles=[],
                      script="draw/assets/svg.js")  # fmt: skip
    assert '<i data-s="0">' in page and '[data-s="0"]{--v:1}' in page


# --- parts that do not fit each other ---

MISFITS = {
    "no model": lambda data: data["models"].clear(),
    "no layer": lambda data: data["models"][0]["scan"]["layers"].clear(),
    "no traced layer": lambda data: data["models"][0]["trace"]["layers"].clear(),
    "a closure": lambda data: data["models"][0]["trace"]["direction_agreement"][
        "per_closure"
    ].clear(),
    "a cell": lambda data: data["models"][0]["audit"]["cells"].clear(),
    "a depth": lambda data: data["models"][0]["orbits"]["shared"].pop(),
    "a token": lambda data: data["models"][0]["orbits"]["tokens"].pop(),
    "a moment": lambda data: data["models"][0]["flows"][0]["times"].pop(),
    "an offset": lambda data: data["models"][0]["spectra"][0]["offsets"].pop(),
    "weights": lambda data: data["models"][0]["weights_of"].clear(),
    "no number": lambda data: data["models"][0]["orbits"]["cosine"].__setitem__(0, "NaN"),
    "a layer's number": lambda data: data["models"][0]["scan"]["layers"][0].update(layer=-1),
    "a clause": lambda data: data["models"][0]["clauses"].clear(),
    "clauses": lambda data: data["models"][0].update(scan=[1]),
}


@pytest.mark.parametrize("what", MISFITS)
def test_parts_that_do_not_fit_each_other_are_refused(small, what):
    data = copy.deepcopy(small)
    MISFITS[what](data)
    with pytest.raises(ResultError, match=r"damaged.*Make it anew"):
        Report.from_json(data)
