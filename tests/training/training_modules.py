"""Small modules built as the common libraries build theirs, for runs with `kind = "factory"`.

Images: a vision transformer whose attention has one fused projection, and a two-branch one whose branches
attend to each other, as CrossViT's do. Text: an encoder with separate projections, as BERT's.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

SIDE, CLASSES, WIDTH, HEADS = 8, 3, 12, 2
VOCABULARY, LENGTH, FIRST, LAST, LOW = 40, 10, 1, 2, 5


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
    return scores.softmax(dim=-1) @ value


def _heads(rows: Tensor) -> Tensor:
    return rows.reshape(*rows.shape[:2], HEADS, -1).transpose(1, 2)


def _joined(rows: Tensor) -> Tensor:
    return rows.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Self-attention with one projection for q, k and v."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        return cast(Tensor, self.proj(_joined(_attend(q, k, v))))


class CrossAttention(nn.Module):
    """The class token of one branch asks the patches of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, token: Tensor, x: Tensor) -> Tensor:
        both = torch.cat([token, x], dim=1)
        found = _attend(_heads(self.wq(token)), _heads(self.wk(both)), _heads(self.wv(both)))
        return cast(Tensor, self.proj(_joined(found)))


class Block(nn.Module):
    """Attention and a feed-forward part, normalised before each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class Patches(nn.Module):
    """Patches behind a class token; token and positions are plain parameters, as in both libraries."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(1, WIDTH, size, stride=size)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (SIDE // size) ** 2 + 1, WIDTH) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(images).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed


class VisionTransformer(nn.Module):
    """One branch; the head reads the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed, self.block = Patches(4), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(self.block(self.patch_embed(images)))[:, 0]))


class CrossTransformer(nn.Module):
    """Two branches of coarse and fine patches; each class token attends to the other branch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleList([Patches(4), Patches(2)])
        self.blocks = nn.ModuleList([Block(), Block()])
        self.fusion = nn.ModuleList([CrossAttention(), CrossAttention()])
        self.norm = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.head = nn.ModuleList([nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)])

    def forward(self, images: Tensor) -> Tensor:
        x = [block(embed(images)) for block, embed in zip(self.blocks, self.patch_embed, strict=True)]
        tokens = [one[:, :1] + fuse(one[:, :1], other[:, 1:]) for fuse, one, other in zip(
            self.fusion, x, x[::-1], strict=True
        )]  # fmt: skip
        outputs = [
            head(norm(token[:, 0])) for head, norm, token in zip(self.head, self.norm, tokens, strict=True)
        ]
        return (outputs[0] + outputs[1]) / 2


class Encoder(nn.Module):
    """Word, position and kind embeddings, one layer of attention normalised after, a pooler and a head."""

    def __init__(self, *, broadcast: bool = False) -> None:
        super().__init__()
        self._broadcast = broadcast
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions, self.kinds = nn.Embedding(LENGTH, WIDTH), nn.Embedding(2, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output, self.between, self.after = (
            nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH),
        )  # fmt: skip
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.dropout = nn.Dropout(0.1)
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).long()
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if not self._broadcast:
            places = places.expand(len(tokens), -1)
        x = self.words(tokens) + self.positions(places) + self.kinds(torch.zeros_like(tokens))
        x = self.dropout(self.norms[0](x))
        q, k, v = (_heads(project(x)) for project in (self.query, self.key, self.value))
        x = self.norms[1](x + self.dropout(self.output(_joined(_attend(q, k, v, mask)))))
        x = self.norms[2](x + self.after(nn.functional.gelu(self.between(x))))
        return cast(Tensor, self.classifier(self.pooler(x[:, 0]).tanh()))


def _without_plain_parameters(model: nn.Module) -> nn.Module:
    """Class tokens and positions that belong to no layer are left as they start."""
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "pos_embed")):
            parameter.requires_grad_(False)
    return model


def vision_transformer() -> nn.Module:
    return _without_plain_parameters(VisionTransformer())


def plain_vision_transformer() -> nn.Module:
    """As the libraries build it: a run refuses it by the names of what belongs to no layer."""
    return VisionTransformer()


def cross_transformer() -> nn.Module:
    return _without_plain_parameters(CrossTransformer())


def cross_transformer_head() -> nn.Module:
    """A frozen backbone, as the paper's script has it."""
    model = CrossTransformer().requires_grad_(False)
    model.head.requires_grad_(True)
    return model


def encoder() -> nn.Module:
    return Encoder()


def encoder_head() -> nn.Module:
    model = Encoder().requires_grad_(False)
    model.classifier.requires_grad_(True)
    return model


def broadcasting_encoder() -> nn.Module:
    """Looks positions up once for the whole batch: their gradients would already be summed."""
    return Encoder(broadcast=True)


class Borrowing(nn.Module):
    """Uses a layer's weight outside the layer's own forward call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(SIDE * SIDE, 8), nn.Linear(SIDE * SIDE, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(images.flatten(1)))
        return cast(Tensor, self.head(hidden @ self.inner.weight))


def borrowing() -> nn.Module:
    return Borrowing()
