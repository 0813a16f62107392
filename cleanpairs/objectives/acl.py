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

The gradient is written out. With T = sum_k tan(P_ik) and W_ij = P_ij (1 + tan^2 P_ij), what the images give is

    tau dL(i) / dS_ij = lambda a W_ij + (yhat_i - c) P_ij - [i = j] (yhat_i + lambda T^{-q} W_ii)
    a = T^{-q} - q (T - tan P_ii) T^{-q - 1},    c = lambda (a sum_k W_ik - T^{-q} W_ii)

and what the texts give is the same of the transpose. Both are made block by block, in the cache: a chain of operations
with autograd goes through the memory some thirty times, which is most of its time from a batch of 1,024 on. Large
batches in float32 on a CPU take the way of acl_blocks.py, with half as many exponentials and no transpose.

Departure: entries marked as excluded (duplicates) leave both sums. The paper preset passes no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cleanpairs.objectives.acl_blocks import Parts, gradient, spans_little, value_and_parts

__all__ = ["ActiveComplementaryLoss"]

BLOCK = 1 << 18  # entries that are worked on at a time on a CPU: with what is made of them they stay in the cache


LARGE = 192  # pairs from which on acl_blocks.py is the faster way: below it the number of calls counts


class _LargeLoss(torch.autograd.Function):
    """As `_Loss`, of float32 on a CPU that `spans_little`."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, labels: Tensor, excluded: Tensor | None, tau: float, lam: float) -> Tensor:
        loss, parts = value_and_parts(S.detach(), labels, excluded, tau, lam)
        ctx.save_for_backward(*(getattr(parts, field.name) for field in fields(parts)))
        ctx.tau = tau
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        return gradient(Parts(*ctx.saved_tensors), grads[0] / ctx.tau), None, None, None, None


class _Loss(torch.autograd.Function):
    """Of logits (B, B), with images and texts side by side in a first axis of two."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, labels: Tensor, excluded: Tensor | None, tau: float, lam: float) -> Tensor:
        n, q = len(S), 1 - labels
        both = S.new_empty(2, n, n)  # the logits and their transpose, and then the gradients of either
        torch.div(S.detach(), tau, out=both[0])
        if excluded is not None:
            both[0].masked_fill_(excluded, float("-inf"))
        both[1].copy_(both[0].T)
        loss = S.new_empty(2, n)
        step = max(1, BLOCK // (2 * n)) if S.device.type == "cpu" else n
        for start in range(0, n, step):
            s = slice(start, start + step)
            x = both[:, s]  # (2, b, B)
            P = x.softmax(dim=2)
            # The largest logit and its probability, which never vanishes, tell the logarithm of the sum.
            log_own = x.diagonal(start, 1, 2) - x.amax(dim=2) + P.amax(dim=2).log()  # (2, b)
            tan = P.tan()
            W = (tan * tan).add_(1).mul_(P)  # in this order: tan^2 P would meet denormal numbers, which are slow
            own, w_own, total = tan.diagonal(start, 1, 2), W.diagonal(start, 1, 2), tan.sum(dim=2)
            power = lam * total.pow(-q[s])
            complementary = power * (total - own)
            loss[:, s] = torch.addcmul(complementary, labels[s], log_own, value=-1)
            if not ctx.needs_input_grad[0]:
                continue
            a = power - q[s] * complementary / total
            power *= w_own
            b = labels[s] - a * W.sum(dim=2) + power
            torch.mul(P, b[..., None], out=x).addcmul_(W, a[..., None])
            x.diagonal(start, 1, 2).sub_(power).sub_(labels[s])
        ctx.save_for_backward(both)
        ctx.tau = tau
        return loss.sum(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (both,) = ctx.saved_tensors
        weight = grads[0] / ctx.tau
        by_text = both[1].T.contiguous()  # a copy transposes by tiles: three times as fast as to compute on the view
        return torch.mul(both[0], weight[:, None]).addcmul_(by_text, weight), None, None, None, None


@dataclass(frozen=True)
class ActiveComplementaryLoss:
    """ACL of a batch; ``lam`` weighs the complementary part, ``tau`` is the temperature."""

    tau: float = 0.05
    lam: float = 5.0

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss; it can be differentiated once.

        Parameters
        ----------
        S : (B, B) float
            Similarity, rows are images.
        labels : (B,) float in [0, 1]
            Corrected soft correspondence yhat; treated as a constant.
        excluded : (B, B) bool, optional
            Off-diagonal entries that are no negatives.

        Returns
        -------
        (B,) float, >= 0
        """
        on_cpu = S.device.type == "cpu" and S.dtype == torch.float32  # elsewhere a look at the range would wait
        large = on_cpu and len(S) >= LARGE and spans_little(S.detach(), self.tau)
        way = _LargeLoss if large else _Loss
        loss: Tensor = way.apply(S, labels.detach().to(S.dtype), excluded, self.tau, self.lam)
        return loss
