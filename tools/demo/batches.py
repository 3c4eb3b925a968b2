"""Padded batches of encoded records, and the endless stream of them that training reads."""

import random

import numpy as np
import torch

import records

PAD = 5040  # <|endoftext|>; padding is masked, so any id would do


def collate(items, round_to=64):
    """Right-pad encoded records into one batch of tensors; see `model.Head.forward` for shapes."""
    length = max(len(item.ids) for item in items)
    length += -length % round_to
    most = max(1, max(len(item.kinds) for item in items))
    widest = max([2, *(len(spans) for item in items for spans in item.options)])
    ids = np.full((len(items), length), PAD, np.int64)
    kinds = np.zeros((len(items), most), np.int64)
    spans = np.tile(np.array([0, 1], np.int64), (len(items), most, 1))
    option_spans = np.tile(np.array([0, 1], np.int64), (len(items), most, widest, 1))
    option_mask = np.zeros((len(items), most, widest), bool)
    targets = np.full((len(items), most), -1, np.int64)
    states = np.zeros((len(items), 2), np.int64)
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = item.ids
        states[row] = item.state
        for column, (kind, span, offered) in enumerate(zip(item.kinds, item.spans, item.options)):
            kinds[row, column] = kind
            spans[row, column] = span
            option_spans[row, column, : len(offered)] = offered
            option_mask[row, column, : len(offered)] = True
        targets[row, : len(item.targets)] = item.targets
    arrays = {"ids": ids, "kinds": kinds, "spans": spans, "option_spans": option_spans,
              "option_mask": option_mask, "targets": targets, "states": states,
              "lengths": np.array([len(item.ids) for item in items], np.int64)}
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def cut(items, tokens):
    """Group items of like length so that a padded batch holds at most `tokens` (or one item)."""
    groups, group = [], []
    for item in sorted(items, key=lambda item: -len(item.ids)):
        longest = len(group[0].ids) if group else 0
        full = (len(group) + 1) * (longest + 63) > tokens
        if group and (full or len(item.ids) + 64 < 0.7 * longest):
            groups.append(group)
            group = []
        group.append(item)
    return [*groups, group]


class Stream(torch.utils.data.IterableDataset):
    """An endless stream of batches; every loader process draws from its own seed."""

    def __init__(self, pool, encoder, tokens, seed, limit=4096):
        self.pool, self.encoder = pool, encoder
        self.tokens, self.seed, self.limit = tokens, seed, limit

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.seed} {info.id if info else 0}")
        while True:
            items, size = [], 0
            while size < 8 * self.tokens:
                kind, item = records.training_item(rng, self.pool)
                encode = self.encoder.chat if kind == "chat" else self.encoder.record
                items.append(encode(item, self.limit) if kind == "record" else encode(item))
                size += len(items[-1].ids)
            groups = cut(items, self.tokens)
            rng.shuffle(groups)
            yield from map(collate, groups)
