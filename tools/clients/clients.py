#!/usr/bin/env python3
"""Calls a running server with the unmodified Python clients of the field. usage: clients.py BASE_URL

Each check is a call as its client's documentation shows it; what the client parses is looked at, and what it sent."""

import base64
import sys
import traceback
from collections.abc import Callable

BASE = sys.argv[1].rstrip("/")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
STATE = {"ticket": "I was charged twice. Please fix this ASAP.", "order": 7731}
LONG = {"ticket": "I was charged twice. " * 200}
checks: list[tuple[str, str, Callable[[], None]]] = []


def check(client: str, name: str):
    """Registers a check."""
    def register(run: Callable[[], None]) -> Callable[[], None]:
        checks.append((client, name, run))
        return run
    return register


# typesafe-sdk

import typesafe_sdk as ts  # noqa: E402

QUESTIONS = {
    "urgent": ts.Noul(instructions="Is it urgent?", criteria={"true": "Yes", "false": None}),
    "category": ts.Choice(instructions="What is it about?", criteria={"billing": None, "technical": "Bugs", "other": None}),
    "anger": ts.Score(instructions="How angry is the writer?", criteria=["Calm", "Annoyed", "Furious"]),
}
sent: list[dict] = []


def typesafe(**options) -> ts.TypeSafeClient:
    """A client that notes the headers it sends."""
    import httpx2

    hooks = {"request": [lambda request: sent.append(dict(request.headers))]}
    return ts.TypeSafeClient(api_key="local", base_url=BASE, http_client=httpx2.Client(event_hooks=hooks), **options)


def look(response: ts.SystemOneResponse) -> None:
    """What every reply has."""
    assert set(response.nouls) == {"urgent"} and 0 <= response.nouls["urgent"].noul <= 1
    category = response.choices["category"]
    assert list(category.probabilities) == ["billing", "technical", "other"]
    assert category.choice == max(category.probabilities, key=category.probabilities.get)
    assert abs(sum(category.probabilities.values()) - 1) < 1e-6
    anger = response.scores["anger"]
    assert list(anger.legend.values()) == ["Calm", "Annoyed", "Furious"]
    assert 0 <= anger.score <= 2 and 0 <= anger.confidence <= 1
    assert response.usage.input_tokens > 0 and response.usage.output_tokens == 0
    assert response.request_id.startswith("req_")


@check("typesafe-sdk", "every type of question")
def _():
    with typesafe() as client:
        look(client.system_one(state=STATE, questions=QUESTIONS))


@check("typesafe-sdk", "a body packed with zstd")
def _():
    sent.clear()
    with typesafe(compression="zstd") as client:
        look(client.system_one(state=LONG, questions=QUESTIONS))
    assert sent[0]["content-encoding"] == "zstd", sent


@check("typesafe-sdk", "the same answers packed and plain")
def _():
    with typesafe(compression="zstd") as packed, typesafe(compression=False) as plain:
        one, other = (client.system_one(state=LONG, questions=QUESTIONS) for client in (packed, plain))
    assert one.choices == other.choices and one.nouls == other.nouls and one.scores == other.scores


@check("typesafe-sdk", "asynchronously")
def _():
    import asyncio

    async def ask():
        async with ts.AsyncTypeSafeClient(api_key="local", base_url=BASE) as client:
            return await client.system_one(state=STATE, questions=QUESTIONS)
    look(asyncio.run(ask()))


@check("typesafe-sdk", "a picture is refused at once, with its place")
def _():
    sent.clear()
    with typesafe() as client:
        try:
            client.system_one(state={"photo": ts.Image(PNG)}, questions=QUESTIONS)
        except ts.TypeSafeUnprocessableEntityError as error:
            assert "assets" in str(error), error
        else:
            raise AssertionError("a picture was answered without being seen")
    assert len(sent) == 1, "it was sent again"
    assert sent[0]["content-type"].startswith("multipart/form-data"), sent


@check("typesafe-sdk", "a wrong model is a bad request")
def _():
    with typesafe(model="no-such-model") as client:
        try:
            client.system_one(state=STATE, questions=QUESTIONS)
        except ts.TypeSafeBadRequestError as error:
            assert "Unknown model" in str(error), error
        else:
            raise AssertionError("an unknown model answered")


@check("typesafe-sdk", "the list of models")
def _():
    with typesafe() as client:
        assert "jev-latest" in [model.name for model in client.models.list().models]


# openai

import openai  # noqa: E402


