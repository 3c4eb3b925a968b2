// The page that the server shows at /: a form that makes a System One body, sends it, and draws what comes back.
// No library, no build step, nothing loaded from elsewhere. Client text only ever enters the page as text nodes.
"use strict";

const EXAMPLES = {
  "A support ticket": {
    state: "Since yesterday's update the export button does nothing. We present the quarterly numbers to the board in two hours. Order 7731.",
    questions: {
      urgent: { type: "noul", instructions: "Does the writer need help within the same day?" },
      team: {
        type: "choice", instructions: "Which team should take this?",
        criteria: { platform: "Product defects and outages", billing: "Invoices, refunds, plan changes", success: "How-to questions and training" },
      },
      severity: {
        type: "score", instructions: "How badly is the customer's work affected?",
        criteria: ["A cosmetic flaw", "An annoyance with a way around it", "Work is blocked"],
      },
    },
  },
  "An agent's tool call": {
    state: { tool: "shell", arguments: { command: "rm -rf build && make release" }, user_request: "Please make a fresh release build.", working_directory: "project" },
    questions: {
      asked_for: { type: "noul", instructions: "Does the call do what the user asked for?" },
      reversible: { type: "noul", instructions: "Can what the call changes be restored without a backup?" },
      verdict: {
        type: "choice", instructions: "What should happen to the call?",
        criteria: { allow: "Harmless and asked for", ask: "A person should confirm it first", block: "Harmful or not asked for" },
      },
    },
  },
  "A comment to moderate": {
    state: "Great write-up, although the second chart is upside down. Did nobody look at it before it went out?",
    questions: {
      insult: { type: "noul", instructions: "Does the comment insult a person?" },
      tone: { type: "score", instructions: "How friendly is the tone?", criteria: ["Hostile", "Cold", "Neutral", "Friendly"] },
    },
  },
  "A line of a log": {
    state: { time: "2026-10-01T03:12:44Z", service: "checkout", level: "error", message: "connection to db-2 refused, 14 attempts", error_rate: 0.37, deploys_last_hour: 1 },
    questions: {
      page: { type: "noul", instructions: "Should the engineer on call be woken?" },
      cause: {
        type: "choice", instructions: "Most likely cause",
        criteria: { bad_deploy: null, database_down: null, network_partition: null, disk_full: null },
      },
    },
  },
  "A software package": {
    state: "Package: mtr\nDescription: Full screen ncurses traceroute tool\n mtr combines the functionality of the 'traceroute' and 'ping' programs in a single network diagnostic tool.",
    questions: {
      library: { type: "noul", instructions: "Is this package a library for other programs?" },
      section: {
        type: "choice", instructions: "Which section of the archive does it belong to?",
        criteria: { net: "Network clients and tools", games: "Games and amusements", editors: "Text editors", math: "Mathematics" },
      },
    },
  },
};

const $ = (id) => document.getElementById(id);
let lastReply = "";
let shownCode = "curl";

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// ---- the form ----

function addOption(card, name, text) {
  const kind = card.dataset.kind;
  const list = card.querySelector(".options");
  const number = list.children.length;
  const row = element("div", { class: "option" });
  const label = { noul: "Meaning of", choice: "Description of", score: "Level" }[kind];
  const nameInput = element("input", { class: "name", autocomplete: "off", "aria-label": `Option ${number + 1}` });
  nameInput.value = kind === "score" ? String(number) : name;
  nameInput.readOnly = kind !== "choice";
  const textInput = element("input", { class: "text", autocomplete: "off", "aria-label": `${label} ${nameInput.value || number + 1}` });
  textInput.value = text;
  textInput.placeholder = kind === "noul" ? "what this answer means (optional)" : kind === "score" ? "what this level means" : "description (optional)";
  row.append(nameInput, textInput);
  if (kind !== "noul") {
    const remove = element("button", { type: "button", "aria-label": `Remove option ${nameInput.value || number + 1}` }, "×");
    remove.addEventListener("click", () => { row.remove(); renumber(card); update(); });
    row.append(remove);
  }
  list.append(row);
}

function renumber(card) {
  if (card.dataset.kind !== "score") return;
  [...card.querySelectorAll(".option .name")].forEach((input, index) => { input.value = String(index); });
}

const asText = (value) => value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);

