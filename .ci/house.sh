#!/usr/bin/env bash
# The whole program from outside: the README's first command, a server on a free port, decisions over HTTP and on the
# command line with equal answers, and what a stranger types wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/descant
work=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
passed=0
fail() { echo "FAILED: $1"; echo "test result: FAILED. $passed passed; 1 failed"; exit 1; }
pass() { echo "ok: $1"; passed=$((passed + 1)); }

# The README's first command and the answer that it prints, both read from the README.
first=$(sed -n 's/^cargo run --release -- //p' README.md | head -n 1)
[ -n "$first" ] || fail "README.md has no line that starts with 'cargo run --release --'"
# shellcheck disable=SC2086 # The words of the command.
"$program" $first > "$work/first.json" 2> "$work/first.err" || fail "the README's first command"
grep -q "software packages only" "$work/first.err" || fail "the first command says which model answers"
python3 - "$work/first.json" <<'P' || fail "the README's first answer"
import json, re, sys
text = open(sys.argv[1]).read()
reply = json.loads(text)
assert list(reply) == ["model", "answers", "usage"], list(reply)
assert abs(sum(reply["answers"]["section"]["probabilities"].values()) - 1) < 1e-3
shown = re.search(r"```json\n(\{.*?\n\})\n```", open("README.md").read(), re.S).group(1)
assert shown == text.rstrip("\n"), f"README.md shows another answer than\n{text}"
P
pass "the README's first command gives the README's first answer"

for example in examples/*.json; do
    "$program" decide "$example" --threads 1 > "$work/one.json" 2>/dev/null || fail "$example"
    "$program" decide "$example" --threads 2 > "$work/two.json" 2>/dev/null || fail "$example with two threads"
    cmp "$work/one.json" "$work/two.json" || fail "$example: one thread and two differ"
done
pass "every example answers the same with one thread and two"

"$program" serve --port 0 2> "$work/server.err" > "$work/server.out" &
server=$!
port=
for _ in $(seq 100); do
    port=$(cat "$work/server.out" "$work/server.err" | grep -oE '127\.0\.0\.1:[0-9]+' | head -n 1 | cut -d: -f2) && [ -n "$port" ] && break
    sleep 0.1
done
[ -n "$port" ] || { cat "$work/server.err"; fail "the server says where it listens"; }
python3 - "$port" "$work" "$program" <<'P' || fail "decisions over HTTP"
import json, pathlib, subprocess, sys, threading, urllib.error, urllib.request
port, work, program = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
def post(body, path="/v1/systemone"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)
bodies = [path.read_bytes() for path in sorted(pathlib.Path("examples").glob("*.json"))]
alone = []
for body in bodies:
    status, text, headers = post(body)
    assert status == 200, (status, text)
    assert headers["x-request-id"] == headers["x-typesafe-request-id"]
    said = subprocess.run([program, "decide", "-"], input=body, capture_output=True, check=True).stdout
    assert json.loads(said)["answers"] == json.loads(text)["answers"], "the command line answers something else"
    alone.append(text)
wrong = []
def client(number):
    for turn in range(12):
        index = (number + turn) % len(bodies)
        if post(bodies[index])[1] != alone[index]:
            wrong.append(index)
threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, f"{len(wrong)} answers in company differ from those alone"
for body in (b"", b"{", b"[]", b'{"state":1}', b'{"state":1,"questions":{}}', b'{"state":"\\ud800","questions":{"a":{"type":"noul"}}}',
             b'{"state":1,"questions":{"a":{"type":"maybe"}}}', b"\xff", b"[" * 100000):
    status, text, _ = post(body)
    assert 400 <= status < 500, (body[:40], status)
    reply = json.loads(text)
    assert reply["error"]["message"] and "detail" in reply, text
assert json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"))["data"][0]["id"]
assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
P
pass "decisions over HTTP equal those of the command line, alone and in company, and bad bodies get a 4xx"
python3 - "$port" <<'P' || fail "chat over HTTP"
import json, sys, threading, urllib.request
port = sys.argv[1]
def post(path, **body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()
asked = {"messages": [{"role": "user", "content": "Say hello to 世界."}], "max_tokens": 24, "seed": 3}
whole = json.loads(post("/v1/chat/completions", **asked))
text = whole["choices"][0]["message"]["content"]
usage = whole["usage"]
assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
events = post("/v1/chat/completions", **asked, stream=True).split("\n\n")
assert events[-2:] == ["data: [DONE]", ""], events[-2:]
parts = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == text
others = []
def other(seed):
    others.append(json.loads(post("/v1/chat/completions", **{**asked, "seed": seed}))["choices"][0]["message"]["content"] == text)
threads = [threading.Thread(target=other, args=(3 if number % 2 == 0 else number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert others.count(True) >= 4, others
ids = json.loads(post("/tokenize", prompt="Hello, 世界!"))["tokens"]
assert json.loads(post("/detokenize", tokens=ids))["text"] == "Hello, 世界!"
P
pass "chat says the same whole, streamed and in company"
kill -TERM "$server" && wait "$server" || fail "the server stops cleanly"
server=
pass "the server stops cleanly"

"$program" decide examples/none.json 2> "$work/err" && fail "a missing file is an error"
grep -q none.json "$work/err" || fail "the message names the missing file"
"$program" decide examples/ticket.json -m examples 2> "$work/err" && fail "a directory that is no release is an error"
grep -q config.json "$work/err" || fail "the message names what is missing"
"$program" decide --no-such-flag 2> "$work/err" && fail "a wrong flag is an error"
pass "mistakes on the command line are named"
echo "test result: ok. $passed passed; 0 failed"
