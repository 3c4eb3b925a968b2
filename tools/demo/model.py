"""The architecture of Clef-Flash at small size, written for training in batches.

Parameter names are those of the release files, so exporting is a plain copy. `check.py` compares
this code with the release's own Python on exported weights. Shapes in comments: B records, T
tokens, H hidden size, W head width, Q questions a record, K options a question.

A batch is right-padded. Everything is causal, so padding never reaches a real row; the head masks it.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

CHUNK = 64  # rows of one step of the chunked delta rule
BLOCK = 16  # rows of the diagonal blocks whose inverse is a short power series


@dataclass(frozen=True)
class Shape:
    """Sizes of backbone and head."""

    vocab: int = 5120
    hidden: int = 256
    layers: int = 8
    attention_every: int = 4
    mlp: int = 384
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 1e7
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 32
    value_dim: int = 48
    conv: int = 4
    width: int = 96
    routing_layers: int = 2
    head_layers: int = 4
    field_heads: int = 3
    feedforward: int = 384
    dropout: float = 0.0


class Norm(nn.Module):
    """RMSNorm; stores w and multiplies by 1 + w, or by w itself when `plain`."""

    def __init__(self, size, plain=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size) if plain else torch.zeros(size))
        self.plain = plain

    def forward(self, x):
        weight = self.weight if self.plain else 1.0 + self.weight
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), 1e-6)


def rotary(length, shape, device):
    """Cosines and sines [T, rotary_dim]; text positions are equal in all three mrope sections."""
    half = torch.arange(0, shape.rotary_dim, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / (shape.rope_theta ** (half / shape.rotary_dim))
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Turn the first `rotary_dim` dimensions of x [B, heads, T, head_dim]."""
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    swapped = torch.cat([-second, first], dim=-1)
    return torch.cat([turned * cos + swapped * sin, rest], dim=-1)


