"""What each field of the JSON means; docs/generated/json.py holds it to the dataclasses."""

RATES = {
    "expansion_index": "χ = sum of the rates over the sum of their moduli; −1 to 1",
    "rates": "the rates in brief",
    "regime": "signs of all rates: none negative, none positive, or some of each",
}
SIZES = {
    "n_layers": "self-attention layers; shared layers count each time they are used",
    "n_heads": "query heads a layer",
    "n_kv_heads": "key/value heads a layer",
    "d_model": "width of a token",
    "d_head": "width of a head",
    "position": "how positions are told apart",
    "causal": "true if a token sees only itself and what came before",
}
SCAN = {
    "Scan": {
        "model": "what was scanned",
        "text": "the text that heads were measured on; null where the weights alone were read",
        "layers": "one entry a layer, in order, stack after stack",
        "cost": "what the scan took",
        "flags": "sentences: what was approximate or left out, and why",
    },
    "ModelInfo": {
        "name": "for titles: the folder's, or the config's where the folder is called `model`",
        "path": "as it was given, or the hub cache's folder",
        "family": "`model_type` of the config",
        **SIZES,
        "n_layers": "of all stacks together; the other sizes are the first stack's",
        "parameters": "scalars stored in the files",
        "sha256": "file name → SHA-256 of its header, which pins names, shapes, types and offsets",
        "stacks": "one entry a tower of layers",
    },
    "StackInfo": {"name": "`decoder` or `encoder`", **SIZES},
    "LayerScan": {
        **RATES,
        "layer": "number within its stack, from 0",
        "stack": "name of its stack",
        "relative_error": "standard error of the expansion index, relative; 0 where it is exact",
        "alignment": "Σ_h ⟨V_h, W_h⟩ / Σ_h ‖V_h‖‖W_h‖; −1 to 1",
        "ov_trace": "trace of the sum of value maps; 1/depth",
        "ov_abscissa": "largest real part of an eigenvalue of that sum; 1/depth",
        "ov_radius": "largest modulus of an eigenvalue of that sum; 1/depth",
        "ov_copying": "sum of its eigenvalues over the sum of their moduli; −1 to 1",
        "rotary": "the same for W averaged over the context; with `--context`",
        "data_aware": "the same with the tokens' covariance; with `--covariance`",
        "predicted_log_change": "ln of the factor by which attention, residual included, changes "
        "the mean squared pair distance; with `--covariance` or `--text`",
        "on_text": "what all heads together do to the tokens of a text; with `--text`",
        "certificates": "of all heads together: N2 and N4 where tokens are normalised, "
        "else T4 and T5",
        "heads": "one entry a head",
    },
    "HeadScan": {
        **RATES,
        "head": "number within its layer, from 0",
        "orientation": "how the value map lies to the score map: the sign of the alignment, where "
        "it is beyond chance",
        "alignment": "⟨V, W⟩ / (‖V‖‖W‖); −1 to 1",
        "alignment_sigmas": "d_model × alignment: standard deviations of randomly turned maps",
        "alignment_signs": "positive and negative directions of A on the range of V",
        "ov_abscissa": "largest real part of an eigenvalue of V, 0 from its kernel included; "
        "1/depth",
        "ov_radius": "largest modulus of an eigenvalue of V; 1/depth",
        "ov_copying": "sum of V's eigenvalues over the sum of their moduli; −1 to 1",
        "ov_norm": "Frobenius norm of V; 1/depth",
        "ov_speed_limit": "largest singular value of V; 1/depth",
        "qk_symmetry": "(‖sym W‖² − ‖anti W‖²) / ‖W‖²; 1 symmetric, −1 antisymmetric",
        "qk_norm": "Frobenius norm of W; score a squared unit of token length",
        "rotary": "what a context leaves; with `--context` and a rotary encoding",
        "data_aware": "rates with the tokens' covariance; with `--covariance` or `--text`",
        "on_text": "what the head does to the tokens of a text; with `--text`",
        "certificates": "of the head alone: N1c, N2 and N4 where tokens are normalised, "
        "else T1 to T5",
    },
    "Reading": RATES,
    "RotaryReading": {
        **RATES,
        "context": "tokens",
        "alignment": "of V with the averaged W; −1 to 1",
        "survival": "sum of moduli of the rates, in the context over at offset 0; can exceed 1",
        "energy": "‖W_k‖² of each rotary plane over their sum, fast to slow; the unturned part of "
        "a partial rotary encoding counts in that sum",
    },
    "TextInfo": {
        "n_tokens": "tokens that were run",
        "n_contexts": "in how many contexts",
        "context": "tokens of a context, at most",
        "closure": "by which `predicted` is",
    },
    "TokenEffect": {
        "log_change": "of ln(1 − C), C the mean cosine of tokens: negative where directions gather"
        "; of a head its share, and shares add up",
        "predicted": "of `log_change`, from contexts that are not judged",
        "raw_log_change": "of the mean squared distance between tokens in the raw stream",
    },
    "RateRange": {
        "min": "smallest; 1/depth",
        "mean": "mean over all d_model directions; 1/depth",
        "max": "largest; 1/depth",
    },
    "Certificate": {
        "name": "`T1` to `T5`, `N1c`, `N2`, `N4`",
        "holds": "true if every hypothesis does",
        "margin": "signed distance to failing, in the theorem's own unit "
        "([margins](certificates.md#margins))",
        "why": "the conclusion, or the hypotheses that fail",
        "hypotheses": "each one, checked on its own",
        "numbers": "those of the conclusion, by name ([theorems](certificates.md#the-theorems))",
    },
    "Hypothesis": {
        "name": "what is required",
        "holds": "whether it is so",
        "detail": "what stands against it; meaningful where it does not hold",
    },
    "Cost": {
        "seconds": "wall time of the scan, loading of packages apart; s",
        "bytes_read": "size in the files of the tensors that were read, or all that came over the "
        "network; bytes",
        "peak_rss_bytes": "largest resident memory of the process so far; bytes",
        "bytes_total": "size of all tensors in the files; bytes, or null",
    },
}
SCORES = {
    "induction": "`repeated` − `reordered`; −1 to 1",
    "induction_error": "standard error of that over draws",
    "repeated": "mean attention to what followed the token before; 0 to 1",
    "reordered": "to the same places where nothing repeats in order; 0 to 1",
    "previous": "attention to the token in front, less an even share; −1 to 1",
    "saturation": "0 where attention is even, 1 where softmax has reached its limit",
    "margin": "score of the selected token less that of the next; nats",
    "margin_share": "the same over the range of a row's scores; 0 to 1",
}
MECHANISMS = {
    "Mechanisms": {
        "heads": "one `HeadMechanisms` a head, in order",
        "findings": "one `Finding` a score that could be taken",
        "repetition": "`Repetition`: the random tokens behind `induction`; null where it could not "
        "be measured",
        "reasons": "score → why it is null, everywhere or somewhere",
        "n_contexts": "contexts of the text, for saturation and margin",
        "max_attention_error": "of attention recomputed from weights, relative to the model's own",
    },
    "HeadMechanisms": {
        **SCORES,
        "stack": "name of its stack",
        "layer": "number within its stack, from 0",
        "head": "number within its layer, from 0",
        "twin": "`HeadScores` of the same place in the untrained twin: the eight scores above",
    },
    "Finding": {
        "score": "`induction`, `previous`, `saturation` or `margin`",
        "threshold": "how far above the twin's largest a head must be",
        "best": "the largest score of a head",
        "best_head": "that head, as `layer.head`",
        "twin_largest": "the largest score of the twin",
        "heads": "those at or above `twin_largest` + `threshold`, best first",
    },
    "Repetition": {
        "n_draws": "sequences, each run repeated and reordered",
        "half": "tokens of a half",
        "prefix": "special tokens in front",
        "n_ids": "different tokens that draws are taken from",
        "from_text": "true where those are the tokens of the text; false where it has too few, and "
        "all that are not special were taken",
        "chance": "attention of an even head to one place; it cancels in `induction`",
        "losses": "`RepetitionLosses` of the model; null where it predicts no tokens",
        "twin_losses": "of the twin",
    },
    "RepetitionLosses": {
        "first": "on the first half; nats a token",
        "repeated": "on the second half, which repeats the first",
        "reordered": "on the second half of the control",
    },
}
