"""The integrator inside the page against the library's, in a real browser."""

import math

import torch

from page_systems import SAVED, drawn, for_the_page, reference

N_SYSTEMS = 200
RUN = """([systems, saved]) => systems.map(({ system, tokens, n, until, closed }) => {
  const run = rooms.flow.follow(system, tokens, n, { until, rtol: 1e-9, saved, closed });
  run.advance(1e9);
  return { frames: run.frames.map(x => [...x]), scale: run.logScale, status: run.status };
})"""


def gap(run, tokens, log_scale):
    """Return the largest difference, in units of the largest coordinate of the moment."""
    assert run["status"] == "done" and len(run["frames"]) == SAVED
    worst = 0.0
    for frame, scale, x, own in zip(
        run["frames"], run["scale"], tokens, log_scale.tolist(), strict=True
    ):
        found = torch.tensor(frame, dtype=torch.float64).reshape(x.shape) * math.exp(scale - own)
        worst = max(worst, ((found - x).abs().max() / x.abs().max()).item())
    return worst


def test_200_random_systems_agree_to_a_millionth(visit, explorer_page):
    opened = visit(explorer_page)
    systems = [drawn(seed) for seed in range(N_SYSTEMS)]
    runs = opened.page.evaluate(RUN, [[for_the_page(*one) for one in systems], SAVED])
    gaps = [gap(run, *reference(*one)) for run, one in zip(runs, systems, strict=True)]
    assert max(gaps) < 1e-6
    assert max(one[2] for one in systems) == 10.0  # some of them ran far beyond the raw chart
    assert sum(one[0].geometry.on_sphere for one in systems) > 20


def test_a_head_followed_in_its_own_dimensions_moves_as_in_the_stream(visit, explorer_page):
    opened = visit(explorer_page)
    wide = [one for one in (drawn(seed) for seed in range(200, 260)) if not one[0].reinjected][:20]
    both = [{**for_the_page(*one), "closed": closed} for one in wide for closed in (True, False)]
    runs = opened.page.evaluate(RUN, [both, SAVED])
    for closed, plain in zip(runs[::2], runs[1::2], strict=True):
        a, b = (torch.tensor(run["frames"][-1], dtype=torch.float64) for run in (closed, plain))
        assert ((a - b).abs().max() / b.abs().max()).item() < 1e-6


def test_a_wrong_weight_would_be_noticed(visit, explorer_page):
    """The negative control: the same comparison with one weight changed by a thousandth."""
    opened = visit(explorer_page)
    one = drawn(3)
    page = for_the_page(*one)
    page["system"]["heads"][0]["wo"][0] += 1e-3
    (run,) = opened.page.evaluate(RUN, [[page], SAVED])
    assert gap(run, *reference(*one)) > 1e-6


def test_work_stops_within_a_step_and_goes_on_as_if_it_had_not(visit, explorer_page):
    opened = visit(explorer_page)
    code = """({ system, tokens, n, until }) => {
      const whole = rooms.flow.follow(system, tokens, n, { until, saved: 5 });
      whole.advance(1e9);
      const cut = rooms.flow.follow(system, tokens, n, { until, saved: 5 });
      let calls = 1;
      while (!cut.advance(-1)) { calls += 1; }
      return { calls, steps: cut.steps, whole: [...whole.frames[4]], cut: [...cut.frames[4]] };
    }"""
    found = opened.page.evaluate(code, for_the_page(*drawn(3)))
    assert found["cut"] == found["whole"] and found["calls"] > 6 * found["steps"]
