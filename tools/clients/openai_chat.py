#!/usr/bin/env python3
"""Talks to a running server through the unmodified `openai` package: chat, streams, completions, errors.

    python3 -m venv .clients && .clients/bin/pip install openai==3.57.0
    target/release/descant serve --port 8000 &
    .clients/bin/python tools/clients/openai_chat.py http://127.0.0.1:8000/v1

Prints a line for each check and exits with 1 at the first that fails.
"""

from __future__ import annotations

import json
import sys

import openai

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello to 世界 🙂."}]


def check(what: str, holds: bool, found: object = "") -> None:
    """Prints what was checked; ends the program if it does not hold."""
    print(f"{'ok' if holds else 'FAILED'}: {what}{'' if holds else f': {found!r}'}")
    if not holds:
        raise SystemExit(1)


def chat(client: openai.OpenAI, model: str) -> None:
    """Chat, whole and as a stream."""
    terms = {"model": model, "messages": MESSAGES, "max_tokens": 24, "seed": 5, "temperature": 0.8}
    whole = client.chat.completions.create(**terms, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    check("a chat completion parses", choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"))
    check("usage adds up", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)
    check("log-probabilities come with each token", all(len(t.top_logprobs) == 2 for t in choice.logprobs.content))
    check("a request id is there", bool(whole._request_id))

    parts = list(client.chat.completions.create(**terms, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    check("the stream says the same", text == choice.message.content, (text, choice.message.content))
    check("the stream ends with usage", parts[-1].usage is not None and not parts[-1].choices)
    check("the stream gives one reason to end", [p.choices[0].finish_reason for p in parts if p.choices][-1] == choice.finish_reason)
    if len(text) > 4:
        stop = text[2:4]
        stopped = client.chat.completions.create(**terms, stop=[stop])
        check("a stop string stops", stopped.choices[0].message.content == text[: text.index(stop)], stopped)
    thinking = client.chat.completions.create(
        **terms, extra_body={"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "min_p": 0.01}
    )
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    bound = client.chat.completions.create(
        **{**terms, "max_tokens": 200}, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    if bound.choices[0].finish_reason == "stop":
        found = json.loads(bound.choices[0].message.content)
        check("bound text follows its schema", isinstance(found["ok"], bool), found)
    check("extra fields are taken", thinking.choices[0].finish_reason in ("stop", "length"))


def completions(client: openai.OpenAI, model: str) -> None:
    """Completions, whole and as a stream."""
    terms = {"model": model, "prompt": "Once upon a time", "max_tokens": 16, "seed": 5}
    whole = client.completions.create(**terms, logprobs=2)
    check("a completion parses", whole.object == "text_completion" and whole.usage.completion_tokens <= 16)
    check("its tokens are listed", len(whole.choices[0].logprobs.tokens) == len(whole.choices[0].logprobs.token_logprobs))
    text = "".join(part.choices[0].text for part in client.completions.create(**terms, stream=True))
    check("its stream says the same", text == whole.choices[0].text, (text, whole.choices[0].text))


def errors(client: openai.OpenAI, model: str) -> None:
    """Errors arrive as the package's own exceptions."""
    for what, wanted, terms in [
        ("an unknown model is not found", openai.NotFoundError, {"model": "gpt-6", "messages": MESSAGES}),
        ("a wrong field is a bad request", openai.BadRequestError, {"model": model, "messages": MESSAGES, "temperature": -1}),
        ("two choices are refused", openai.BadRequestError, {"model": model, "messages": MESSAGES, "n": 2}),
        ("too long a prompt is a bad request", openai.BadRequestError, {"model": model, "messages": [{"role": "user", "content": "word " * 200_000}]}),
    ]:
        try:
            client.chat.completions.create(**terms)
            check(what, False, "an answer")
        except openai.APIStatusError as error:
            check(what, isinstance(error, wanted) and bool(error.message), error)


def main() -> None:
    """Runs all checks against the server at the given address."""
    base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    for run in (chat, completions, errors):
        run(client, model)


if __name__ == "__main__":
    main()