function addQuestion(id, question) {
  const card = $("question-template").content.firstElementChild.cloneNode(true);
  card.dataset.kind = question.type;
  card.querySelector("legend").textContent = { noul: "Yes/no", choice: "Choice", score: "Score" }[question.type];
  card.querySelector(".id").value = id;
  card.querySelector(".instructions").value = asText(question.instructions);
  $("questions").append(card);
  const criteria = question.criteria;
  if (question.type === "noul") {
    for (const side of ["true", "false"]) addOption(card, side, asText(criteria && criteria[side]));
  } else if (question.type === "choice") {
    for (const [name, text] of Object.entries(criteria || { first: null, second: null })) addOption(card, name, asText(text));
  } else {
    for (const level of criteria || ["low", "high"]) addOption(card, "", asText(level));
  }
  const add = card.querySelector(".add-option");
  add.hidden = question.type === "noul";
  add.textContent = question.type === "score" ? "Add level" : "Add option";
  add.addEventListener("click", () => { addOption(card, "", ""); update(); card.querySelector(".option:last-child input:not([readonly])").focus(); });
  card.querySelector(".remove").addEventListener("click", () => { card.remove(); update(); });
  return card;
}

function readQuestion(card) {
  const question = { type: card.dataset.kind };
  const instructions = card.querySelector(".instructions").value;
  if (instructions !== "") question.instructions = instructions;
  const options = [...card.querySelectorAll(".option")].map((row) => [row.querySelector(".name").value, row.querySelector(".text").value]);
  if (question.type === "score") question.criteria = options.map(([, text]) => text);
  else if (question.type === "choice") question.criteria = new Map(options.map(([name, text]) => [name, text === "" ? null : text]));
  else {
    const described = options.filter(([, text]) => text !== "");
    if (described.length) question.criteria = new Map(described);
  }
  return new Map(Object.entries(question));
}

// JSON text of a value in which objects are Maps: a plain object would move keys such as "10" and "2" into numeric order.
function jsonText(value, indent, margin = "") {
  const inner = margin + " ".repeat(indent);
  const [open, between, close] = indent ? [`\n${inner}`, `,\n${inner}`, `\n${margin}`] : ["", ",", ""];
  if (Array.isArray(value) && value.length) return `[${open}${value.map((item) => jsonText(item, indent, inner)).join(between)}${close}]`;
  if (value instanceof Map && value.size) {
    const entries = [...value].map(([key, item]) => `${JSON.stringify(key)}:${indent ? " " : ""}${jsonText(item, indent, inner)}`);
    return `{${open}${entries.join(between)}${close}}`;
  }
  return value instanceof Map ? "{}" : JSON.stringify(value);
}

// The questions of the form, by id.
function askedQuestions() {
  return new Map([...$("questions").children].map((card) => [card.querySelector(".id").value, readQuestion(card)]));
}

// The body as text. A JSON state is put in as it was typed, so that its numbers keep their spelling.
function bodyText(indent) {
  const questions = askedQuestions();
  const state = $("state-json").checked ? $("state").value.trim() || "null" : JSON.stringify($("state").value);
  const text = jsonText(questions, indent, " ".repeat(indent));
  return indent ? `{\n  "state": ${state},\n  "questions": ${text}\n}` : `{"state":${state},"questions":${text}}`;
}

function showExample(name) {
  const example = EXAMPLES[name];
  const json = typeof example.state !== "string";
  $("state").value = json ? JSON.stringify(example.state, null, 2) : example.state;
  $("state-json").checked = json;
  $("questions").replaceChildren();
  for (const [id, question] of Object.entries(example.questions)) addQuestion(id, question);
  update();
}

// ---- the answers ----

// The definitions of confidence in use in the field, from the printed probabilities.
function confidences(answer, probabilities) {
  const n = probabilities.length;
  const top = Math.max(...probabilities);
  if (n < 2) return { "top probability": 1 };
  const entropy = -probabilities.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
  const result = {
    "top probability": top,
    "margin over chance": Math.max(0, (n * top - 1) / (n - 1)),
    "1 − entropy": Math.max(0, 1 - entropy / Math.log(n)),
    "Simpson": Math.max(0, (n * probabilities.reduce((sum, p) => sum + p * p, 0) - 1) / (n - 1)),
  };
  if (answer.type === "score") {
    const mode = probabilities.indexOf(top);
    const spread = probabilities.reduce((sum, p, i) => sum + p * Math.abs(i - mode), 0);
    const uniform = probabilities.reduce((sum, _, i) => sum + Math.abs(i - (n - 1) / 2), 0) / n;
    result["1 − distance"] = Math.max(0, 1 - spread / uniform);
  }
  return result;
}

