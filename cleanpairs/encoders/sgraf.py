r"""SAF, SGR and SGRAF (Diao et al., AAAI 2021): words attend over regions, and the similarity follows from both.

For image i with unit regions v_r and caption c with unit words t_l:

    s_lr = [v_r . t_l]_leaky, normalised over the words.   a_lr = softmax_r(9 s_lr).   u_l = l2(sum_r a_lr v_r)
    x_l  = l2(W |u_l - t_l|^2)                          local similarity vectors, l = 1 .. L
    x_0  = l2(W_g |v_bar - t_bar|^2)                    global one, of self-attended means

SGR reasons over the graph of the L + 1 nodes. SAF weighs them. SGRAF, in the paper two models, is one whose similarity
is the mean. All pairs are computed at once, in blocks of captions that keep the work in cache and bound its memory.
Padded words and left-out regions take no part in anything. Two of the published batch norms are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, leaky_relu, linear, normalize
from torch.utils.checkpoint import checkpoint

from cleanpairs.encoders import backbone
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.tokenizer import PackedTokens
from cleanpairs.encoders.towers import WORD_DROPOUT, BiGRU, l2_normalise, padded
from cleanpairs.ops.mapped import blocks


def _present(lengths: Tensor, most: int) -> Tensor:
    """Mask (B, most) bool of the first ``lengths`` (B,) entries, which are no padding."""
    return torch.arange(most, device=lengths.device) < lengths[:, None]


class _MeanNorm(nn.Module):
    """Batch norm (B, D) that takes one row in training as in evaluation. No BatchNorm1d, which processes share."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.eps = 1e-5
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, input: Tensor) -> Tensor:
        mean: Any = self.running_mean
        var: Any = self.running_var
        return batch_norm(input, mean, var, self.weight, self.bias, self.training and len(input) > 1, eps=self.eps)


class SelfAttention(nn.Module):
    """Sets of vectors to unit vectors (B, D), each weighing by its similarity to the mean. Dropout as published.

    ``norm``: with the batch norm of the mean, which the published one has for regions and not for words. Its other one,
    over region positions, is left out, since the number of regions may vary.
    """

    def __init__(self, dim: int, *, norm: bool = False) -> None:
        super().__init__()
        between = [_MeanNorm(dim)] if norm else []
        self.local = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(0.4))
        self.whole = nn.Sequential(nn.Linear(dim, dim), *between, nn.Tanh(), nn.Dropout(0.4))
        self.weigh = nn.Linear(dim, 1)

    def forward(self, state: Local) -> Tensor:
        """(B, D)."""
        parts = state.parts.to(self.weigh.weight.dtype)
        present = _present(state.lengths, parts.shape[1])
        mean = parts.sum(dim=1) / state.lengths[:, None].to(parts.dtype)  # padding is zero
        common = self.local(parts) * self.whole(mean)[:, None, :]
        weight = self.weigh(common).squeeze(-1).masked_fill(~present, float("-inf")).softmax(dim=1)  # (B, L)
        return normalize((weight[:, None, :].to(parts.dtype) @ parts).squeeze(1), dim=-1)


class GraphReasoning(nn.Module):
    """SGR: ``steps`` rounds of reasoning over the nodes (P, L + 1, S), then a score out of node 0: (P,) in (0, 1)."""

    def __init__(self, dim: int, steps: int = 3) -> None:
        super().__init__()
        self.query = nn.ModuleList([nn.Linear(dim, dim) for _ in range(steps)])
        self.key = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(steps)])  # would change nothing
        self.graph = nn.ModuleList([nn.Linear(dim, dim) for _ in range(steps)])
        self.score = nn.Linear(dim, 1)

    def forward(self, nodes: Tensor, present: Tensor | None) -> Tensor:
        """``present`` (P, L + 1) bool, or None when no node is padding."""
        x = nodes
        hidden = None if present is None else ~present[:, None, :]
        last = len(self.query) - 1
        for k, (query, key, graph) in enumerate(zip(self.query, self.key, self.graph, strict=True)):
            # (Wq x + bq) . (Wk y): what depends on x alone leaves the softmax over y as it is
            merged, offset = query.weight.T @ key.weight, key.weight.T @ query.bias  # type: ignore[operator]
            queries = x[:, 0] if k == last else x.flatten(0, 1)  # of the last round only node 0 is looked at
            queries = torch.addmm(offset, queries, merged).view(len(x), -1, x.shape[-1])
            logits = queries @ x.transpose(1, 2)  # (P, L + 1, L + 1)
            if hidden is not None:
                logits = logits.masked_fill(hidden, float("-inf"))
            e = (logits - logits.detach().amax(dim=-1, keepdim=True)).exp()  # torch's softmax of short rows is slow
            x = graph(e / e.sum(dim=-1, keepdim=True) @ x).relu()
        return torch.sigmoid(self.score(x[:, 0]).squeeze(-1))


