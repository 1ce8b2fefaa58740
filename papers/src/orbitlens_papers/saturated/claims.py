"""The claims of arXiv 2106.16213 as statements with thresholds, fixed before any run."""

from orbitlens_papers.claim import Claim, Side

PAPER = "arXiv 2106.16213"
COUNT = "a count of failures: none is allowed"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="One saturated head with equal scores decides majority, exactly, at every length.",
        source=f"{PAPER}: saturated attention transcends hard attention",
        measured="most strings it gets wrong in a set, over lengths 5 to 10001, random strings and "
        "strings that one bit decides",
        side=Side.BELOW,
        threshold=0.5,
        why=COUNT,
        control="the same head with hard attention",
    ),
    Claim(
        key="2a",
        text="Saturated attention is the limit of softmax of growing scores.",
        source=f"{PAPER}, definition",
        measured="distance of softmax(c a) from it over n exp(−c gap), with 1e-15 for rounding; "
        "largest over scores of whole numbers and c from 1 to 64",
        side=Side.BELOW,
        threshold=1.0,
        why="the bound is proved: at most n − 1 others share what the largest leave",
        control="hard attention as the limit",
    ),
    Claim(
        key="3a",
        text="One layer of H hard heads with a constant query is blind once H bits are fixed.",
        source=f"{PAPER} on hard attention; after arXiv 1906.06755",
        measured="largest relative variation of the output over all completions, random readers "
        "and trained ones",
        side=Side.BELOW,
        threshold=1e-9,
        why="rounding leaves 1e-15; without the restriction outputs vary by their own size",
        control="saturated readers whose scores tie, under the same restriction",
    ),
    Claim(
        key="3b",
        text="So with more than 2 H bits such a reader cannot decide majority.",
        source=f"{PAPER} on hard attention",
        measured="fewest strings of eleven bits that a reader of one to three heads gets wrong, "
        "random or trained",
        side=Side.ABOVE,
        threshold=0.5,
        why="one wrong string is enough",
        control="one saturated head",
    ),
    Claim(
        key="3c",
        text="Two layers of hard attention, too, are decided by fewer bits than majority.",
        source="after arXiv 1906.06755, asymptotically",
        measured="least certificate (bits to fix) of random two-layer models, balanced, over that "
        "of majority, at the longest length; all restrictions are tried",
        side=Side.BELOW,
        threshold=1.0,
        why="as many bits as majority needs",
        core=False,
        control="random functions of the same bits",
    ),
    Claim(
        key="4a",
        text="Saturated layers with whole-number scores compile to threshold gates.",
        source=f"{PAPER}: saturated transformers are in TC0",
        measured="strings on which circuit and layer differ, all strings of up to twelve bits, one "
        "and two layers; largest",
        side=Side.BELOW,
        threshold=0.5,
        why=COUNT,
        control="the layers with hard attention",
    ),
    Claim(
        key="4b",
        text="The depth of these circuits does not grow with the length.",
        source=f"{PAPER}: constant depth",
        measured="difference of depths over lengths 4 to 64",
        side=Side.BELOW,
        threshold=0.5,
        why="depths are whole numbers",
        control="gates of two wires at most",
    ),
    Claim(
        key="4c",
        text="Their size is a polynomial of the length.",
        source=f"{PAPER}: TC0 circuits have polynomial size",
        measured="slope of the logarithm of gates and of wires over that of the length; the larger",
        side=Side.BELOW,
        threshold=3.0,
        why="queries times keys times a constant would be 2; one more for counting gates",
        core=False,
        control="a gate for each accepted string, as in a truth table",
    ),
    Claim(
        key="5a",
        text="The output of a saturated head takes log n bits.",
        source=f"{PAPER}: O(log n) bits a value",
        measured="bits of numerator or denominator less log2(n max|v|), largest, exact fractions",
        side=Side.BELOW,
        threshold=1.01,
        why="a whole number k has at most log2 k + 1 bits",
        control="a soft head with weights of 2 to the score, places for scores",
    ),
    Claim(
        key="5b",
        text="That ends at the second layer if fractions stay exact: there the bits grow with n "
        "itself, and the paper's floats are needed.",
        source=f"{PAPER}: with rationals saturated transformers are universal",
        measured="bits a place of the mean of 1/i, the second layer over running means",
        side=Side.ABOVE,
        threshold=0.5,
        why="half a bit per place is linear growth; log n bits give a hundredth of that",
        core=False,
        control="one layer",
    ),
    Claim(
        key="6a",
        text="One soft layer without encoding learns majority and keeps it at five times the "
        "length.",
        source=f"{PAPER}, figure on majority",
        measured="least accuracy over mean lengths 50 to 250, trained at 50",
        side=Side.ABOVE,
        threshold=0.97,
        why="as good as learnt: the strings that remain are decided by a bit or two",
        core=False,
        control="a reader with hard attention",
    ),
    Claim(
        key="6b",
        text="With sinusoidal positions it does not keep it.",
        source=f"{PAPER}, figure on majority",
        measured="accuracy at mean length 50 less that at 250",
        side=Side.ABOVE,
        threshold=0.1,
        why="twice what ties cost: a boundary halfway between means 0 and 1/50, which training "
        "cannot tell apart further, errs on a twentieth of the strings at 250",
        core=False,
        control="no encoding",
    ),
    Claim(
        key="6c",
        text="With learned positions it does not keep it.",
        source=f"{PAPER}, figure on majority",
        measured="accuracy at mean length 50 less that at 250",
        side=Side.ABOVE,
        threshold=0.1,
        why="twice what ties cost: a boundary halfway between means 0 and 1/50, which training "
        "cannot tell apart further, errs on a twentieth of the strings at 250",
        core=False,
        control="no encoding",
    ),
    Claim(
        key="6d",
        text="A hard reader of two heads does not learn it.",
        source=f"{PAPER} on hard attention",
        measured="accuracy at mean length 100, trained with straight-through gradients",
        side=Side.BELOW,
        threshold=0.85,
        why="two bits of a hundred tell little: 0.6 at best",
        core=False,
        control="a soft model without encoding",
    ),
)
