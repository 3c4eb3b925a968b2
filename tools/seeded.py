"""Numbers from a seed, element by element, the same in every language: weights that are named instead of stored.

The definition (all integer arithmetic is modulo 2**64):

    GOLDEN = 0x9E3779B97F4A7C15
    key    = fnv1a64(name in UTF-8) + seed * GOLDEN
    z      = key + (i + 1) * GOLDEN                       # i: the element's index in row-major order
    z      = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9         # the finalizer of splitmix64
    z      = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z      = z ^ (z >> 31)
    u      = (2 * (z >> 40) + 1 - 2**24) / 2**24          # exact in f32, in (-1, 1), never 0
    value  = centre + reach * u                           # f32: one rounding after the product, one after the sum

`fnv1a64` starts at 0xCBF29CE484222325 and, for each byte, xors it in and multiplies by 0x100000001B3. Weights are then rounded to bf16,
ties to even.
"""

from __future__ import annotations

import math

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def fnv1a64(text: str) -> int:
    """Returns the 64-bit FNV-1a hash of a text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def uniform(name: str, seed: int, start: int, count: int, centre: float, reach: float) -> np.ndarray:
    """Returns elements `start .. start + count` of a tensor as f32, uniform in (centre - reach, centre + reach)."""
    key = np.uint64((fnv1a64(name) + seed * GOLDEN) & MASK)
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(GOLDEN)
    z += key
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u = (2 * (z >> np.uint64(40)).astype(np.int64) + 1 - 2**24).astype(np.float32) / np.float32(2**24)
    return u * np.float32(reach) + np.float32(centre)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounds finite f32 values to bf16, ties to even, and returns the 16-bit patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Widens bf16 bit patterns to f32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def head_rule(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Returns (centre, reach) of a tensor of the joint schema head, by its `state_dict` name.

    Matrices get `1.5 * 2**-(floor(log2(columns)) // 2)`, which keeps the size of what flows through them.
    """
    if not shape:
        return {"prior_logit_scale": (1.0, 0.0), "joint_logit_scale": (1.5, 0.0), "residual_gate": (0.5, 0.0)}[name]
    if name == "type_embedding.weight":
        return 0.0, 0.5
    if len(shape) == 2:
        return 0.0, 1.5 * 2.0 ** -((shape[1].bit_length() - 1) // 2)
    return (1.0, 0.25) if name.endswith("weight") else (0.0, 0.125)


def backbone_rule(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Returns (centre, reach) of a backbone tensor: sizes that keep every stage of the computation at work."""
    if name.endswith(("embed_tokens.weight", "pos_embed.weight")):
        return 0.0, 1.5
    if name.endswith("A_log"):
        return 0.5, 1.0
    if name.endswith("dt_bias"):
        return -2.0, 1.5
    if name.endswith("linear_attn.norm.weight") or (".visual." in name and ".norm" in name and name.endswith("weight")):
        return 1.0, 0.25
    if len(shape) == 1:
        return 0.0, 0.25
    columns = math.prod(shape[1:])
    return 0.0, 1.75 / math.sqrt(columns)
