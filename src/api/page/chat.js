// SPDX-License-Identifier: Apache-2.0
// The conversations: kept in the browser, shown, and continued by the model.

const kMaxFile = 512 * 1024;
const settings = {probabilities: true, ...stored("quire.settings", {})};
let conversations = stored("quire.conversations", []);
let current = conversations[0] ?? null;
let files = [];       // attached to the next message: {name, text}
let running = null;   // the answer being written: {controller, message, id}
const ownIds = new Set();  // of answers to this page

function save() {
  conversations.sort((a, b) => b.updated - a.updated);
  try {
    store("quire.conversations", conversations);
  } catch {  // the browser's space is full: the probabilities take most of it
    for (const one of conversations) for (const message of one.messages) delete message.tokens;
    try {
      store("quire.conversations", conversations);
    } catch {
      say("The browser has no room for more conversations; delete some.");
    }
  }
}

function listConversations() {
  $("list").replaceChildren(...conversations.map((one) => el("li", {class: one === current ? "on" : null},
    el("button", {onclick: () => open(one), "aria-current": one === current ? "true" : null}, one.title),
    el("button", {class: "plain", "aria-label": `Delete ${one.title}`, onclick: () => remove(one)}, "×"))));
}

function open(conversation) {
  current = conversation;
  document.body.classList.remove("menu");
  listConversations();
  showAll();
  $("ask").focus();
}

function remove(conversation) {
  if (conversation === current) stop();
  conversations = conversations.filter((one) => one !== conversation);
  if (conversation === current) current = conversations[0] ?? null;
  save();
  open(current);
}

// What the model is sent: files are part of the text.
const contentOf = (message) =>
  [...(message.files ?? []).map((file) => `File ${file.name}:\n\`\`\`\n${file.text}\n\`\`\``), message.content]
    .join("\n\n");

function showAll() {
  const talk = $("talk");
  if (!current?.messages.length) {
    talk.replaceChildren(el("p", {class: "hello"}, el("b", {}, "What would you like to know?"),
      "Conversations stay in this browser. Beside them, the pages of the server's memory fill as the answer is written."));
    return;
  }
  talk.replaceChildren(...current.messages.map((message, index) => messageElement(message, index)));
  talk.scrollTop = talk.scrollHeight;
}

const button = (text, onclick) => el("button", {type: "button", onclick}, text);
const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not allow copying here.");
  }
};

function messageElement(message, index) {
  if (message.role === "user") {
    const bar = el("div", {class: "bar"}, button("Edit", () => edit(element, message, index)),
      button("Copy", () => copy(message.content)));
    const element = el("article", {class: "user", "aria-label": "You"},
      ...(message.files ?? []).map((file) => el("span", {class: "chip"}, `${file.name} · ${plural(file.text.length, "character")}`)),
      el("div", {class: "text"}, message.content), bar);
    return element;
  }
  const element = el("article", {class: "answer", "aria-label": "Answer"});
  fill(element, message, index);
  return element;
}

// What is known about an answer, in one line.
function facts(message) {
  const out = [];
  const usage = message.usage;
  if (usage) {
    out.push(plural(usage.completion_tokens, "token"));
    if (message.took > 0) out.push(`${number(usage.completion_tokens / message.took)} tok/s`);
    if (message.first > 0) out.push(`first after ${seconds(message.first)}`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    if (cached) out.push(`${number(cached)} of ${number(usage.prompt_tokens)} from cache`);
  }
  if (message.finish && message.finish !== "stop") out.push({length: "cut at the limit", tool_calls: "asks for tools", stopped: "stopped"}[message.finish] ?? message.finish);
  return out.join(" · ");
}

function fill(element, message, index) {
  const writing = running?.message === message;
  const parts = [];
  if (message.reasoning) {
    const done = message.content || !writing;
    const open = element.querySelector("details.thought")?.open ?? false;
    parts.push(el("details", {class: "thought", open}, el("summary", {}, done ? "Thought" : "Thinking…"),
      el("div", {class: "text"}, message.reasoning)));
  }
  const body = el("div", {class: writing ? "body writing" : "body"});
  const json = message.content.trimStart().startsWith("{") || message.content.trimStart().startsWith("[") ? pretty(message.content) : null;
  const ranges = settings.probabilities ? tokenRanges(message.content, message.tokens) : [];
  if (json) body.append(el("pre", {class: "json", tabindex: 0, role: "region", "aria-label": "JSON"}, json));
  else new Markdown(message.content, ranges).render(body);
  element.ranges = ranges;
  parts.push(body);
  for (const call of message.calls ?? []) {
    parts.push(el("div", {class: "call"}, el("b", {}, `${call.name}()`),
      el("pre", {class: "json", tabindex: 0, role: "region", "aria-label": "Arguments"}, pretty(call.arguments) ?? call.arguments)));
  }
  if (message.error) parts.push(el("p", {class: "error", role: "alert"}, message.error));
  if (!writing) {
    parts.push(el("div", {class: "bar"}, el("span", {}, facts(message)),
      button("Again", () => again(index)), button("Copy", () => copy(message.content))));
    if (ranges.length) parts.push(leastCertain(ranges, message));
  }
  element.replaceChildren(...parts);
}

const alternatives = (range, text) => [[text, range.p], ...range.others.filter(([other]) => other !== text)]
  .map(([token, p]) => `${JSON.stringify(token)} ${percent(p)}`).join(" · ");

// The same as the tips, for those who do not hover.
function leastCertain(ranges, message) {
  const list = el("ul", {class: "least"});
  const details = el("details", {ontoggle: () => {
    if (!details.open || list.childElementCount) return;
    const least = [...ranges].sort((a, b) => a.p - b.p).slice(0, 12);
    list.append(...least.map((range) =>
      el("li", {}, alternatives(range, message.content.slice(Math.max(0, range.begin), range.end)))));
  }}, el("summary", {}, "Least certain tokens"), list);
  return details;
}

function edit(element, message, index) {
  const area = el("textarea", {class: "edit", "aria-label": "Edit your message"});
  area.value = message.content;
  const done = () => {
    stop();
    current.messages.length = index;
    ask({...message, content: area.value});
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), done());
    if (event.key === "Escape") showAll();
  });
  element.replaceChildren(area, el("div", {class: "bar"}, button("Send", done), button("Cancel", showAll)));
  area.focus();
}

