"""The claims of arXiv 2308.16898 as statements with thresholds, fixed before any run."""

from orbitlens_papers.claim import Claim, Side

PAPER = "arXiv 2308.16898"
CLOSE = "at 0.97 the angle is 14 degrees; in a hundred dimensions random matrices stay below 0.4"
MOST = "nine runs in ten: problems may have solutions that are nearly as good as the best"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="1a",
        text="Descent on W goes in the direction of the attention SVM of least Frobenius norm.",
        source=f"{PAPER}, abstract",
        measured="share of runs whose W ends at a cosine of 0.97 or more with that solution, and "
        "nearer to it than to that of the nuclear norm",
        side=Side.ABOVE,
        threshold=0.9,
        why=f"{CLOSE}; {MOST}",
        control="the solution for labels that are drawn anew after training",
    ),
    Claim(
        key="1b",
        text="The direction depends on the labels: it is not that of the SVM of other labels.",
        source=f"{PAPER}, by the definition of the SVM",
        measured="cosine of W with the Frobenius solution for redrawn labels, mean over runs",
        side=Side.BELOW,
        threshold=0.5,
        why="half of the labels stay as they were, and with them about half of the matrix",
        core=False,
        control="the solution for the own labels",
    ),
    Claim(
        key="1c",
        text="Plain gradient descent, without normalised steps, shows the same order of norms.",
        source=f"{PAPER}; a boundary of 1a and 2a",
        measured="share of runs, on W and on (K, Q), that end nearer to the solution of their own "
        "norm than to the other one",
        side=Side.ABOVE,
        threshold=0.9,
        why=MOST,
        core=False,
        control="random matrices in the place of what descent found",
    ),
    Claim(
        key="2a",
        text="Descent on K and Q goes in the direction of the attention SVM of least nuclear norm "
        "of W = K Qᵀ.",
        source=f"{PAPER}, abstract",
        measured="share of runs whose K Qᵀ ends at a cosine of 0.97 or more with that solution, "
        "and nearer to it than to that of the Frobenius norm",
        side=Side.ABOVE,
        threshold=0.9,
        why=f"{CLOSE}; {MOST}",
        control="the solution for labels that are drawn anew after training",
    ),
    Claim(
        key="2b",
        text="So K Qᵀ has a smaller nuclear norm than the W found on the same problem (no solver "
        "involved).",
        source=f"{PAPER}, a consequence",
        measured="share of problems in which it has, both scaled to Frobenius norm 1",
        side=Side.ABOVE,
        threshold=0.9,
        why=MOST,
        core=False,
        control="a second descent on W, from another start, in the place of that on (K, Q)",
    ),
    Claim(
        key="3a",
        text="Attention saturates: each sample ends up looking at one token.",
        source=PAPER,
        measured="largest weight of softmax, mean over samples, the lesser of both descents",
        side=Side.ABOVE,
        threshold=0.99,
        why="one part in a hundred for the seven other tokens together",
        control="before descent",
    ),
    Claim(
        key="4a",
        text="The token is the globally best one.",
        source=f"{PAPER}: over-parameterisation helps global convergence",
        measured="share of samples whose W selects argmax Y vᵀx, ten dimensions",
        side=Side.ABOVE,
        threshold=0.9,
        why="chance is one in eight",
        core=False,
        control="judged by redrawn labels",
    ),
    Claim(
        key="4b",
        text="More dimensions never make that worse.",
        source=f"{PAPER}: over-parameterisation helps global convergence",
        measured="largest drop of that share between widths 4, 6, 10 and 20, in standard errors",
        side=Side.BELOW,
        threshold=1.0,
        why="one standard error of a difference of two shares",
        core=False,
        control="the widths in the opposite order",
    ),
    Claim(
        key="5a",
        text="The nuclear solution has no larger rank than the Frobenius solution.",
        source=PAPER,
        measured="largest difference of ranks, singular values above a thousandth of the largest",
        side=Side.BELOW,
        threshold=0.5,
        why="ranks are whole numbers",
        core=False,
        control="the nuclear solution with noise of a hundredth of its norm, as a loose solver "
        "leaves",
    ),
    Claim(
        key="5b",
        text="The solutions that directions are compared with are the best there are.",
        source="weak duality",
        measured="largest relative gap between a solution's norm and the bound that its "
        "multipliers prove",
        side=Side.BELOW,
        threshold=1e-5,
        why="a hundred times finer than the tolerance of ranks",
        core=False,
        control="the solutions of the other norm",
    ),
    Claim(
        key="5c",
        text="Another library finds the same Frobenius solution.",
        source="cross-check of the solver",
        measured="largest 1 − cosine with the linear classifier of scikit-learn",
        side=Side.BELOW,
        threshold=1e-3,
        why="thirty times finer than the 0.97 of 1a",
        core=False,
        control="the nuclear solution in its place",
    ),
    Claim(
        key="6a",
        text="The order of tokens within a sample means nothing: W stays as it is.",
        source="theory: the loss is a sum over tokens, S1",
        measured="largest relative change of W after descent on permuted tokens",
        side=Side.BELOW,
        threshold=1e-10,
        why="sums in another order differ by 1e-16 a step; a real difference is of order one",
        core=False,
        control="one token of each sample goes to the next sample",
    ),
)
