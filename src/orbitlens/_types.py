"""Array aliases and the closed vocabulary of axis names.

Axis names used in jaxtyping annotations throughout the package:

    tokens   position in the sequence          d_model  width of the residual stream
    head     attention heads of one layer      d_head   width of one head (r in the theory)
    offset   relative distances i - j          pair     planes turned by a rotary encoding
    rank     eigenvalues that are not forced   position rows of a table of absolute positions
    any      whatever the caller has

Tokens are rows and weights act from the right, `x @ w`.
"""

from jaxtyping import Bool, Complex, Float
from torch import Tensor

Tokens = Float[Tensor, "tokens d_model"]
InputWeight = Float[Tensor, "d_model d_head"]
OutputWeight = Float[Tensor, "d_head d_model"]
HeadVector = Float[Tensor, " d_head"]
HeadMatrix = Float[Tensor, "d_head d_head"]
ModelVector = Float[Tensor, " d_model"]
Covariance = Float[Tensor, "d_model d_model"]
Pattern = Float[Tensor, "tokens tokens"]
Mask = Bool[Tensor, "tokens tokens"]
Spectrum = Float[Tensor, " rank"]
ComplexSpectrum = Complex[Tensor, " rank"]

__all__ = [
    "ComplexSpectrum",
    "Covariance",
    "HeadMatrix",
    "HeadVector",
    "InputWeight",
    "Mask",
    "ModelVector",
    "OutputWeight",
    "Pattern",
    "Spectrum",
    "Tokens",
]
