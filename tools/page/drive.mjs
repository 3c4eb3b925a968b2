// Drives the page of a running server in Chromium and checks what a person would see, hear and type.
//
// usage: node drive.mjs BASE_URL CHROMIUM [--screenshots DIR]
// `playwright-core` and `axe-core` are taken from the folder that NODE_MODULES names; `.ci/page.sh` puts them there.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deepStrictEqual as same, ok } from "node:assert";

const require = createRequire(join(process.env.NODE_MODULES, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [base, executablePath] = process.argv.slice(2);
const shots = process.argv.includes("--screenshots") ? process.argv[process.argv.indexOf("--screenshots") + 1] : null;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let passed = 0;
let failed = 0;

// A page that notes whatever must not happen: errors, and requests to anywhere else.
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => { if (message.type() === "error" && !/status of 4\d\d|ERR_INTERNET/.test(message.text())) page.wrong.push(message.text()); });
  page.on("request", (request) => { if (!request.url().startsWith(base) && !request.url().startsWith("data:")) page.wrong.push(`asked for ${request.url()}`); });
  await page.goto(`${base}/`);
  await page.waitForFunction(() => /^model /.test(document.getElementById("model").textContent));
  return page;
}

async function test(name, run, options) {
  const page = await open(options);
  try {
    await run(page);
    same(page.wrong, []);
    passed += 1;
    console.log(`ok: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED: ${name}\n${error.stack}`);
  }
  await page.context().close();
}

const status = (page) => page.locator("#status").textContent();
async function decide(page) {
  await page.click("#decide");
  await page.waitForFunction(() => !document.getElementById("decide").disabled);
}

await test("every example is answered, with a bar for each option", async (page) => {
  const names = await page.locator("#example option").allTextContents();
  ok(names.length >= 5, names);
  for (const name of names) {
    await page.selectOption("#example", name);
    const questions = await page.locator(".question").count();
    await decide(page);
    ok(/^\d+ tokens read, 0 dropped, \d+ ms/.test(await status(page)), await status(page));
    const answers = page.locator(".answer");
    same(await answers.count(), questions, name);
    for (let index = 0; index < questions; index += 1) {
      const numbers = (await answers.nth(index).locator("td.number").allTextContents()).map(Number);
      const options = await page.locator(".question").nth(index).locator(".option").count();
      same(numbers.length, options, name);
      ok(Math.abs(numbers.reduce((sum, p) => sum + p, 0) - 1) < 1e-3, `${name}: ${numbers}`);
      const widths = await answers.nth(index).locator(".fill").evaluateAll((fills) => fills.map((fill) => fill.clientWidth / fill.parentElement.clientWidth));
      widths.forEach((width, option) => ok(Math.abs(width - numbers[option]) < 0.02, `${name}: a bar of ${width} for ${numbers[option]}`));
      const definitions = await answers.nth(index).locator("dt").allTextContents();
      ok(definitions.includes("top probability") && definitions.includes("1 − entropy") && definitions.length >= 4, definitions);
    }
  }
});

await test("the keyboard is enough", async (page) => {
  await page.keyboard.press("Tab");
  same(await page.evaluate(() => document.activeElement.className), "skip");
  const reached = new Set();
  for (let step = 0; step < 200; step += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.dataset.add || document.activeElement.tagName);
    reached.add(name);
  }
  for (const name of ["example", "state", "state-json", "decide", "id", "instructions", "text", "remove", "add-option", "noul", "choice", "score", "tab-curl", "snippet", "copy"]) {
    ok(reached.has(name), `${name} is not reached: ${[...reached]}`);
  }
  await page.focus("#state");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("The lamp is broken.");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector(".answer");
  await page.focus("#tab-curl");
  await page.keyboard.press("ArrowRight");
  same(await page.evaluate(() => document.activeElement.id), "tab-python");
  ok((await page.textContent("#snippet")).includes("urllib.request"));
  await page.keyboard.press("ArrowLeft");
  ok((await page.textContent("#snippet")).startsWith("curl "));
});

await test("questions and options are added, changed and removed", async (page) => {
  for (const remove of await page.locator(".question .remove").all()) await page.locator(".question .remove").first().click();
  same(await page.locator(".question").count(), 0);
  await page.click('[data-add="choice"]');
  await page.click(".add-option");
  const names = page.locator(".option .name");
  // Names that a browser would sort, in another order.
  for (const [index, name] of ["10", "2", "x<b>y"].entries()) await names.nth(index).fill(name);
  await page.click('[data-add="score"]');
  await page.click('[data-add="noul"]');
  await decide(page);
  same(await page.locator(".answer").first().locator("tbody th").allTextContents(), ["10", "2", "x<b>y"]);
  same(await page.locator(".answer").count(), 3);
});

