"""Draw docs/img/reach.png: loss by position, measured and predicted, one panel an encoding.

    python docs/make_reach_picture.py

From the stored run of benchmarks/reach.py; the models of the longer context that judge.
"""

from pathlib import Path

from generated.reach import RATIOS, Row, stored

from orbitlens.draw.figure import BLUE, GREY, ORANGE, Curve, Figure, Panel, Points
from orbitlens.draw.figure_png import png_of

OUT = Path(__file__).parent / "img" / "reach.png"
TITLES = {
    "rotary-10": "rotary, base 10",
    "rotary-300": "rotary, base 300",
    "rotary-10000": "rotary, base 10,000",
    "alibi": "ALiBi",
    "learned": "learned (rows beyond: untrained)",
    "none": "none",
}


def panel(kind: str, rows: list[Row]) -> Panel:
    """Return one encoding: the loss of each seed by position, and what was predicted of it."""
    layers: list[Curve | Points] = []
    for number, row in enumerate(rows):
        trained, test = row["context"], row["test"]
        inside = [
            loss
            for end, loss in zip(test["positions"], test["losses"], strict=True)
            if 3 * trained / 4 < end <= trained
        ]
        level = sum(inside) / len(inside)
        lengths = [ratio * trained for ratio in RATIOS]
        layers.append(
            Curve(
                x=test["positions"],
                y=test["losses"],
                colour=BLUE,
                opacity=0.7,
                width=1.4,
                label="measured" if number == 0 else "",
            )
        )
        layers.append(
            Points(
                x=lengths,
                y=[level + said for said in row["predicted"]["stand-in"]],
                colour=ORANGE,
                symbol="diamond",
                label="predicted from short text" if number == 0 else "",
            )
        )
    layers.append(
        Curve(x=[rows[0]["context"]] * 2, y=[1.8, 4.1], colour=GREY, dashed=True, width=1.2)
    )
    return Panel(
        layers=layers,
        title=TITLES[kind],
        x_label="position in the context",
        y_label="loss, nats a character",
        y_range=(1.7, 4.2),
        legend=kind == "rotary-10",
    )


def main() -> None:
    """Draw the picture."""
    rows = [row for row in stored() if row["context"] == 64]
    panels = [
        panel(kind, some)
        for kind in TITLES
        if (some := [row for row in rows if row["kind"] == kind])
    ]
    figure = Figure(
        name="reach",
        title="Loss by position, up to four times the trained context of 64 characters",
        caption="One line and one set of marks a seed; dashed: the trained context",
        panels=panels,
        n_columns=3,
        height=2.7,
    )
    OUT.write_bytes(png_of(figure))


if __name__ == "__main__":
    main()