// `asked` is the question: a browser moves names such as "10" and "2" of a parsed reply into numeric order, so the order is
// taken from there.
function drawAnswer(id, answer, asked) {
  const names = answer.type === "choice" ? [...asked.get("criteria").keys()] : Object.keys(answer.probabilities || {});
  const entries = answer.type === "noul" ? [["true", answer.noul], ["false", Math.round((1 - answer.noul) * 1e4) / 1e4]] : names.map((name) => [name, answer.probabilities[name]]);
  const top = Math.max(...entries.map(([, p]) => p));
  const verdict = answer.type === "noul" ? (answer.noul >= 0.5 ? "yes" : "no") : answer.type === "choice" ? answer.choice : `score ${answer.score}`;
  const rows = entries.map(([name, p]) => {
    const level = answer.legend && answer.legend[name] !== undefined ? `${name} · ${asText(answer.legend[name])}` : name;
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(p * 100).toFixed(2)}%`;
    return element("tr", p === top ? { class: "top" } : {}, element("th", { scope: "row" }, level),
      element("td", { "aria-hidden": "true" }, element("div", { class: "track" }, fill)), element("td", { class: "number" }, p.toFixed(4)));
  });
  const list = element("dl", { class: "confidence" });
  for (const [name, value] of Object.entries(confidences(answer, entries.map(([, p]) => p)))) {
    list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value.toFixed(4))));
  }
  const table = element("table", { class: "bars" }, element("caption", { class: "quiet" }, "Probability of every allowed option"), element("tbody", {}, ...rows));
  return element("article", { class: "answer", "aria-label": id },
    element("header", {}, element("h3", {}, id), element("span", { class: "verdict" }, verdict)), table, list);
}

function drawFaults(status, text) {
  let lines = [`The server answered ${status}.`];
  try {
    const reply = JSON.parse(text);
    if (Array.isArray(reply.detail)) lines = reply.detail.map((fault) => `${(fault.loc || []).slice(1).join(" → ") || "body"}: ${fault.msg}`);
    else if (reply.detail && reply.detail.message) lines = [reply.detail.message];
    else if (reply.error && reply.error.message) lines = [reply.error.message];
  } catch { /* not JSON: the status alone is told */ }
  $("faults").replaceChildren(element("ul", {}, ...lines.map((line) => element("li", {}, line))));
  if (status === 401) $("key-box").open = true;
}

async function decide(event) {
  event.preventDefault();
  $("faults").replaceChildren();
  const ids = [...document.querySelectorAll(".question .id")].map((input) => input.value);
  const twice = ids.find((id, index) => ids.indexOf(id) !== index);
  if (twice !== undefined) {
    $("faults").replaceChildren(element("p", {}, `Two questions have the id “${twice}”.`));
    return;
  }
  const headers = { "content-type": "application/json", ...keyHeader() };
  const asked = askedQuestions();
  $("decide").disabled = true;
  $("status").textContent = "Deciding…";
  const started = performance.now();
  try {
    const response = await fetch("v1/systemone", { method: "POST", headers, body: bodyText(0) });
    const text = await response.text();
    const elapsed = performance.now() - started;
    lastReply = text;
    $("results").replaceChildren();
    if (!response.ok) {
      $("status").textContent = "No answer.";
      drawFaults(response.status, text);
    } else {
      const reply = JSON.parse(text);
      const dropped = response.headers.get("x-clef-truncated-tokens");
      const engine = response.headers.get("x-clef-engine-ms");
      $("results").append(...[...asked].map(([id, question]) => drawAnswer(id, reply.answers[id], question)));
      $("status").textContent = `${reply.usage.input_tokens} tokens read, ${dropped || 0} dropped, ${elapsed.toFixed(0)} ms${engine ? ` (engine ${engine} ms)` : ""}, model ${reply.model}`;
    }
  } catch (error) {
    $("status").textContent = "No answer.";
    $("faults").replaceChildren(element("p", {}, `The server could not be reached: ${error.message}`));
  } finally {
    $("decide").disabled = false;
    drawCode();
  }
}

// ---- code ----

const indentBlock = (text, by) => text.replaceAll("\n", `\n${by}`);
// What a snippet says where a key is needed: the name of a variable, never the key.
const withKey = (text) => $("key").value ? text : "";
const CODE = {
  curl: () => `curl ${location.origin}/v1/systemone \\\n  -H 'content-type: application/json' \\\n${withKey(`  -H "authorization: Bearer $DESCANT_API_KEY" \\\n`)}  -d '${bodyText(2).replaceAll("'", "'\\''")}'`,
  python: () => `import json\n${withKey("import os\n")}import urllib.request\n\nbody = r'''${bodyText(2).replaceAll("'''", "\\u0027\\u0027\\u0027")}'''\nrequest = urllib.request.Request(\n    "${location.origin}/v1/systemone",\n    data=body.encode(),\n    headers={"content-type": "application/json"${withKey(`, "authorization": "Bearer " + os.environ["DESCANT_API_KEY"]`)}},\n)\nwith urllib.request.urlopen(request) as reply:\n    print(json.load(reply)["answers"])`,
  typescript: () => `const reply = await fetch("${location.origin}/v1/systemone", {\n  method: "POST",\n  headers: { "content-type": "application/json"${withKey(", authorization: `Bearer ${process.env.DESCANT_API_KEY}`")} },\n  body: JSON.stringify(${indentBlock(bodyText(2), "  ")}),\n});\nconst { answers } = await reply.json();`,
  reply: () => {
    try { return JSON.stringify(JSON.parse(lastReply), null, 2); } catch { return lastReply || "Nothing asked yet."; }
  },
};

function drawCode() {
  $("snippet").textContent = CODE[shownCode]();
}

function showCode(name, focus) {
  shownCode = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const selected = tab.dataset.code === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    if (selected) {
      $("snippet").setAttribute("aria-labelledby", tab.id);
      if (focus) tab.focus();
    }
  }
  drawCode();
}

