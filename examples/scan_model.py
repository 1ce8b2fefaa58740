"""List the heads of a model whose maps are most opposed and most aligned, from its weights alone.

    python examples/scan_model.py [MODEL] [COUNT]

MODEL is a folder, a .gguf file, a hub name or a model of the zoo (the default).
"""

import sys

import orbitlens as ol


def main(name="orbit-nano-rotary", count="5"):
    scan = ol.scan(name)
    print(scan.summary())
    heads = scan.to_pandas()
    columns = ["stack", "layer", "head", "orientation", "index", "alignment_sigmas"]
    for title, extreme in (("opposed", heads.nsmallest), ("aligned", heads.nlargest)):
        print(f"\nheads with the most {title} maps")
        print(extreme(int(count), "index")[columns].round(3).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:3])
