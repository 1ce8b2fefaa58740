"""List the heads of a model that gather and spread most, from its weights alone.

    python examples/scan_model.py [MODEL] [COUNT]

MODEL is a folder, a .gguf file, a hub name or a model of the zoo (the default).
"""

import sys

import orbitlens as ol


def main(name="orbit-nano-rotary", count="5"):
    scan = ol.scan(name)
    print(scan.summary())
    heads = scan.to_pandas()
    columns = ["stack", "layer", "head", "tendency", "index", "alignment_sigmas"]
    for title, extreme in (("gather", heads.nsmallest), ("spread", heads.nlargest)):
        print(f"\nheads that {title} most")
        print(extreme(int(count), "index")[columns].round(3).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:3])