def repeat_heads(x, times):
    """Each head of x [B, heads, T, size] `times` times in a row."""
    return x[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


class Attention(nn.Module):
    """Causal grouped-query attention with normed q and k and a sigmoid gate."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, 2 * inner, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_dim)
        self.k_norm = Norm(shape.head_dim)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        size = self.shape.head_dim
        query, gate = self.q_proj(x).view(batch, length, -1, 2 * size).chunk(2, dim=-1)
        key = self.k_proj(x).view(batch, length, -1, size)
        value = self.v_proj(x).view(batch, length, -1, size).transpose(1, 2)
        query = rotate(self.q_norm(query).transpose(1, 2), cos, sin).to(value.dtype)
        key = rotate(self.k_norm(key).transpose(1, 2), cos, sin).to(value.dtype)
        repeat = self.shape.heads // self.shape.kv_heads
        key, value = (repeat_heads(t, repeat) for t in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out = out.transpose(1, 2) * torch.sigmoid(gate)
        return self.o_proj(out.reshape(batch, length, -1))


def unit_lower_inverse(a):
    """(I + a)⁻¹ of strictly lower triangular matrices [..., CHUNK, CHUNK].

    The 16-row diagonal blocks are inverted by doubling, (I+n)(I+n²)(I+n⁴)(I+n⁸) with n = −a, short
    enough to stay accurate with equal keys; pairs of blocks are then joined by the block formula.
    """
    size, lead = BLOCK, a.shape[:-2]
    blocks = a.view(*lead, CHUNK // size, size, CHUNK // size, size)
    power = -blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    eye = torch.eye(size, device=a.device, dtype=a.dtype)
    inverse = eye + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    while size < CHUNK:
        count = CHUNK // (2 * size)
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        pairs = a.view(*lead, count, 2 * size, count, 2 * size)
        pairs = pairs.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        corner = -lower @ pairs[..., size:, :size] @ upper
        top = torch.cat([upper, torch.zeros_like(corner)], dim=-1)
        inverse = torch.cat([top, torch.cat([corner, lower], dim=-1)], dim=-2)
        size *= 2
    return inverse.squeeze(-3)


def delta_rule(query, key, value, decay, beta):
    """The gated delta rule from an empty state, in chunks.

    query, key [B, heads, T, key_dim], value [B, heads, T, value_dim], decay (log) and beta
    [B, heads, T], all f32. Returns [B, heads, T, value_dim].
    """
    length = query.shape[2]
    pad = -length % CHUNK
    query, key, value = (F.pad(t, (0, 0, 0, pad)) for t in (query, key, value))
    decay, beta = F.pad(decay, (0, pad)), F.pad(beta, (0, pad))
    query, key, value = (t.unflatten(2, (-1, CHUNK)) for t in (query, key, value))
    total = decay.unflatten(2, (-1, CHUNK)).cumsum(-1)
    beta = beta.unflatten(2, (-1, CHUNK))[..., None]

    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).tril()
    fade = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -math.inf).exp()
    mixing = (beta * key) @ key.transpose(-1, -2) * fade
    solve = unit_lower_inverse(mixing.tril(-1))
    grown = total.exp()[..., None]
    written = solve @ (beta * value)
    erased = solve @ (beta * grown * key)
    inside = query @ key.transpose(-1, -2) * fade
    query = query * grown
    last = total[..., -1:]
    key = (key * (last - total).exp()[..., None]).transpose(-1, -2)
    last = last.exp()[..., None]

    state = torch.zeros(*query.shape[:2], query.shape[-1], value.shape[-1], device=query.device)
    rows = []
    # `unbind` gives its gradient back in one piece; indexing would add a full-size one per chunk.
    for q, k, w, e, a, f in zip(*(t.unbind(2) for t in (query, key, written, erased, inside, last))):
        new = w - e @ state
        rows.append(q @ state + a @ new)
        state = state * f + k @ new
    return torch.stack(rows, dim=2).flatten(2, 3)[:, :, :length]


class Conv(nn.Module):
    """Depthwise causal convolution; only holds the weight [channels, 1, kernel]."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))

    def forward(self, x):
        taps = self.weight[:, 0].to(x.dtype)
        padded = F.pad(x, (0, 0, taps.shape[1] - 1, 0))
        return sum(padded[:, i : i + x.shape[1]] * taps[:, i] for i in range(taps.shape[1]))


class DeltaNet(nn.Module):
    """Linear attention: gated DeltaNet with a short convolution and a gated norm."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        self.in_proj_qkv = nn.Linear(shape.hidden, 2 * keys + values, bias=False)
        self.in_proj_z = nn.Linear(shape.hidden, values, bias=False)
        self.in_proj_b = nn.Linear(shape.hidden, shape.value_heads, bias=False)
        self.in_proj_a = nn.Linear(shape.hidden, shape.value_heads, bias=False)
        self.conv1d = Conv(2 * keys + values, shape.conv)
        self.A_log = nn.Parameter(torch.empty(shape.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(shape.value_heads))
        self.norm = Norm(shape.value_dim, plain=True)
        self.out_proj = nn.Linear(values, shape.hidden, bias=False)

    def forward(self, x):
        shape, (batch, length, _) = self.shape, x.shape
        keys = shape.key_heads * shape.key_dim
        mixed = F.silu(self.conv1d(self.in_proj_qkv(x))).float()
        query, key, value = mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], dim=-1)
        query, key = (t.view(batch, length, -1, shape.key_dim).transpose(1, 2) for t in (query, key))
        value = value.view(batch, length, -1, shape.value_dim).transpose(1, 2)
        query, key = (t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for t in (query, key))
        repeat = shape.value_heads // shape.key_heads
        query, key = (repeat_heads(t, repeat) for t in (query, key))
        beta = torch.sigmoid(self.in_proj_b(x)).float().transpose(1, 2)
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            out = delta_rule(query * shape.key_dim**-0.5, key, value, decay.transpose(1, 2), beta)
        gate = self.in_proj_z(x).view(batch, length, -1, shape.value_dim)
        out = self.norm(out.transpose(1, 2)) * F.silu(gate.float())
        return self.out_proj(out.reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.full = (index + 1) % shape.attention_every == 0
        if self.full:
            self.self_attn = Attention(shape)
        else:
            self.linear_attn = DeltaNet(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.dropout = shape.dropout

    def forward(self, x, cos, sin):
        normed = self.input_layernorm(x)
        mixed = self.self_attn(normed, cos, sin) if self.full else self.linear_attn(normed)
        x = x + F.dropout(mixed, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


class Backbone(nn.Module):
    """Token ids [B, T] to final normed hidden rows [B, T, H], f32."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.layers))
        self.norm = Norm(shape.hidden)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        cos, sin = rotary(ids.shape[1], self.shape, ids.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class PackedAttention(nn.Module):
    """Multi-head attention with one packed input projection and biases."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, queries, memory, mask):
        """queries [B, N, W], memory [B, M, W], mask [B, M], true where a memory row counts."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        query, key, value = (
            F.linear(x, w, b).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, w, b in zip((queries, memory, memory), weights, biases)
        )
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Routing(nn.Module):
    """One evidence layer: options read the normed memory."""

    def __init__(self, shape):
        super().__init__()
        self.query_norm = nn.LayerNorm(shape.width)
        self.memory_norm = nn.LayerNorm(shape.width)
        self.attention = PackedAttention(shape.width, shape.field_heads)
        self.feedforward_norm = nn.LayerNorm(shape.width)
        self.feedforward = nn.Sequential(
            nn.Linear(shape.width, shape.feedforward), nn.GELU(), nn.Dropout(shape.dropout),
            nn.Linear(shape.feedforward, shape.width), nn.Dropout(shape.dropout))

    def forward(self, options, memory, mask):
        options = options + self.attention(self.query_norm(options), self.memory_norm(memory), mask)
        return options + self.feedforward(self.feedforward_norm(options))


class FieldLayer(nn.Module):
    """One decoder layer: fields read each other, then the memory as it is."""

    def __init__(self, shape):
        super().__init__()
        self.self_attn = PackedAttention(shape.width, shape.field_heads)
        self.multihead_attn = PackedAttention(shape.width, shape.field_heads)
        self.linear1 = nn.Linear(shape.width, shape.feedforward)
        self.linear2 = nn.Linear(shape.feedforward, shape.width)
        self.norm1 = nn.LayerNorm(shape.width)
        self.norm2 = nn.LayerNorm(shape.width)
        self.norm3 = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, fields, field_mask, memory, mask):
        normed = self.norm1(fields)
        fields = fields + self.dropout(self.self_attn(normed, normed, field_mask))
        fields = fields + self.dropout(self.multihead_attn(self.norm2(fields), memory, mask))
        return fields + self.dropout(self.linear2(F.gelu(self.linear1(self.norm3(fields)))))


