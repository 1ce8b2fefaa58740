"""The page of a flow in a real browser: it plays, stops where it is asked to, and fits."""

from flow_runs import gathering, on_sphere, trajectory
from orbitlens.draw.film_file import write_film
from orbitlens.flows.film import flow_film
from orbitlens.flows.picture import flow_picture


def test_a_flow_plays_to_its_end_and_follows_the_slider(visit, generator, tmp_path):
    picture = flow_picture(trajectory(gathering(generator)), title="globe", system=on_sphere())
    write_film(flow_film(picture), tmp_path / "flow.html")
    one = visit(tmp_path / "flow.html", width=390, scheme="dark")
    one.wait("document.querySelector('.player button').textContent === 'Replay'")
    shown = "document.getElementById('plane').panel.layers.at(-1).x"
    last = picture.plane.positions[-1, :, 0].float().tolist()
    assert one.page.evaluate(shown) == last
    one.page.locator(".player input").fill("2")
    assert one.page.evaluate(shown) == picture.plane.positions[2, :, 0].float().tolist()
    assert one.page.locator(".player output").inner_text().startswith("t = 0.5")
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert one.complaints == []
