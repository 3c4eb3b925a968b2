// Calls a running server with the unmodified @typesafe-ai/sdk. usage: NODE_MODULES=DIR node client.mjs BASE_URL

import { ok, deepStrictEqual as same } from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

const { APIError, TypeSafeClient, choice, noul, score } = createRequire(join(process.env.NODE_MODULES, "x.js"))("@typesafe-ai/sdk");
const client = new TypeSafeClient({ apiKey: "local", baseURL: process.argv[2] });
const state = { document: "I was charged twice. Please fix this ASAP." };
let failed = 0;
let passed = 0;

async function check(name, run) {
  try {
    await run();
    passed += 1;
    console.log(`ok: @typesafe-ai/sdk: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED: @typesafe-ai/sdk: ${name}\n${error.stack}`);
  }
}

await check("every type of question", async () => {
  const { answers, usage } = await client.systemOne({
    state,
    questions: {
      urgent: noul("Is it urgent?"),
      category: choice("What is it about?", { billing: null, technical: "Bugs", other: null }),
      anger: score("How angry is the writer?", ["Calm", "Annoyed", "Furious"]),
    },
  });
  ok(answers.urgent.noul >= 0 && answers.urgent.noul <= 1);
  same(Object.keys(answers.category.probabilities), ["billing", "technical", "other"]);
  ok(answers.category.choice in answers.category.probabilities);
  ok(answers.anger.score >= 0 && answers.anger.score <= 2);
  ok(usage.input_tokens > 0);
});

await check("a yes/no question without instructions", async () => {
  const { answers } = await client.systemOne({ state: null, questions: { urgent: { type: "noul", instructions: null } } });
  ok(answers.urgent.noul >= 0);
});

await check("the list of models", async () => {
  const listed = await client.models.list();
  ok(JSON.stringify(listed).includes("jev-latest"), JSON.stringify(listed));
});

await check("a wrong request is an APIError", async () => {
  try {
    await client.systemOne({ state, questions: { a: { type: "choice", instructions: "x", criteria: {} } } });
  } catch (error) {
    ok(error instanceof APIError && error.status === 422, String(error));
    return;
  }
  throw new Error("an empty choice was answered");
});

console.log(`test result: ${failed ? "FAILED" : "ok"}. ${passed} passed; ${failed} failed`);
process.exit(failed ? 1 : 0);
