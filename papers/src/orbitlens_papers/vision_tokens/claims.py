"""The claims of arXiv 2212.11115 as statements with thresholds.

Of the paper the abstract was read. What MoTo and TokenProp compute is a reconstruction
(`orbit/moto.py`), so that no result here can be more than one about that reconstruction: claim
6a, which needs the paper's own, keeps the verdict from being "reproduced".
"""

from orbitlens_papers.claim import Claim, Kind, Protocol, Side

PAPER = "arXiv 2212.11115"
MODEL = "two layers, width 32, 750 steps"
ACCURACY = f"accuracy on held-out digits; {MODEL}"
SHUFFLED = "both designs, trained on shuffled labels"
WHY = "more accurate: the whole interval above zero"

IMAGES = "t10k-images-idx3-ubyte.gz"
LABELS = "t10k-labels-idx1-ubyte.gz"
INSTEAD = "scikit-learn's 1,797 digits of 8 x 8 pixels, which are inside the package"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="MoTo, as reconstructed, commutes with permutations of tokens.",
        source="ours: a property of the reconstruction, not of the paper",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.THEORY,
        measured="largest relative difference between MoTo of permuted tokens and permuted MoTo, "
        "all maps drawn, both forms, float64",
        side=Side.BELOW,
        threshold=1e-12,
        why="rounding in float64",
        core=False,
        control="a layout drawn once for each place",
    ),
    Claim(
        key="1b",
        text="It lets tokens know of each other before any attention.",
        source=f"{PAPER}, abstract: inter-token modelling through normalisation",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.THEORY,
        measured="how far every other token moves at least when one is replaced, relative to the "
        "length of tokens, all maps drawn, float64",
        side=Side.ABOVE,
        threshold=1e-3,
        why="far above rounding",
        core=False,
        control="LayerNorm, which acts token by token",
    ),
    Claim(
        key="1c",
        text="In its residual form it is no change at all when training starts.",
        source=f"{PAPER}, abstract: plug and play; a property of the reconstruction, not of "
        "the paper",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.THEORY,
        measured="largest change of untrained answers (logits), same seed, float64",
        side=Side.BELOW,
        threshold=1e-12,
        why="rounding in float64",
        core=False,
        control="the form that puts normalised tokens in place of tokens",
    ),
    Claim(
        key="1d",
        text="Without position encoding a model with it is blind to the order of patches.",
        source="ours: every part of the reconstruction commutes with permutations",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.THEORY,
        measured="largest change of answers (logits) when an image's patches change places, MoTo's "
        "maps drawn, float64",
        side=Side.BELOW,
        threshold=1e-10,
        why="rounding in float64, over all layers",
        core=False,
        control="a convolution in front of the patches, which sees across their edges",
    ),
    Claim(
        key="2a",
        text="Both designs together add few parameters.",
        source=f"{PAPER}, abstract: negligible overhead",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"parameters added by the reconstruction, as a share; {MODEL}",
        side=Side.BELOW,
        threshold=0.15,
        why="few in a model of two layers; TokenProp's part is dropped behind training",
        core=False,
        control="twice the layers",
    ),
    Claim(
        key="2b",
        text="They cost little time.",
        source=f"{PAPER}, abstract: negligible overhead",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured="processor time of a step, forward and backward, with both over that without",
        side=Side.BELOW,
        threshold=1.3,
        why="a third: little at a size at which every operation counts",
        core=False,
        control="twice the layers",
    ),
    Claim(
        key="2c",
        text="At the paper's scale the parameters of MoTo, as reconstructed, are negligible.",
        source=f"{PAPER}, abstract; sizes of DeiT-S as generally known",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured="parameters of MoTo, as reconstructed, over those of a model of DeiT-S's size",
        side=Side.BELOW,
        threshold=0.01,
        why="a hundredth: negligible",
        core=False,
        control="a model as wide with two layers",
    ),
    *(
        Claim(
            key=key,
            text=f"MoTo and TokenProp, as reconstructed, make a small model more accurate at {n} "
            "labels.",
            source=f"{PAPER}, abstract: improved performance",
            protocol=Protocol.RECONSTRUCTION,
            kind=Kind.EXPERIMENT,
            measured=f"{ACCURACY}, with both less without, pairs",
            side=Side.ABOVE,
            threshold=0.0,
            why=WHY,
            control=SHUFFLED,
        )
        for key, n in (("3a", 200), ("3b", 400), ("3c", 1000))
    ),
    Claim(
        key="3d",
        text="MoTo alone, as reconstructed, does.",
        source=f"{PAPER}, abstract: both designs",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, with MoTo less without, pairs",
        side=Side.ABOVE,
        threshold=0.0,
        why=WHY,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3e",
        text="TokenProp alone, as reconstructed, does.",
        source=f"{PAPER}, abstract: both designs",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, with TokenProp less without, pairs",
        side=Side.ABOVE,
        threshold=0.0,
        why=WHY,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3f",
        text="A layout that looks at the image is better than a random one.",
        source="ours: what MoTo's gain would rest on",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, MoTo less MoTo with a layout drawn for each place, "
        "pairs",
        side=Side.ABOVE,
        threshold=0.0,
        why=WHY,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3g",
        text="Modulated tokens are better than tokens that are only normalised over the image.",
        source="ours: what modulation adds to normalisation",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, the replacing form of MoTo less normalisation, pairs",
        side=Side.ABOVE,
        threshold=0.0,
        why=WHY,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="3h",
        text="Nothing is learned from shuffled labels.",
        source="ours: a check of the measurement",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        bounds=(0.0, 1.0),
        measured=f"{ACCURACY}, both designs, 400 labels that were shuffled",
        side=Side.BELOW,
        threshold=0.15,
        why="a tenth is guessing",
        core=False,
        control="true labels",
    ),
    Claim(
        key="4a",
        text="TokenProp, as reconstructed, keeps more of the pixels in tokens narrower than their "
        "patch.",
        source=f"{PAPER}, abstract: the information in tokens; a property of the "
        "reconstruction, not of the paper",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured="held-out R² of patches of 49 pixels read linearly off tokens of width 16, with "
        "TokenProp less without, pairs; 400 labels, 750 steps",
        side=Side.ABOVE,
        threshold=0.05,
        why="a tenth is what there is to gain: the best tokens of this width less random ones",
        core=False,
        control="tokens of other patches",
    ),
    Claim(
        key="4b",
        text="It costs no accuracy.",
        source=f"{PAPER}, abstract",
        protocol=Protocol.RECONSTRUCTION,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, with TokenProp less without, pairs",
        side=Side.ABOVE,
        threshold=-0.01,
        why="a point",
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="4c",
        text="Tokens as wide as their patch keep all of it, whatever they are trained for.",
        source="ours: a drawn square map can be inverted; the boundary of 4a",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="largest 1 − R² of patches of 49 pixels read off tokens of width 49, float64",
        side=Side.BELOW,
        threshold=1e-9,
        why="rounding in float64, times the map's condition",
        core=False,
        control="tokens of width 16",
    ),
    Claim(
        key="5a",
        text="A convolution in front of the patches makes the model more accurate.",
        source="ours: generally known (arXiv 2106.14881); a check that tokenizers matter here",
        protocol=Protocol.SCALED,
        kind=Kind.EXPERIMENT,
        measured=f"{ACCURACY}, 400 labels, with a 3 × 3 convolution less without, pairs",
        side=Side.ABOVE,
        threshold=0.0,
        why=WHY,
        core=False,
        control=SHUFFLED,
    ),
    Claim(
        key="6a",
        text="MoTo and TokenProp as the paper defines them improve transformers on ImageNet.",
        source=f"{PAPER}, abstract",
        protocol=Protocol.AS_STATED,
        kind=Kind.EXPERIMENT,
        measured="accuracy on ImageNet with the paper's own designs less without",
        side=Side.ABOVE,
        threshold=0.0,
        why="improved performance",
        control="labels shuffled",
    ),
    *(
        Claim(
            key=key,
            text=f"MoTo and TokenProp, as reconstructed, make a small model more accurate at {n} "
            "labels when it is trained for 200 steps.",
            source=f"{PAPER}, abstract: improved performance",
            protocol=Protocol.RECONSTRUCTION,
            kind=Kind.EXPERIMENT,
            measured="accuracy on held-out digits; two layers, width 32, 200 steps, with both less "
            "without, three times as many pairs as in 3",
            side=Side.ABOVE,
            threshold=0.0,
            why=WHY,
            control=SHUFFLED,
        )
        for key, n in (("7a", 200), ("7b", 400), ("7c", 1000))
    ),
)
