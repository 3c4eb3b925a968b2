#!/usr/bin/env python3
"""Writes `fixtures/parquet/`: files of requests as pyarrow writes them, and beside each what its rows mean.

    python3 -m venv .cache/parquet-venv
    .cache/parquet-venv/bin/pip install -r tools/batch/requirements.txt
    .cache/parquet-venv/bin/python tools/batch/make_parquet.py

`NAME.parquet` and `NAME.jsonl.gz` hold the same requests in the same order; a row that is null or blank is the line `null`.
The files without a second one are what a reader must refuse, or whose rows it must. No seed: everything is counted out.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path(__file__).resolve().parents[2] / "fixtures" / "parquet"
WORDS = "lamp stair window door müde 灯 роза".split()
QUESTIONS = {
    "broken": {"type": "noul", "instructions": "Is it broken?"},
    "room": {"type": "choice", "criteria": {"hall": None, "attic": "Under the roof"}},
    "harm": {"type": "score", "criteria": ["none", "some", "much"]},
}


def text(number: int) -> str:
    """A state of 0 to 60 words."""
    return " ".join(WORDS[(number + at) % len(WORDS)] for at in range(number * 37 % 61))


def request(number: int) -> str | None:
    """A request as JSON text, or one of the things that are none."""
    wrong = {5: None, 6: "", 7: " \n", 8: "no JSON", 9: '{"state": 1}', 10: "[]"}
    if number % 50 in wrong:
        return wrong[number % 50]
    if number % 7 == 0:
        # The same text again and again: what a dictionary is for.
        return json.dumps({"state": "the lamp", "questions": QUESTIONS})
    body = {"state": text(number), "questions": QUESTIONS}
    return json.dumps({"request": body} if number % 11 == 0 else body, ensure_ascii=number % 2 == 0)


def write(name: str, table: pa.Table, lines: list[str] | None = None, **how) -> None:
    """Writes a file, and the lines that its rows are."""
    pq.write_table(table, OUT / f"{name}.parquet", **how)
    if lines is not None:
        text = "".join(f"{line}\n" for line in lines)
        (OUT / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def requests_snappy() -> None:
    """300 requests in five row groups of small dictionary pages, among columns that do not matter."""
    cells = [request(number) for number in range(300)]
    table = pa.table({
        "id": pa.array(range(300), pa.int64()),
        "tags": pa.array([["a"] * (number % 3) for number in range(300)], pa.list_(pa.string())),
        "request": pa.array(cells, pa.string()),
    })
    lines = ["null" if cell is None or not cell.strip() else cell for cell in cells]
    write("requests-snappy", table, lines, compression="snappy", row_group_size=64, data_page_size=512,
          use_dictionary=True, data_page_version="1.0")


def parts_zstd() -> None:
    """States as text and the same questions in every row, with nulls, in pages of the second version."""
    states = [None if number % 9 == 4 else '{"not": "parsed"}' if number % 9 == 5 else text(number) for number in range(40)]
    questions = [None if number == 17 else json.dumps(QUESTIONS) for number in range(40)]
    table = pa.table({
        "state": pa.array(states, pa.large_string()),
        "questions": pa.array(questions, pa.string()).dictionary_encode(),
    })
    lines = [json.dumps({"state": state, "questions": asked and json.loads(asked)}, ensure_ascii=False)
             for state, asked in zip(states, questions)]
    write("parts-zstd", table, lines, compression="zstd", data_page_version="2.0", row_group_size=15)


def parts_gzip() -> None:
    """States as JSON, no cell null and none from a dictionary, in the two encodings that store what differs."""
    states = [{"text": text(number), "count": number / 4, "nested": [None, True]} for number in range(40)]
    schema = pa.schema([pa.field("state_json", pa.string(), nullable=False), pa.field("questions", pa.binary(), nullable=False)])
    table = pa.table({
        "state_json": [json.dumps(state) for state in states],
        "questions": [json.dumps(QUESTIONS).encode()] * 40,
    }, schema=schema)
    lines = [json.dumps({"state": state, "questions": QUESTIONS}) for state in states]
    write("parts-gzip", table, lines, compression="gzip", use_dictionary=False,
          column_encoding={"state_json": "DELTA_BYTE_ARRAY", "questions": "DELTA_LENGTH_BYTE_ARRAY"})


def wrong() -> None:
    """Rows that are no requests, and files that are not for this reader."""
    asked = json.dumps(QUESTIONS)
    write("wrong-rows", pa.table({
        "state_json": ['"a lamp"', "a lamp", '"a lamp"', "7"],
        "questions": [asked, asked, "{", asked],
    }))
    write("wrong-text", pa.table({"state": pa.array([b"a lamp", b"\xff"], pa.binary()), "questions": [asked, asked]}))
    write("wrong-codec", pa.table({"request": [request(1)]}), compression="brotli")
    write("wrong-columns", pa.table({"prompt": ["a lamp"], "questions": [asked]}))
    write("wrong-nested", pa.table({"state": [{"text": "a lamp"}], "questions": [asked]}))
    write("wrong-both", pa.table({"state": ["a lamp"], "state_json": ["1"], "questions": [asked]}))


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    requests_snappy()
    parts_zstd()
    parts_gzip()
    wrong()
