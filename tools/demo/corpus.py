"""Read apt's package lists into one compact corpus file.

    python corpus.py LISTS corpus.jsonl.xz

One JSON line a package of the stable suite's `main`, sorted by name:

    name     binary package
    family   source package without its version numbers: `gcc-11` and `gcc-12` are both `gcc`
    split    train, valid or test, from a hash of the family
    section, arch, size (installed, KiB), depends (names, no versions), tags (debtags)
    users    how many other families depend on or recommend the package
    texts    {language: [summary, description]}

Maintainers' names are not read, and mail addresses are cut out of the descriptions: the model has
no use for personal data.
"""

import argparse
import collections
import hashlib
import json
import lzma
import re
from pathlib import Path

LANGUAGES = ("en", "de", "fr", "es", "it", "ja", "pl", "pt_BR", "ru")
TEST_SHARE, VALID_SHARE = 0.05, 0.02
MAIL = re.compile(r"\s*[<(]?[\w.+-]+@[\w-]+\.[\w.-]+[>)]?")
VERSION_TAIL = re.compile(r"[-.]?v?\d[\d.]*$")


def without_mail(text):
    """The text with mail addresses cut out."""
    return MAIL.sub("", text) if "@" in text else text


def stanzas(path):
    """Yield the stanzas of a Debian control file as dicts; continuation lines keep their breaks."""
    fields, key = {}, None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if not line:
                if fields:
                    yield fields
                fields, key = {}, None
            elif line[0] in " \t":
                fields[key] += "\n" + line
            else:
                key, _, value = line.partition(":")
                fields[key] = value.strip()
    if fields:
        yield fields


def unfold(text):
    """Join the wrapped lines of a description into paragraphs; indented lines stay as they are."""
    paragraphs, current = [], []
    for line in text.split("\n"):
        if line.strip() == ".":
            paragraphs.append(current)
            current = []
        elif line.startswith("  ") or not current or current[-1].startswith("  "):
            current.append(line[1:] if line.startswith("  ") else line.strip())
        else:
            current[-1] += " " + line.strip()
    paragraphs.append(current)
    joined = ("\n".join(p).strip() for p in paragraphs)
    return [without_mail(p) for p in joined if p]


def names(field):
    """Package names of a dependency field, versions and architectures dropped, in order, once."""
    found = re.split(r"[,|]", field)
    cleaned = (re.sub(r"[\s(:\[].*", "", item.strip()) for item in found)
    return list(dict.fromkeys(name for name in cleaned if name))


def family_of(source):
    """`llvm-toolchain-14` → `llvm-toolchain`; a name that is all version stays as it is."""
    previous = None
    while previous != source:
        previous = source
        stripped = VERSION_TAIL.sub("", source)
        source = stripped if len(stripped) > 1 else source
    return source


def split_of(family):
    """The split of a family: the first 8 bytes of a SHA-256, read as a fraction."""
    digest = hashlib.sha256(b"descant demo split " + family.encode()).digest()
    fraction = int.from_bytes(digest[:8], "big") / 2**64
    if fraction < TEST_SHARE:
        return "test"
    return "valid" if fraction < TEST_SHARE + VALID_SHARE else "train"


def list_file(lists, ending):
    """The list of the base suite: the one whose suite name is the shortest."""
    found = [p for p in Path(lists).glob(f"*_main_{ending}") if "debian" in p.name]
    if not found:
        raise SystemExit(f"{lists}: no file ends in _main_{ending}; run fetch.sh first")
    return min(found, key=lambda p: (len(p.name), p.name))


def read_texts(lists):
    """{(package, md5): {language: [summary, paragraphs]}} of every translation."""
    texts = collections.defaultdict(dict)
    for language in LANGUAGES:
        path = list_file(lists, f"i18n_Translation-{language.replace('_', '%5f')}")
        for stanza in stanzas(path):
            body = stanza.get(f"Description-{language}")
            if body:
                summary, _, long = body.partition("\n")
                key = (stanza["Package"], stanza["Description-md5"])
                texts[key][language] = [without_mail(summary.strip()), unfold(long)]
    return texts


def keep_translated(texts):
    """Drop what a translator left in English, and then every text too short to be worth reading."""
    english = texts.get("en")
    if english is None:
        return {}
    kept = {"en": [english[0], "\n\n".join(english[1])]}
    left = set(english[1])
    for language, (summary, paragraphs) in texts.items():
        own = [p for p in paragraphs if p not in left]
        if language != "en" and summary != english[0] and sum(map(len, own)) >= 40:
            kept[language] = [summary, "\n\n".join(own)]
    return kept


def build(lists):
    """The corpus rows, in name order."""
    texts = read_texts(lists)
    rows, families, users = {}, {}, collections.defaultdict(set)
    for stanza in stanzas(list_file(lists, "binary-amd64_Packages")):
        name = stanza["Package"]
        source = stanza.get("Source", name).split(" ")[0]
        families[name] = family_of(source)
        needs = ", ".join(stanza.get(f, "") for f in ("Pre-Depends", "Depends", "Recommends"))
        for other in names(needs):
            users[other].add(families[name])
        tags = re.split(r",\s*", stanza.get("Tag", "").replace("\n", " ").strip())
        rows[name] = {
            "name": name,
            "family": families[name],
            "split": split_of(families[name]),
            "section": stanza["Section"].split("/")[-1],
            "arch": stanza["Architecture"],
            "size": int(stanza.get("Installed-Size", 0)),
            "depends": names(stanza.get("Depends", "")),
            "tags": sorted(t for t in tags if t and not t.endswith("::TODO")),
            "texts": keep_translated(texts.get((name, stanza.get("Description-md5")), {})),
        }
    for name, row in rows.items():
        row["users"] = len(users[name] - {row["family"]})
    return [rows[name] for name in sorted(rows) if rows[name]["texts"]]


def load(path):
    """Read a corpus file back."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lists")
    parser.add_argument("out")
    args = parser.parse_args()
    rows = build(args.lists)
    with lzma.open(args.out, "wt", encoding="utf-8", preset=6) as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    splits = collections.Counter(row["split"] for row in rows)
    texts = collections.Counter(language for row in rows for language in row["texts"])
    print(f"{len(rows)} packages, {sum(bool(r['tags']) for r in rows)} with tags; {dict(splits)}")
    print(f"texts: {dict(texts)}")


if __name__ == "__main__":
    main()
