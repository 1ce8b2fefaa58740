"""What a report's page says in sentences, held against the tables of the same page.

Written from the page alone: text is read as a reader would, numbers from the tables' cells. Returns
a line for each contradiction, so that a test can ask for none, and for one where it planted one.
"""

import math
import re
from html.parser import HTMLParser

STILL, CLEAR = 0.005, 0.01
PARTS = ("attention", "MLPs", "norms", "other blocks")
CLAUSE = re.compile(
    rf"({'|'.join(PARTS)}) (bring|spread|leave)s? (?:directions|them) "
    r"(?:([\d.]+) % closer|by ([\d.]+) %|([\d.]+)-fold|as they are)",
    re.IGNORECASE,
)
LAYERS = re.compile(
    r"(gathers|spreads|leaves) (?:directions|them)(?: as they are)? in "
    r"(every layer|layers? \d[\d–, ]*)"
)
ENDS = re.compile(r"mean cosine (−?\d+\.\d+) → (−?\d+\.\d+)")
FORBIDDEN = re.compile(r"(gather|spread)s? tokens|drives? tokens apart|pairs that come closer")


class PageReader(HTMLParser):
    """Sentences and tables of a page, by section and by model; cells may be left open."""

    def __init__(self, page):
        super().__init__()
        self.section = self.model = ""
        self.open, self.text = [], ""
        self.tables, self.lines, self.all_text = [], [], []
        self.table = self.row = self.cell = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("td", "th", "tr") or tag == "table":
            self._end_cell()
        if tag == "section":
            self.section = given["id"]
        elif tag == "article":
            self.model = given.get("data-model", "")
        elif tag == "table":
            self.table = {"name": given.get("data-table", given.get("class")), "rows": [],
                          "place": (self.section, self.model)}  # fmt: skip
            self.tables.append(self.table)
        elif tag == "tr":
            self.row = []
            self.table["rows"].append(self.row)
        elif tag in ("td", "th"):
            self.cell = (given, [])
        elif tag in ("p", "li", "b", "h4", "script", "style", "figcaption"):
            self.open.append((tag, given, []))

    def handle_endtag(self, tag):
        if tag in ("td", "th", "tr", "tbody", "thead", "table"):
            self._end_cell()
        if self.open and self.open[-1][0] == tag:
            _, given, parts = self.open.pop()
            text = " ".join("".join(parts).split())
            if tag not in ("script", "style"):
                kind = given.get("class") or given.get("data-answer") or tag
                self.lines.append((self.section, self.model, kind, text))
            if self.open:
                self.open[-1][2].append(text)

    def _end_cell(self):
        if self.cell is not None:
            given, parts = self.cell
            text = " ".join("".join(parts).split())
            self.row.append(float(given["data-v"]) if "data-v" in given else text)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell[1].append(data)
        if self.open:
            self.open[-1][2].append(data)
        if not self.open or self.open[-1][0] not in ("script", "style"):
            self.all_text.append(data)

    def rows(self, name, model):
        """Return the tables of a name, each as rows of a dict."""
        named = [t for t in self.tables if t["name"] == name and t["place"][1] == model]
        return [
            [dict(zip(table["rows"][0], row, strict=True)) for row in table["rows"][1:]]
            for table in named
        ]

    def said(self, section, model, kind):
        return [x[3] for x in self.lines if x[:3] == (section, model, kind)]


def contradictions(page):
    """Return what the sentences of a page say against its tables."""
    read = PageReader(page)
    models = sorted({x[1] for x in read.lines if x[0] == "story"})
    wrong = [f"forbidden words: {x!r}" for x in FORBIDDEN.findall(" ".join(read.all_text))]
    for model in models:
        falls = [_by_part(rows) for rows in read.rows("waterfall", model)]
        if not falls:
            continue
        headlines = [x[3] for x in read.lines if x[1] == model and x[2].startswith("headline")]
        words = " ".join(read.said("words", model, "li"))
        wrong += [] if len(headlines) == len(falls) else ["a stack without a headline"]
        for text, fall in zip(headlines, falls, strict=False):
            wrong += headline_contradictions(text, fall)
        wrong += layer_contradictions(" ".join(read.said("story", model, "lead")), falls[-1])
        for text, fall in zip(read.said("words", model, "li"), falls, strict=False):
            wrong += headline_contradictions(text, fall) + layer_contradictions(text, fall)
        wrong += _cosines(read, model, falls, headlines)
        wrong += _totals(read, model, falls[-1]) + _heads(read, model, words)
        wrong += _predicted(read, model, words)
    return wrong


def _by_part(rows):
    """Return the changes of a waterfall: part -> layer -> change; `net` is its last row."""
    parts = {}
    for row in rows:
        layer = row["layer"].split()[-1]  # of several stacks: its number
        here = parts.setdefault(row["part"], {})
        here[layer] = here.get(layer, 0.0) + row["ΔS"]  # a layer may have two norms
    return parts