def span_means(rows, spans):
    """Means of rows [B, T, H] over half-open spans [B, ..., 2], by differences of running sums."""
    sums = F.pad(rows.float().cumsum(1), (0, 0, 1, 0))
    ends = spans.flatten(1, -2)
    index = ends[..., None].expand(-1, -1, -1, rows.shape[-1])
    start, end = (sums.gather(1, index[:, :, i]) for i in (0, 1))
    means = (end - start) / (ends[..., 1] - ends[..., 0]).clamp(min=1)[..., None]
    return means.view(*spans.shape[:-1], rows.shape[-1])


class Head(nn.Module):
    """The joint schema head over a batch; options are laid out as [B, Q, K]."""

    def __init__(self, shape):
        super().__init__()
        hidden, width = shape.hidden, shape.width
        self.hidden_norm = nn.LayerNorm(hidden)
        self.memory_projection = nn.Linear(hidden, width, bias=False)
        self.question_projection = nn.Linear(hidden, width, bias=False)
        self.option_question_projection = nn.Linear(hidden, width, bias=False)
        self.global_projection = nn.Linear(hidden, width, bias=False)
        self.option_context_projection = nn.Linear(hidden, width, bias=False)
        self.option_lexical_projection = nn.Linear(hidden, width, bias=False)
        self.type_embedding = nn.Embedding(3, width)
        self.evidence_layers = nn.ModuleList(Routing(shape) for _ in range(shape.routing_layers))
        self.option_summary_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(FieldLayer(shape) for _ in range(shape.head_layers))
        self.field_norm = nn.LayerNorm(width)
        self.option_norm = nn.LayerNorm(width)
        self.residual_scorer = nn.Sequential(
            nn.Linear(4 * width, width), nn.GELU(), nn.Dropout(shape.dropout), nn.Linear(width, 1))
        self.prior_logit_scale = nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = nn.Parameter(torch.zeros(()))
        self.residual_gate = nn.Parameter(torch.zeros(()))

    def forward(self, hidden, batch, output_embedding):
        """Logits [B, Q, K], f32; −inf where there is no such option."""
        kinds, spans, option_spans = batch["kinds"], batch["spans"], batch["option_spans"]
        lengths, option_mask = batch["lengths"], batch["option_mask"]
        rows = self.hidden_norm(hidden)
        mask = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        memory = self.memory_projection(rows)
        last = (lengths - 1)[:, None, None].expand(-1, 1, rows.shape[-1])
        overall = rows.gather(1, last)[:, 0].float()
        questions = span_means(rows, spans)
        context = span_means(rows, option_spans)
        lexical = span_means(F.embedding(batch["ids"], output_embedding), option_spans)

        options = (self.option_context_projection(context)
                   + self.option_lexical_projection(lexical)
                   + self.option_question_projection(questions)[:, :, None])
        shape = options.shape
        options = options.flatten(1, 2)
        for layer in self.evidence_layers:
            options = layer(options, memory, mask)
        options = options.view(shape).float()

        base = self.question_projection(questions).float()
        weights = (options @ base[..., None]).squeeze(-1) / math.sqrt(shape[-1])
        weights = weights.masked_fill(~option_mask, -1e9).softmax(-1)
        summary = (weights[..., None] * options).sum(2)
        fields = (base + self.option_summary_norm(summary) + self.global_projection(overall)[:, None]
                  + self.type_embedding(kinds))
        field_mask = option_mask.any(-1)
        field_mask = field_mask | ~field_mask.any(-1, keepdim=True)  # a chat has none: no empty softmax
        for layer in self.layers:
            fields = layer(fields, field_mask, memory, mask)
        fields = self.field_norm(fields.float())[:, :, None]

        anchor = F.normalize(questions + overall[:, None], dim=-1)[:, :, None]
        limit = math.log(100.0)
        prior = self.prior_logit_scale.clamp(max=limit).exp() * (
            F.normalize(lexical, dim=-1) * anchor).sum(-1)
        options = self.option_norm(options)
        fields = fields.expand_as(options)
        features = torch.cat([fields, options, fields * options, (fields - options).abs()], dim=-1)
        residual = self.residual_scorer(features).squeeze(-1).float()
        cosine = F.cosine_similarity(fields, options, dim=-1)
        joint = self.joint_logit_scale.clamp(max=limit).exp() * cosine + residual
        logits = prior + torch.sigmoid(self.residual_gate) * joint
        return logits.masked_fill(~option_mask, -math.inf)


