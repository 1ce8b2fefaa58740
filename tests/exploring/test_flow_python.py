"""Copy as Python: what it prints is what the page shows."""

import contextlib
import io

import pytest

STATES = (
    "",
    "#system=mixed&a=0.4&norm=free&until=4&beta=1&n=24&v=-0.7",
    "#system=random&heads=4&enc=rotary&base=50&mask=causal&n=20&until=6",
    "#system=hd&d=2&enc=reinjected&norm=free&until=3&beta=1&n=12&moved=3:0.5,-0.25,0",
    "#system=spiral&enc=alibi&heads=2&n=16&until=5&moved=1:0.3,0.1,-0.4",
    "#system=head&layer=1&head=2&until=6",
    "#system=head&layer=2&head=0&heads=all&norm=pre-ln&until=3&beta=2&base=500&n=30",
    "#system=head&layer=0&head=3&norm=free&mask=full&enc=none&v=-0.5&until=1&moved=4:0.2,0.1,0",
)


@pytest.mark.parametrize("after", STATES)
def test_the_python_of_a_state_gives_its_numbers(visit, explorer_page, after):
    opened = visit(explorer_page, after=after)
    code, shown = opened.page.evaluate("[rooms.flow.python(), rooms.flow.ending()]")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<copied>", "exec"), {})
    lines = dict(line.rsplit(" ", 1) for line in printed.getvalue().splitlines()[-2:])
    assert float(lines["C"]) == pytest.approx(shown["cosine"], abs=2e-4)
    assert int(lines["clusters"]) == shown["clusters"]