await test("what is wrong is said", async (page) => {
  await page.locator(".question .id").nth(1).fill("urgent");
  await decide(page);
  ok((await page.textContent("#faults")).includes("Two questions have the id"));
  await page.locator(".question .id").nth(1).fill("team");
  await page.locator(".option .name:not([readonly])").first().fill("");
  await decide(page);
  const faults = await page.textContent("#faults");
  ok(faults.includes("questions → team → choice → criteria") && faults.includes("must not be empty"), faults);
  await page.check("#state-json");
  await page.fill("#state", "{ no JSON");
  await decide(page);
  ok((await page.locator("#faults li").count()) > 0);
  await page.context().setOffline(true);
  await decide(page);
  ok((await page.textContent("#faults")).includes("could not be reached"));
  page.wrong = page.wrong.filter((text) => !/Failed to load resource|net::/.test(text));
});

await test("a file can be dropped on the state", async (page) => {
  const text = '{"temperature": 31.50}';
  const transfer = await page.evaluateHandle((text) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], "reading.json", { type: "application/json" }));
    return transfer;
  }, text);
  await page.dispatchEvent("#state", "dragover", { dataTransfer: transfer });
  await page.dispatchEvent("#state", "drop", { dataTransfer: transfer });
  await page.waitForFunction((text) => document.getElementById("state").value === text, text);
  ok(await page.isChecked("#state-json"));
  // The number goes out as it was written.
  ok((await page.textContent("#snippet")).includes("31.50"));
  await decide(page);
  ok(/tokens read/.test(await status(page)));
});

await test("the request as code gives the same answers", async (page) => {
  await page.fill("#state", `It's "broken": \\ ''' \${x} é\nsecond line`);
  await decide(page);
  await page.click("#tab-reply");
  const shown = JSON.parse(await page.textContent("#snippet")).answers;
  const directory = mkdtempSync(join(tmpdir(), "page-"));
  const snippet = async (name) => { await page.click(`#tab-${name}`); return page.textContent("#snippet"); };
  const curl = execFileSync("bash", ["-c", `${await snippet("curl")} -s`], { encoding: "utf8" });
  same(JSON.parse(curl).answers, shown);
  writeFileSync(join(directory, "ask.py"), (await snippet("python")).replace(/print\(json\.load\(reply\)\["answers"\]\)/, 'print(json.dumps(json.load(reply)["answers"]))'));
  same(JSON.parse(execFileSync("python3", [join(directory, "ask.py")], { encoding: "utf8" })), shown);
  writeFileSync(join(directory, "ask.mjs"), `${await snippet("typescript")}\nconsole.log(JSON.stringify(answers));`);
  same(JSON.parse(execFileSync("node", [join(directory, "ask.mjs")], { encoding: "utf8" })), shown);
});

await test("a key is sent and never shown", async (page) => {
  await page.locator("#key-box summary").click();
  await page.fill("#key", "SECRET-KEY");
  let sent = null;
  page.on("request", (request) => { if (request.url().endsWith("/v1/systemone")) sent = request.headers().authorization; });
  await decide(page);
  same(sent, "Bearer SECRET-KEY");
  for (const name of ["curl", "python", "typescript", "reply"]) {
    await page.click(`#tab-${name}`);
    const text = await page.textContent("#snippet");
    ok(!text.includes("SECRET"), name);
    ok(name === "reply" || text.includes("DESCANT_API_KEY"), name);
  }
});

for (const colorScheme of ["light", "dark"]) {
  await test(`no barrier is found in ${colorScheme} colours`, async (page) => {
    await page.selectOption("#example", "A software package");
    await decide(page);
    await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => axe.run());
    same(violations.map((violation) => `${violation.id}: ${violation.nodes.map((node) => node.target.join(" ")).join(", ")}`), []);
    if (shots) await page.screenshot({ path: join(shots, `page-${colorScheme}.png`), fullPage: false });
  }, { colorScheme });
}

await test("a narrow screen needs no sideways scrolling", async (page) => {
  await decide(page);
  const [inner, whole] = await page.evaluate(() => [window.innerWidth, document.documentElement.scrollWidth]);
  ok(whole <= inner, `${whole} in ${inner}`);
}, { viewport: { width: 360, height: 740 } });

await browser.close();
console.log(`test result: ${failed ? "FAILED" : "ok"}. ${passed} passed; ${failed} failed`);
process.exit(failed ? 1 : 0);