def headline_contradictions(text, parts):
    """Hold a headline against changes, part -> layer -> change."""
    totals = {p: sum(v.values()) for p, v in parts.items() if p != "net"}
    said = {
        part if part in parts else part.lower(): claim
        for part, *claim in CLAUSE.findall(text.partition(":")[0])
    }
    wrong = [line for p, v in totals.items() for line in _part(p, v, said.get(p))]
    if "net" in parts and abs(sum(totals.values()) - sum(parts["net"].values())) > 1e-4:
        wrong.append(f"parts do not add up: {totals}, {parts['net']}")
    return wrong + _ends(text, sum(totals.values()))


def _part(part, total, claim):
    verb, closer, by, fold = claim or ("leave", "", "", "")
    if (verb == "bring") != (total < -STILL) or (verb == "spread") != (total > STILL):
        return [f"{part}: said {verb}, total {total:+.4f}"]
    change, room = (math.exp(total), 0.06) if fold else (abs(math.expm1(total)), 0.006)
    size = float(fold) if fold else float(closer or by or 0) / 100
    if verb != "leave" and abs(change - size) > room:
        return [f"{part}: said {size}, is {change:.4f}"]
    return []


def _ends(text, net):
    ends = ENDS.search(text)
    if not ends:
        return [f"no cosines: {text}"]
    first, last = (float(end.replace("−", "-")) for end in ends.groups())
    room = 0.011 / max(1e-9, 1 - max(first, last))  # of two digits
    if last < 1 and abs(math.log((1 - last) / (1 - first)) - net) > room:
        return [f"cosines {first} to {last} are not {net:+.4f}"]
    if (net > STILL and last > first) or (net < -STILL and last < first):
        return [f"cosines go the other way: {text}"]
    return []


def layer_contradictions(text, parts):
    """Hold a sentence on single layers against attention's changes."""
    wrong, seen = [], 0
    for verb, where in LAYERS.findall(text):
        numbers = parts["attention"] if where == "every layer" else _numbers(where)
        for layer in numbers:
            change = parts["attention"][str(layer)]
            fits = {"gathers": change < -STILL, "spreads": change > STILL,
                    "leaves": abs(change) <= STILL}[verb]  # fmt: skip
            seen += 1
            if not fits:
                wrong.append(f"layer {layer}: said {verb}, change {change:+.4f}")
    return wrong if seen == len(parts["attention"]) else [*wrong, f"layers left out: {text}"]


def _numbers(text):
    for piece in re.findall(r"\d+(?:–\d+)?", text):
        first, _, last = piece.partition("–")
        yield from range(int(first), int(last or first) + 1)


def _cosines(read, model, falls, headlines):
    """The chart of C starts where the headline of the first stack says it does."""
    rows = read.rows("depth-directions-cosine", model)[0]
    said = float(ENDS.search(headlines[0]).group(1).replace("−", "-"))
    return [] if abs(rows[0]["measured"] - said) <= 0.0051 else [f"C {said}, chart {rows[0]}"]


def _totals(read, model, fall):
    """The bars of the first verdict are the totals of the waterfall, and its answer the largest."""
    shown = {t["place"][1]: t["rows"] for t in read.tables if t["name"] == "totals"}[model]
    totals = {p: sum(v.values()) for p, v in fall.items()}
    wrong = [f"verdict: {row[0]} {row[-1]}, waterfall {totals[row[0]]}"
             for row in shown if abs(row[-1] - totals[row[0]]) > 1e-4]  # fmt: skip
    most = max((p for p in totals if p != "net"), key=lambda p: abs(totals[p]))
    answer = read.said("story", model, "b")[0]
    return wrong if answer.lower().startswith(most.lower()) else [*wrong, f"most: {answer}, {most}"]


def _heads(read, model, words):
    (table,) = read.rows("heads", model)
    shares = [row["measured ΔS"] for row in table]
    wrong = [
        f"head {row['head']}: {row['directions']}, {row['measured ΔS']}"
        for row in table
        if row["directions"] != _word(row["measured ΔS"])
    ]
    gather, n, spread = (
        int(text)
        for text in re.search(
            r"Measured, (\d+) of (\d+) heads gathers? directions and (\d+) spreads? them", words
        ).groups()
    )
    if (gather, spread, n) != (
        sum(s < -CLEAR for s in shares), sum(s > CLEAR for s in shares), len(shares),
    ):  # fmt: skip
        wrong.append(f"heads: said {gather}, {spread} of {n}")
    return wrong


def _word(share):
    return "gathers" if share < -CLEAR else "spreads" if share > CLEAR else "neither"


def _predicted(read, model, words):
    found = re.search(r"predicted \((.+?)\) with correlation (-?[\d.]+)", words)
    if found is None:
        return []
    closure, said = found.groups()
    rows = {row["against measured"]: row for row in read.rows("agreement", model)[0]}
    value = rows[f"closure “{closure}”"]["heads, Pearson"]
    answer = [b for b in read.said("story", model, "b") if "r = " in b]
    wrong = [] if abs(value - float(said)) <= 0.0051 else [f"r: said {said}, table {value}"]
    if not answer or abs(float(answer[0].partition("r = ")[2]) - value) > 0.0051:
        wrong.append(f"verdict {answer}, table {value}")
    return wrong
