"""The Clef record encoding: every piece of a prompt is tokenised alone, spans are noted on the way.

Written from the format's description; `check.py` compares it with the release's own Python.
"""

import functools
import json
from dataclasses import dataclass, field

SYSTEM = (
    "Read the complete state and schema. Decide every field jointly. "
    "Each answer must be exactly one of that field's allowed options."
)
PREFIX = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nSTATE:\n"
SUFFIX = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"
KINDS = {"noul": 0, "choice": 1, "score": 2}
NOUL_DEFAULTS = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}


def render(value):
    """A string as it is; anything else as compact JSON with sorted keys."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def options_of(question):
    """The options of a question in the model's order: pairs of id and description."""
    if question["type"] == "noul":
        described = NOUL_DEFAULTS | (question.get("criteria") or {})
        return [(key, described[key]) for key in ("true", "false")]
    if question["type"] == "choice":
        return sorted(question["criteria"].items())
    return [(str(i), text) for i, text in enumerate(question["criteria"])]


def option_text(key, description):
    """What an option looks like in the prompt."""
    body = {"option_id": key} | ({} if description is None else {"description": description})
    return render(body)


@dataclass
class Encoded:
    """Token ids and half-open spans; `targets` is filled for records with expected answers."""

    ids: list
    state: tuple
    kinds: list = field(default_factory=list)
    spans: list = field(default_factory=list)
    options: list = field(default_factory=list)
    targets: list = field(default_factory=list)


class Encoder:
    """Encodes records and chats with one tokenizer; short pieces are remembered."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.piece = functools.lru_cache(maxsize=200_000)(self.tokens)
        self.prefix = self.tokens(PREFIX)
        self.suffix = self.tokens(SUFFIX)

    def tokens(self, text):
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def schema(self, questions, encoded):
        """Append the question part of the prompt to `encoded`, noting every span."""
        ids = encoded.ids
        ids.extend(self.piece("\n\nSCHEMA FIELDS:\n"))
        for number, (key, question) in enumerate(questions.items(), 1):
            head = f"\nFIELD {number}\nID: {key}\nTYPE: {question['type']}\nINSTRUCTION: "
            ids.extend(self.piece(head))
            asked = question.get("instructions")
            start = len(ids)
            ids.extend(self.piece(render(key if asked in (None, "") else asked)))
            encoded.kinds.append(KINDS[question["type"]])
            encoded.spans.append((start, len(ids)))
            ids.extend(self.piece("\nALLOWED OPTIONS:\n"))
            spans = []
            for place, (name, description) in enumerate(options_of(question), 1):
                ids.extend(self.piece(f"OPTION {place}: "))
                start = len(ids)
                ids.extend(self.piece(option_text(name, description)))
                spans.append((start, len(ids)))
                ids.extend(self.piece("\n"))
            encoded.options.append(spans)
            ids.extend(self.piece("END FIELD\n"))

    def record(self, record, limit=16384):
        """Encode a record; the state is cut at its end to fit `limit` tokens."""
        tail = Encoded([], (0, 0))
        self.schema(record["questions"], tail)
        room = limit - len(self.prefix) - len(tail.ids) - len(self.suffix)
        if room < 0:
            raise ValueError(f"the questions take {-room} tokens more than the limit of {limit}")
        state = self.tokens(render(record["state"]))[:room]
        shift = len(self.prefix) + len(state)
        encoded = Encoded([*self.prefix, *state, *tail.ids, *self.suffix],
                          (len(self.prefix), shift), tail.kinds)
        encoded.spans = [(a + shift, b + shift) for a, b in tail.spans]
        encoded.options = [[(a + shift, b + shift) for a, b in spans] for spans in tail.options]
        for key, question in record["questions"].items():
            if "expected" in record:
                names = [name for name, _ in options_of(question)]
                answer = record["expected"][key]
                spelled = str(answer).lower() if isinstance(answer, bool) else str(answer)
                encoded.targets.append(names.index(spelled))
        return encoded

    def chat(self, pair, limit=1024):
        """Encode one turn of a chat as the chat template writes it, for the language-model loss."""
        asked, reply = pair
        head = self.tokens(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
                           "<think>\n\n</think>\n\n")
        ids = [*head, *self.tokens(f"{reply}<|im_end|>\n")][:limit]
        return Encoded(ids, (3, len(ids)))