function again(index) {
  stop();
  current.messages.length = index;
  answer(current);
}

function ask(message) {
  if (!current) {
    current = {title: "", updated: Date.now(), messages: []};
    conversations.unshift(current);
  }
  if (!current.messages.length) current.title = (message.content || message.files?.[0]?.name || "").trim().slice(0, 60);
  current.messages.push(message);
  answer(current);
}

function body(conversation) {
  const messages = conversation.messages.slice(0, -1).flatMap((message) => {
    if (message.role === "user") return [{role: "user", content: contentOf(message)}];
    return message.content ? [{role: "assistant", content: message.content}] : [];
  });
  if (settings.system) messages.unshift({role: "system", content: settings.system});
  // The id is made here, so that the live view knows the request as ours from its first moment.
  const id = [...crypto.getRandomValues(new Uint32Array(4))].map((word) => word.toString(16).padStart(8, "0")).join("");
  ownIds.add(`chatcmpl-${id}`);
  const out = {model, messages, request_id: id, stream: true, stream_options: {include_usage: true}};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (settings[name]) out[name] = Number(settings[name]);
  }
  if (settings.probabilities) Object.assign(out, {logprobs: true, top_logprobs: 4});
  if (settings.schema) out.response_format = {type: "json_schema", json_schema: {name: "answer", schema: JSON.parse(settings.schema)}};
  if (settings.tools) out.tools = JSON.parse(settings.tools);
  return out;
}

const probability = (logprob) => Math.round(Math.exp(logprob) * 1000) / 1000;

function take(message, event) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) message.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  message.content += delta.content ?? "";
  if (delta.reasoning) message.reasoning = (message.reasoning ?? "") + delta.reasoning;
  for (const call of delta.tool_calls ?? []) {
    message.calls ??= [];
    const mine = (message.calls[call.index] ??= {name: "", arguments: ""});
    mine.name += call.function?.name ?? "";
    mine.arguments += call.function?.arguments ?? "";
  }
  for (const row of choice.logprobs?.content ?? []) {
    const others = row.top_logprobs.map((other) => [other.token, probability(other.logprob)]);
    (message.tokens ??= []).push([row.token, probability(row.logprob), others, message.content.length]);
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

// Gives the answer to screen readers a few sentences at a time; from `begin` on it is new. Returns where the next call
// begins. The conversation itself is no live region: each token would be read out with all that is before it.
function speak(text, begin, whole) {
  const rest = text.slice(begin);
  const ends = [". ", "? ", "! ", "\n"].map((end) => rest.lastIndexOf(end));
  const length = whole ? rest.length : Math.max(...ends) + 1;
  const piece = rest.slice(0, length).trim();
  if (piece) $("spoken").append(el("p", {}, piece));
  return begin + length;
}

async function answer(conversation) {
  const message = {role: "assistant", content: ""};
  conversation.messages.push(message);
  conversation.updated = Date.now();
  save();
  const mine = (running = {controller: new AbortController(), message});
  $("send").textContent = "Stop";
  listConversations();
  showAll();
  let waiting = false;
  const draw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const talk = $("talk");
      const below = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
      const index = conversation.messages.indexOf(message);
      if (current === conversation && index >= 0) fill(talk.children[index], message, index);
      if (below) talk.scrollTop = talk.scrollHeight;
    });
  };
  const begin = performance.now();
  let spoken = 0;
  $("spoken").replaceChildren();
  try {
    const reply = await request("v1/chat/completions", {method: "POST", signal: mine.controller.signal,
      headers: {"Content-Type": "application/json"}, body: JSON.stringify(body(conversation))});
    for await (const event of events(reply)) {
      take(message, event);
      if (!message.first && (message.content || message.reasoning)) message.first = (performance.now() - begin) / 1000;
      spoken = speak(message.content, spoken, false);
      draw();
    }
    speak(message.content, spoken, true);
    say("The answer is complete.", true);
  } catch (error) {
    if (error.name === "AbortError") {
      message.finish = "stopped";
      say("The answer was stopped.", true);
    } else {
      message.error = error.message;
    }
  }
  message.took = (performance.now() - begin) / 1000 - (message.first ?? 0);
  if (running === mine) {
    running = null;
    $("send").textContent = "Send";
  }
  draw();
  save();
}