class AttentionFiltration(nn.Module):
    """SAF: nodes (P, L + 1, S) weigh by a sigmoid, l1-normalised. A score out of their sum: (P,) in (0, 1).

    The published batch norm inside the sigmoid is left out: a similarity would depend on what else is computed.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.Linear(dim, 1)
        self.score = nn.Linear(dim, 1)

    def forward(self, nodes: Tensor, present: Tensor | None) -> Tensor:
        """``present`` (P, L + 1) bool, or None when no node is padding."""
        weight = torch.sigmoid(self.attention(nodes).squeeze(-1))  # (P, L + 1)
        if present is not None:
            weight = weight * present
        weight = weight / weight.sum(dim=1, keepdim=True)
        kept = normalize((weight[:, None, :] @ nodes).squeeze(1), dim=-1)
        return torch.sigmoid(self.score(kept).squeeze(-1))


class LocalSimilarity(nn.Module):
    """Similarity vectors of pairs of images and captions, and the ``reasoning``, which makes scores of these nodes."""

    block_bytes = 1 << 27  # of a block's similarity vectors, at most
    keep_bytes = 6 << 30  # above it the blocks of a training step are computed again in the backward pass

    def __init__(self, dim: int, dim_sim: int, reasoning: nn.Module) -> None:
        super().__init__()
        self.image_attention, self.text_attention = SelfAttention(dim, norm=True), SelfAttention(dim)
        self.local, self.whole = nn.Linear(dim, dim_sim), nn.Linear(dim, dim_sim)
        self.reasoning = reasoning

    def forward(self, images: Local, texts: Local) -> Tensor:
        """Similarity (B_image, B_text) of all pairs."""
        v_bar, t_bar = self.image_attention(images), self.text_attention(texts)  # (Bi, D), (Bt, D)
        n, m, S = len(v_bar), len(t_bar), self.local.out_features
        if not n or not m:
            return v_bar.new_zeros(n, m)
        regions, gram, mask = self._prepared(images)
        lengths = texts.lengths.cpu()
        vector = n * S * regions.element_size()  # of one word with all images
        nodes = int(lengths.max()) + 1
        step = max(1, self.block_bytes // (vector * nodes))  # captions of a block
        if regions.device.type == "cpu":  # 8,192 vectors of a block are in cache. With fewer words products are slow
            step = min(step, max(4, 8192 // (n * nodes)))
        kept_bytes = 14 * vector + 2 * n * regions[0, 0].nbytes  # tensors as large as these are kept for the gradient
        recompute = torch.is_grad_enabled() and kept_bytes * int((lengths + 1).sum()) > self.keep_bytes
        out = []
        for at in blocks(m, step):
            L = int(lengths[at].max())
            present = None if bool((lengths[at] == L).all()) else _present(texts.lengths[at] + 1, L + 1)
            args = (regions, gram, mask, v_bar, texts.parts[at, :L], present, t_bar[at])
            out.append(checkpoint(self._block, *args, use_reentrant=False) if recompute else self._block(*args))
        return torch.cat(out, dim=1)

    def _prepared(self, images: Local) -> tuple[Tensor, Tensor, Tensor | None]:
        """Regions (B, R, D), their Gram matrices (B, R, R), and their mask (B, R), or None when none is padding."""
        regions = images.parts.to(self.local.weight.dtype)
        with torch.autocast(regions.device.type, enabled=False):
            gram = regions @ regions.transpose(1, 2)
        R = regions.shape[1]
        return regions, gram, None if bool((images.lengths == R).all()) else _present(images.lengths, R)

    def _block(
        self, regions: Tensor, gram: Tensor, mask: Tensor | None, v_bar: Tensor, words: Tensor, present: Tensor | None,
        t_bar: Tensor,
    ) -> Any:  # fmt: skip
        """(Bi, c) of all images and c captions: regions (Bi, R, D), words (c, L, D), ``present`` (c, L + 1)."""
        n, R, D = regions.shape
        c, L, _ = words.shape
        words = words.reshape(c * L, D).to(regions.dtype)
        with torch.autocast(regions.device.type, enabled=False):  # squares of differences want full precision
            s = (regions.reshape(n * R, D) @ words.T).view(n, R, c, L)
            a = _attention(s, mask, gram).transpose(1, 2)  # (n, c L, R)
            local = _vectors(self.local, a @ regions, words)  # (n, c L, S)
            v_bar, t_bar = v_bar.to(regions.dtype), t_bar.to(regions.dtype)
            whole = _vectors(self.whole, v_bar[:, None], t_bar)  # (n, c, S)
        nodes = torch.cat([whole[:, :, None], local.view(n, c, L, -1)], dim=2).flatten(0, 1)  # (n c, L + 1, S)
        if present is not None:
            present = present.expand(n, c, L + 1).reshape(n * c, L + 1)
        return self.reasoning(nodes, present).view(n, c)

    def paired(self, images: Local, texts: Local) -> Tensor:
        """Similarity (B,) of each image with the caption of its row."""
        v_bar, t_bar = self.image_attention(images), self.text_attention(texts)
        regions, gram, mask = self._prepared(images)
        words = texts.parts.to(regions.dtype)
        with torch.autocast(regions.device.type, enabled=False):
            s = regions @ words.transpose(1, 2)  # (B, R, L)
            a = _attention(s[:, :, None], mask, gram).transpose(1, 2)
            local = _vectors(self.local, a @ regions, words)  # (B, L, S)
            whole = _vectors(self.whole, v_bar.to(regions.dtype), t_bar.to(regions.dtype))
        nodes = torch.cat([whole[:, None], local], dim=1)
        return self.reasoning(nodes, _present(texts.lengths + 1, words.shape[1] + 1))


def _vectors(layer: nn.Linear, contexts: Tensor, words: Tensor) -> Tensor:
    """l2(W |u - t|^2 + b) of contexts (..., D) and words (..., D)."""
    return normalize(linear((contexts - words).square(), layer.weight, layer.bias), dim=-1)


def _attention(s: Tensor, mask: Tensor | None, gram: Tensor) -> Tensor:
    """Weights (n, R, c L) that make unit contexts of the regions, from their products s (n, R, c, L) with the words.

    The context is l2-normalised, so the softmax needs no sum. Its exponents lie within [-9, 9] and need no shift. Its
    norm comes from the regions' Gram matrix (n, R, R), which is rounding where regions cancel out: so it has a floor.
    Padded words have s = 0 and do not count in the norm over words. ``mask`` (n, R) bool: regions, not padding.
    """
    n, R, c, L = s.shape
    e = (normalize(leaky_relu(s, 0.1), dim=-1, eps=1e-8) * 9.0).exp()
    if mask is not None:
        e = e * mask[:, :, None, None]
    e = e.view(n, R, c * L)
    square = (e * (gram @ e)).sum(dim=1, keepdim=True)  # (n, 1, c L): |sum_r e_r v_r|^2
    # with a squared length below 1e-6 the mean of unit regions has the direction of rounding
    least = 1e-6 * e.detach().sum(dim=1, keepdim=True).square()
    return e * torch.maximum(square, least).rsqrt()


@dataclass(frozen=True)
class Shape(backbone.Shape):
    """``dim_sim``: similarity vectors. ``sgr_steps``: rounds of graph reasoning, at least 1. SAF has none."""

    dim_sim: int = 256
    text_drop: float = 0.0
    sgr_steps: int = 3


class _LocalEncoder(backbone.Backbone):
    """Regions -> linear -> l2. Words -> BiGRU -> l2. A similarity of the two sets."""

    Shape = Shape
    local = True
    reasoning: Callable[[Any], nn.Module]

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__(vocabulary, dim_image, **shape)
        s: Shape = self.shape
        self.image = nn.Linear(dim_image, s.dim)
        nn.init.xavier_uniform_(self.image.weight)
        nn.init.zeros_(self.image.bias)
        self.embedding = nn.Embedding(vocabulary, s.dim_word)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(WORD_DROPOUT)
        self.gru = BiGRU(s.dim_word, s.dim)
        self.compare = LocalSimilarity(s.dim, s.dim_sim, self.reasoning(s))
        self.add_moments(dim_image)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Local:
        """Unit regions of regions (B, R, D). ``keep`` (B, R): those that stay."""
        x = l2_normalise(self.image(self.standardised(images)))
        if keep is None:
            return Local(x, torch.full((len(x),), x.shape[1], device=x.device))
        kept = torch.zeros_like(x)  # those that stay in front
        kept[torch.arange(x.shape[1], device=x.device) < keep.sum(dim=1)[:, None]] = x[keep]
        return Local(kept, keep.sum(dim=1))

    def encode_texts(self, tokens: PackedTokens) -> Local:
        """Unit words, in the packed order."""
        hidden = self.gru(self.dropout(self.embedding(tokens.ids)), tokens.batch_sizes)  # (total, E), step-major
        return Local(padded(l2_normalise(hidden), tokens), tokens.lengths)

    def vector(self, state: Local) -> Tensor:
        """(B, E) unit vectors: the normalised mean of the parts."""
        return l2_normalise(state.parts.sum(dim=1))

    def similarity(self, images: Local, texts: Local) -> Tensor:
        """(B_image, B_text) in (0, 1)."""
        return self.compare(images, texts)

    def paired_similarity(self, images: Local, texts: Local) -> Tensor:
        """(B,) in (0, 1)."""
        return self.compare.paired(images, texts)


class SGR(_LocalEncoder):
    """Similarity graph reasoning. Parameters as VSEInf's, ``dim_sim``, ``sgr_steps``."""

    reasoning = staticmethod(lambda s: GraphReasoning(s.dim_sim, s.sgr_steps))


class SAF(_LocalEncoder):
    """Similarity attention filtration. Parameters as :class:`SGR`."""

    reasoning = staticmethod(lambda s: AttentionFiltration(s.dim_sim))


class SGRAF(Ensemble):
    """An SAF and an SGR whose similarities are averaged. Parameters as :class:`SGR`."""

    Shape = Shape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__([kind(vocabulary, dim_image, **shape) for kind in (SAF, SGR)])
        self.config = dict(self.members[0].config)  # type: ignore[arg-type]
