"""Train the model's byte-level BPE tokenizer on training records.

    python tokenizer.py corpus.jsonl.xz OUT

The pre-tokenizer's pattern, the normaliser and the added tokens are those of the Qwen3.5 family as
Clef's own tokenizer.json has them; the vocabulary is trained here, from the training split alone.
"""

import argparse
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

import corpus
import labels
import prompts
import records

BPE_SIZE = 5040
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# (token, special): in the family's order; the others match in text too but are not skipped.
ADDED = (
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<|object_ref_start|>", True), ("<|object_ref_end|>", True), ("<|box_start|>", True),
    ("<|box_end|>", True), ("<|quad_start|>", True), ("<|quad_end|>", True),
    ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
    ("<|image_pad|>", True), ("<|video_pad|>", True), ("<tool_call>", False),
    ("</tool_call>", False), ("<|fim_prefix|>", False), ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False), ("<|fim_pad|>", False), ("<|repo_name|>", False),
    ("<|file_sep|>", False), ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False), ("<|audio_start|>", True), ("<|audio_end|>", True),
    ("<tts_pad>", True), ("<tts_text_bos>", True), ("<tts_text_eod>", True),
    ("<tts_text_bos_single>", True), ("<|audio_pad|>", True),
)


def texts(rows, count, seed):
    """Texts to learn merges from: states, and the schema's pieces as they stand in prompts."""
    rng = random.Random(seed)
    counts = labels.subject_counts([row for row in rows if row["split"] == "train"])
    pool = records.Pool(rows, "train", counts)
    yield prompts.SYSTEM
    for _ in range(count):
        kind, item = records.training_item(rng, pool)
        if kind == "chat":
            yield from item
            continue
        yield prompts.render(item["state"])
        for number, (key, question) in enumerate(item["questions"].items(), 1):
            yield (f"\nFIELD {number}\nID: {key}\nTYPE: {question['type']}\nINSTRUCTION: "
                   f"\nALLOWED OPTIONS:\nEND FIELD\n")
            for place, (name, description) in enumerate(prompts.options_of(question), 1):
                yield f"OPTION {place}: "
                yield prompts.option_text(name, description)


def train(rows, count, seed):
    """The trained tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False)
    tokenizer.train_from_iterator(texts(rows, count, seed), trainer)
    if tokenizer.get_vocab_size() != BPE_SIZE:
        raise SystemExit(f"{tokenizer.get_vocab_size()} tokens learned, {BPE_SIZE} wanted")
    tokenizer.add_tokens([
        AddedToken(token, special=special, normalized=False) for token, special in ADDED
    ])
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = train(corpus.load(args.corpus), args.records, args.seed)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(Path(args.out) / "tokenizer.json"))
    sample = "Vim is an almost compatible version of the UNIX editor Vi. Ein Texteditor. 文書処理"
    print(f"{tokenizer.get_vocab_size()} tokens; {len(tokenizer.encode(sample).ids)} in: {sample}")


if __name__ == "__main__":
    main()