function stop() {
  running?.controller.abort();
  running = null;
  $("send").textContent = "Send";
}

function send() {
  const content = $("ask").value.trim();
  if (!content && !files.length) return;
  stop();
  ask({role: "user", content, files});
  files = [];
  $("ask").value = "";
  showFiles();
  grow();
}

function showFiles() {
  $("files").replaceChildren(...files.map((file, index) => el("li", {class: "chip"}, `${file.name} `,
    el("button", {type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: () => {
      files.splice(index, 1);
      showFiles();
    }}, "×"))));
}

async function attach(list) {
  for (const file of list) {
    if (file.size > kMaxFile) {
      say(`${file.name} is too large: files of up to 512 KB can be attached.`);
      continue;
    }
    const text = await file.text();
    if (text.includes("\0")) say(`${file.name} is not a text file.`);
    else files.push({name: file.name, text});
  }
  showFiles();
}

function grow() {
  $("ask").style.height = "auto";
  $("ask").style.height = `${$("ask").scrollHeight}px`;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) stop();
  else send();
});
$("ask").addEventListener("input", grow);
$("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), send());
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
  if (event.altKey && event.code === "KeyN") (event.preventDefault(), open(null));
});
$("new").addEventListener("click", () => open(null));
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => attach($("file").files).then(() => ($("file").value = "")));
for (const [name, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  $("form").addEventListener(name, (event) => {
    event.preventDefault();
    document.querySelector(".box").classList.toggle("over", over);
    if (name === "drop") attach(event.dataTransfer.files);
  });
}

// Settings.
const fields = [...$("settings").querySelectorAll("[name]")];
$("tune").addEventListener("click", () => {
  for (const field of fields) {
    if (field.type === "checkbox") field.checked = settings[field.name];
    else field.value = settings[field.name] ?? "";
  }
  $("settings-error").textContent = "";
  $("settings").showModal();
});
$("save").addEventListener("click", (event) => {
  for (const field of fields) {
    const value = field.value.trim();
    const json = ["schema", "tools"].includes(field.name);
    let wrong = field.type !== "checkbox" && field.inputMode && value && !(Number(value) >= 0);
    if (json && value) {
      try {
        JSON.parse(value);
      } catch {
        wrong = true;
      }
    }
    if (!wrong) continue;
    event.preventDefault();
    $("settings-error").textContent = json ? `The ${field.name === "tools" ? "list of tools" : "schema"} is not JSON.` : `${value} is not a number.`;
    return field.focus();
  }
  for (const field of fields) settings[field.name] = field.type === "checkbox" ? field.checked : field.value.trim();
  store("quire.settings", settings);
  showAll();
});
$("forget").addEventListener("click", () => {
  if (!confirm("Delete all conversations in this browser?")) return;
  stop();
  conversations = [];
  save();
  $("settings").close();
  open(null);
});

// The tip over a token: what else it could have been.
$("talk").addEventListener("mouseover", (event) => {
  const span = event.target.closest?.(".t");
  const range = span?.closest(".answer")?.ranges?.[span.dataset.t];
  if (!range) return ($("tip").hidden = true);
  tip(alternatives(range, span.textContent), span.getBoundingClientRect());
});
$("talk").addEventListener("mouseleave", () => ($("tip").hidden = true));

function tip(text, at) {
  const box = $("tip");
  box.textContent = text;
  box.hidden = false;
  const left = Math.min(at.left, innerWidth - box.offsetWidth - 8);
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${at.bottom + box.offsetHeight + 12 < innerHeight ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
}
