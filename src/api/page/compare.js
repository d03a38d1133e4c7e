// SPDX-License-Identifier: Apache-2.0
// The comparison: one prompt alone and in a crowd, with the receipts of both answers side by side.

const kMostOthers = 64;
let comparing = null;  // the AbortController of the comparison under way

const digestOf = (receipt, index) => receipt.logits.slice(16 * index, 16 * index + 16);

// The first token at which two receipts differ, or -1 if all of them are equal.
function firstDifference(a, b) {
  const count = Math.max(a.token_ids.length, b.token_ids.length);
  for (let i = 0; i < count; ++i) {
    if (a.token_ids[i] !== b.token_ids[i] || digestOf(a, i) !== digestOf(b, i)) return i;
  }
  return -1;
}

// One square per token; its colour is made from the digest of the logits from which the token was chosen.
function strip(receipt, difference) {
  const squares = receipt.token_ids.map((id, index) => {
    const square = el("i", {class: index === difference ? "wrong" : null, title: `token ${index + 1}, id ${id}: logits ${digestOf(receipt, index)}`});
    square.style.background = `hsl(${parseInt(digestOf(receipt, index).slice(0, 4), 16) % 360} 45% 58%)`;
    return square;
  });
  return el("div", {class: "strip", role: "img", "aria-label": `The digests of the logits of ${plural(squares.length, "token")}, a square each`}, ...squares);
}

// The column of one answer: its text, and once it has ended, its facts and its receipt.
function fillRun(column, run, other) {
  const parts = [el("h3", {}, run.title), el("div", {class: run.receipt || run.error ? "body" : "body writing"}, run.content)];
  if (run.error) parts.push(el("p", {class: "error", role: "alert"}, run.error));
  if (run.receipt) {
    const {receipt} = run;
    const difference = other?.receipt ? firstDifference(receipt, other.receipt) : -1;
    const rows = [["Receipt", receipt.digest], ["Weights", receipt.weights], ["Device", `${receipt.backend} · ${receipt.isa}`],
      ["Seed", receipt.sampling.seed], ["Prompt", plural(receipt.prompt_token_ids.length, "token")], ["Answer", `${plural(receipt.token_ids.length, "token")} · ${receipt.finish_reason}`]];
    parts.push(el("div", {class: "bar"}, el("span", {}, facts(run))), strip(receipt, difference),
      el("table", {class: "receipt"}, el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, value))))));
  }
  column.replaceChildren(...parts);
}

// Sends one request and shows its answer in a column as it comes.
async function runOnce(body, run, column, signal) {
  const begin = performance.now();
  const reply = await request("v1/chat/completions", {method: "POST", signal, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
  for await (const event of events(reply)) {
    take(run, event);
    run.receipt ??= event.choices?.[0]?.receipt;
    if (!run.first && run.content) run.first = (performance.now() - begin) / 1000;
    run.took = (performance.now() - begin) / 1000 - (run.first ?? 0);
    fillRun(column, run);
  }
  if (!run.receipt) throw new Error("The answer ended without a receipt.");
  fillRun(column, run);
}

// Other prompts, of different lengths, whose answers are written until they are aborted. They are one request to the
// server, since a browser has few connections to it. Resolves when all of them have begun.
async function gather(count, tokens, signal) {
  const prompt = Array.from({length: count}, (_, index) => `${"Once upon a time. ".repeat(index % 7)}${index + 2} sheets, ${index + 3} sheets,`);
  const reply = await request("v1/completions", {method: "POST", signal, headers: {"Content-Type": "application/json"},
    body: JSON.stringify({model, prompt, max_tokens: tokens, ignore_eos: true, stream: true})});
  const stream = events(reply), begun = new Set();
  while (begun.size < count) {
    const {value, done} = await stream.next();
    if (done) throw new Error("The others ended before all of them had begun.");
    if (value.error) throw new Error(value.error.message);
    begun.add(value.choices[0]?.index);
  }
  (async () => {
    try {
      for await (const _ of stream);
    } catch { /* it was aborted */ }
  })();
}

function verdict(text, kind) {
  $("verdict").textContent = text;
  $("verdict").className = kind;
}

async function compareRuns() {
  const wanted = Math.min(kMostOthers, Math.max(1, Math.round(Number($("crowd").value)) || 8));
  const limit = Math.max(1, Math.round(Number($("limit").value)) || 64);
  const controller = (comparing = new AbortController());
  const crowd = new AbortController();
  controller.signal.addEventListener("abort", () => crowd.abort());
  const seed = settings.seed ? Number(settings.seed) : crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  const body = {model, messages: [{role: "user", content: $("prompt").value}], seed, max_tokens: limit, stream: true,
    stream_options: {include_usage: true}, return_receipt: true};
  for (const name of ["temperature", "top_p"]) if (settings[name]) body[name] = Number(settings[name]);
  const runs = [{title: "Alone", content: ""}, {title: "In a crowd", content: ""}];
  const columns = runs.map(() => el("article", {}));
  $("runs").replaceChildren(...columns);
  $("run").textContent = "Stop";
  let at = 0;
  try {
    verdict("The prompt runs alone…", "");
    await runOnce(body, runs[0], columns[0], controller.signal);
    verdict("The crowd gathers…", "");
    at = 1;
    // They go on for longer than the prompt's own answer, as far as the model's context allows.
    await gather(wanted, Math.max(16, Math.min(4 * limit + 64, (contexts.get(model) ?? 4096) - 256)), crowd.signal);
    runs[1].title = `Beside ${plural(wanted, "other")}`;
    verdict("The prompt runs in the crowd…", "");
    await runOnce(body, runs[1], columns[1], controller.signal);
    const [alone, beside] = runs.map((run) => run.receipt);
    const difference = firstDifference(alone, beside);
    runs.forEach((run, index) => fillRun(columns[index], run, runs[1 - index]));
    if (alone.digest === beside.digest) verdict(`Same bits: ${plural(alone.token_ids.length, "token")}, and the receipts are equal.`, "same");
    else if (difference < 0) verdict("The tokens and their logits are equal, but other parts of the receipts differ.", "wrong");
    else verdict(`The bits differ from token ${difference + 1} on.`, "wrong");
  } catch (error) {
    verdict(error.name === "AbortError" ? "Stopped." : "The comparison did not come to its end.", "");
    runs[at].error = error.name === "AbortError" ? "stopped" : error.message;
    fillRun(columns[at], runs[at]);
  }
  crowd.abort();
  comparing = null;
  $("run").textContent = "Compare";
}

$("compare-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (comparing) comparing.abort();
  else compareRuns();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), $("compare-form").requestSubmit());
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && comparing && !document.querySelector("dialog[open]")) comparing.abort();
});