function moveTab(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const next = (tabs.findIndex((tab) => tab.dataset.code === shownCode) + step + tabs.length) % tabs.length;
  showCode(tabs[next].dataset.code, true);
}

// ---- start ----

function update() {
  drawCode();
}

function freeId(kind) {
  const taken = new Set([...document.querySelectorAll(".question .id")].map((input) => input.value));
  for (let number = 1; ; number += 1) if (!taken.has(`${kind}_${number}`)) return `${kind}_${number}`;
}

function keyHeader() {
  return $("key").value ? { authorization: `Bearer ${$("key").value}` } : {};
}

// Tells which model is served; asks again while it is loaded.
async function showModel() {
  try {
    const response = await fetch("v1/models", { headers: keyHeader() });
    const reply = await response.json();
    if (response.status === 401) {
      $("model").textContent = "The server asks for an API key.";
      $("key-box").open = true;
    } else if (response.status === 503) {
      $("model").textContent = `${reply.error.message}…`;
      setTimeout(showModel, 2000);
    } else {
      const card = reply.data[0];
      $("model").textContent = `model ${card.id}, up to ${card.max_model_len} tokens`;
      const description = reply.models[0].description || "";
      $("warning").hidden = !/random/i.test(`${description} ${card.id}`);
      $("warning").textContent = "The weights of this model are random: its answers mean nothing. Start the server with a trained release.";
    }
  } catch {
    $("model").textContent = "The server's list of models could not be read.";
  }
}

function dropFile(event) {
  event.preventDefault();
  $("state").classList.remove("over");
  const file = event.dataTransfer.files[0];
  if (!file) {
    $("state").value = event.dataTransfer.getData("text");
    update();
    return;
  }
  file.text().then((text) => {
    $("state").value = text;
    $("state-json").checked = file.name.endsWith(".json");
    update();
  });
}

function start() {
  for (const name of Object.keys(EXAMPLES)) $("example").append(element("option", {}, name));
  $("example").addEventListener("change", () => showExample($("example").value));
  for (const button of document.querySelectorAll("[data-add]")) {
    button.addEventListener("click", () => {
      const card = addQuestion(freeId(button.dataset.add), { type: button.dataset.add });
      update();
      card.querySelector(".instructions").focus();
    });
  }
  $("form").addEventListener("submit", decide);
  $("form").addEventListener("input", update);
  $("key").addEventListener("change", showModel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  });
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => showCode(tab.dataset.code, false));
    tab.addEventListener("keydown", moveTab);
  }
  $("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText($("snippet").textContent);
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  });
  $("state").addEventListener("dragover", (event) => { event.preventDefault(); $("state").classList.add("over"); });
  $("state").addEventListener("dragleave", () => $("state").classList.remove("over"));
  $("state").addEventListener("drop", dropFile);
  showModel();
  showExample(Object.keys(EXAMPLES)[0]);
}

start();