def decisions(**body):
    """A call of the Decisions API."""
    return openai.OpenAI(api_key="local", base_url=f"{BASE}/v1").decisions.create(model="clef-flash", **body)


OPENAI_QUESTIONS = [
    {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
    {"type": "choice", "name": "refund", "instructions": "Approve a refund?",
     "choices": [{"value": True}, {"value": False, "description": "Deny"}, {"value": "ask"}]},
    {"type": "score", "instructions": "How angry?", "levels": [{"label": "Calm"}, {"label": "Furious", "description": "Swears"}]},
]


@check("openai", "decisions about a text")
def _():
    decision = decisions(input="I was charged twice.", questions=OPENAI_QUESTIONS)
    urgent, refund, anger = decision.answers
    assert urgent.name == "urgent" and 0 <= urgent.probability <= 1
    assert [p.value for p in refund.probabilities] == [True, False, "ask"]
    assert refund.choice in (True, False, "ask") and 0 <= refund.confidence <= 1
    assert anger.name is None and [p.label for p in anger.probabilities] == ["Calm", "Furious"]
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0
    assert decision._request_id.startswith("req_")


@check("openai", "decisions about a conversation with JSON and a call")
def _():
    decision = decisions(questions=OPENAI_QUESTIONS, input=[
        {"role": "developer", "content": "Be fair."},
        {"role": "user", "content": [{"type": "input_text", "text": "Order:"}, {"type": "input_json", "data": {"id": 7731}}]},
        {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "charged twice"}])
    assert len(decision.answers) == 3


@check("openai", "errors are of the right class")
def _():
    client = openai.OpenAI(api_key="local", base_url=f"{BASE}/v1", max_retries=0)
    for model, questions, wanted in [
            ("gpt-none", OPENAI_QUESTIONS, openai.NotFoundError),
            ("clef-flash", [{"type": "choice", "instructions": "x", "choices": [{"value": "one"}]}], openai.BadRequestError)]:
        try:
            client.decisions.create(model=model, input="x", questions=questions)
        except wanted as error:
            assert error.body["message"], error.body
        else:
            raise AssertionError(f"no {wanted.__name__}")


@check("openai", "the list of models")
def _():
    client = openai.OpenAI(api_key="local", base_url=f"{BASE}/v1")
    names = [model.id for model in client.models.list()]
    assert names and client.models.retrieve(names[0]).id == names[0]


# langchain-openai

@check("langchain-openai", "decisions by name")
def _():
    from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score

    runnable = OpenAIDecisions(model="clef-flash", api_key="local", base_url=f"{BASE}/v1")
    response = runnable.invoke({
        "input": "Stripe has failed to connect for three days.",
        "questions": {
            "department": Choice(instructions="Which team?", choices={"billing": "Payments", "technical": "Bugs"}),
            "urgent": Predicate(instructions="Is it urgent?"),
            "frustration": Score(instructions="How frustrated?", levels=["Calm", "Concerned", "Angry"]),
        }})
    assert response.choices["department"].choice in ("billing", "technical")
    assert 0 <= response.predicates["urgent"].probability <= 1
    assert 0 <= response.scores["frustration"].score <= 2


@check("langchain-openai", "decisions about a structured state")
def _():
    from langchain_openai.decisions import OpenAIDecisions, Predicate

    runnable = OpenAIDecisions(model="clef-flash", api_key="local", base_url=f"{BASE}/v1")
    response = runnable.invoke({"input": {"order": 7731, "lines": [1, 2]}, "questions": {"big": Predicate(instructions="Is it big?")}})
    assert 0 <= response.predicates["big"].probability <= 1


# systemone-client

@check("systemone-client", "every type of question, without a model's name")
def _():
    import systemone

    with systemone.Client(BASE, api_key="local") as client:
        response = client.system_one(state=STATE, questions={
            "urgent": systemone.Noul("Is it urgent?"),
            "category": systemone.Choice("What is it about?", {"billing": "Money", "other": None}),
            "anger": systemone.Score("How angry?", ["Calm", "Furious"])})
    assert 0 <= response.nouls["urgent"].noul <= 1
    assert response.choices["category"].choice in ("billing", "other")
    assert 0 <= response.scores["anger"].score <= 1


def main() -> int:
    """Runs all checks; 1 if one failed."""
    failed = 0
    for client, name, run in checks:
        try:
            run()
            print(f"ok: {client}: {name}")
        except Exception:
            failed += 1
            print(f"FAILED: {client}: {name}\n{traceback.format_exc()}")
    print(f"test result: {'FAILED' if failed else 'ok'}. {len(checks) - failed} passed; {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
