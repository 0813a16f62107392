r"""Active complementary loss of CRCL (Qin et al., NeurIPS 2023), eq. 6, 8 and 9.

    q_i    = 1 - yhat_i
    L_d(i) = -yhat_i (log P_ii + log Q_ii)
    L_r(i) = sum_{j != i} tan(P_ij) / (sum_k tan(P_ik))^{q_i}
           + sum_{j != i} tan(Q_ji) / (sum_k tan(Q_ki))^{q_i}
    L(i)   = L_d(i) + lambda L_r(i)

P, Q   matching probabilities of image i to text j, of text i to image j (eq. 3)
yhat   soft correspondence of the pair, in [0, 1]
q      how tolerant: at q = 1 the sum of L_r over which pair is taken as the positive is constant (lemma 1)

tan is in radians and its argument lies in [0, 1], so it never meets its pole at pi / 2.

Departure: entries marked as excluded (duplicates) leave both sums. The paper preset passes no mask.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ActiveComplementaryLoss:
    """ACL of a batch; ``lam`` weighs the complementary part, ``active`` L_d, ``tau`` is the temperature.

    ``q``: the same for all pairs, in place of 1 - yhat (the paper's ablation).
    """

    tau: float = 0.05
    lam: float = 5.0
    active: float = 1.0
    q: float | None = None

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of S (B, B), rows are images, and labels (B,) in [0, 1], constants; ``excluded`` (B,
        B) bool: off-diagonal entries that are no negatives.
        """
        y, logits = labels.detach().to(S.dtype), S / self.tau
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return self._one_way(logits, y) + self._one_way(logits.T, y)

    def _one_way(self, logits: Tensor, y: Tensor) -> Tensor:
        """Images to texts: (B,) of logits (B, B)."""
        log_p = logits.log_softmax(dim=1)
        tan = log_p.exp().tan()
        total = tan.sum(dim=1)
        complementary = (total - tan.diagonal()).clamp_min(0) * total.pow(y - 1 if self.q is None else -self.q)
        return self.lam * complementary - self.active * y * log_p.diagonal()
