"""Padded batches of encoded records, and the endless stream of them that training reads."""

import random

import numpy as np
import torch

import records

PAD = 5040  # <|endoftext|>; padding is masked, so any id would do
# Training pads to one of these lengths, so that every step has one of few shapes.
LENGTHS = (192, 320, 448, 576, 704, 832, 1024, 1536, 4096)
QUESTIONS, OPTIONS = 8, 10  # the most that `records` makes


def collate(items, length=None, questions=None, options=None):
    """Right-pad encoded records into one batch; see `model.Head.forward` for shapes."""
    longest = max(len(item.ids) for item in items)
    length = length or longest - longest % -64
    questions = questions or max(1, max(len(item.kinds) for item in items))
    options = options or max([2, *(len(spans) for item in items for spans in item.options)])
    ids = np.full((len(items), length), PAD, np.int64)
    kinds = np.zeros((len(items), questions), np.int64)
    spans = np.tile(np.array([0, 1], np.int64), (len(items), questions, 1))
    option_spans = np.tile(np.array([0, 1], np.int64), (len(items), questions, options, 1))
    option_mask = np.zeros((len(items), questions, options), bool)
    targets = np.full((len(items), questions), -1, np.int64)
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
    """An endless stream of batches of about `tokens` padded tokens, each of one of `LENGTHS`.

    Every loader process draws from its own seed. An item longer than the last length is passed over.
    """

    def __init__(self, pool, encoder, tokens, seed):
        self.pool, self.encoder, self.tokens, self.seed = pool, encoder, tokens, seed

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.seed} {info.id if info else 0}")
        waiting = {length: [] for length in LENGTHS}
        while True:
            kind, item = records.training_item(rng, self.pool)
            item = self.encoder.chat(item) if kind == "chat" else self.encoder.record(item)
            length = next((size for size in LENGTHS if len(item.ids) <= size), None)
            if length is None:
                continue
            waiting[length].append(item)
            if len(waiting[length]) == max(1, self.tokens // length):
                yield collate(waiting[length], length, QUESTIONS, OPTIONS)
                waiting[length] = []
