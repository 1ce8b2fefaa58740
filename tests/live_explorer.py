"""A server of a model, and its page open in a browser: for tests of the explorer's rooms."""

from orbitlens.exploring.answers import Pace
from orbitlens.exploring.api import explore_data
from orbitlens.exploring.page_file import page_html
from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.server import ExplorerServer
from orbitlens.running.model import load

WORDS = "To be, or not"
# Strings that a model may hold, and that a page must never obey.
HOSTILE = "</script><img src=x onerror=\"document.title='run'\">`${alert(1)}`{{1+1}}'&amp;\u202e"
PIECES = (
    *(
        "<",
        ">",
        "</script>",
        "<!--",
        "-->",
        "]]>",
        "'",
        '"',
        "`",
        "${alert(1)}",
        "\\",
        "\n",
        "\x00",
    ),
    *("javascript:", "<svg onload=alert(1)>", "&lt;", "\u2028", "\u202e", "😀", "ש"),
)
MODEL_READY = "rooms.model.reading && rooms.model.attention"
ORDER_READY = "rooms.order.reading && rooms.order.swaps && rooms.order.usual"
PAGES = {}  # made once: what a model's page begins with


class Live:
    """A server of one model, and a page of it that is open."""

    def __init__(self, browser, model, text=WORDS, **context):
        if (model, text) not in PAGES:
            opened = load(model)
            page = page_html(explore_data(opened, text, live=True), live=True)
            PAGES[model, text] = opened, page
        self.model, page = PAGES[model, text]
        self.server = ExplorerServer(explored_of(self.model), page).start()
        self.server.pace = Pace(call=0.0, token=0.0)
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | context
        )
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text))

    def go(self, after):
        self.page.goto("about:blank")
        self.page.goto(self.server.address + after)
        return self

    def wait(self, condition, seconds=60):
        for _ in range(20 * seconds):
            if self.page.evaluate(f"Boolean({condition})"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came true: {condition}; {self.complaints}")

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def close(self):
        self.context.close()
        self.server.close()