class Clef(nn.Module):
    """Backbone, output embedding and head."""

    def __init__(self, shape):
        super().__init__()
        self.language_model = Backbone(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.joint_head = Head(shape)

    def forward(self, batch):
        hidden = self.language_model(batch["ids"])
        return hidden, self.joint_head(hidden, batch, self.lm_head.weight)


def init(model, shape, seed):
    """Random weights: small normals, the branches' last matrices smaller with depth."""
    generator = torch.Generator().manual_seed(seed)
    depth = (2 * shape.layers) ** -0.5
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("A_log"):
                parameter.uniform_(1.0, 16.0, generator=generator).log_()
            elif name.endswith("dt_bias"):
                step = torch.empty_like(parameter).uniform_(
                    math.log(1e-3), math.log(1e-1), generator=generator).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif name.endswith("conv1d.weight"):
                parameter.uniform_(-0.5, 0.5, generator=generator)
            elif parameter.ndim < 2:
                continue
            elif "joint_head" in name:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5 * 0.7, generator=generator)
            else:
                last = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                std = 0.02 if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 0.04
                parameter.normal_(0.0, std * (depth if last else 1.0), generator=generator)
    with torch.no_grad():
        model.joint_head.joint_logit_scale.fill_(math.log(8.0))


def load(path, shape):
    """Our model with a release's weights, f32."""
    model = Clef(shape).eval()
    weights = load_file(Path(path) / "model.safetensors")
    ours = {
        name.removeprefix("model."): value for name, value in weights.items() if "visual" not in name
    }
    head = load_file(Path(path) / "joint_head.safetensors")
    ours |= {f"joint_head.{name}": value for name, value in head.items()}
    model.load_state_dict({name: value.float() for name, value in ours.items()})
    return model
