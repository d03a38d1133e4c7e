// SPDX-License-Identifier: Apache-2.0
// What the parts of the page share: elements, settings, requests with the key, and server-sent events. The build puts
// base.js, markdown.js, chat.js, compare.js and live.js together as one module. Text from the model is only ever shown as text.

const $ = (id) => document.getElementById(id);

// el("p", {class: "x", onclick: f}, "text", child): an element.
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

const number = (value) => Math.round(value).toLocaleString("en");
const plural = (count, one) => `${number(count)} ${one}${count === 1 ? "" : "s"}`;
const seconds = (s) => (s == null ? "–" : s < 0.1 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`);
const percent = (p) => (p > 0.995 ? "100%" : p < 0.01 ? "<1%" : `${Math.round(p * 100)}%`);

const stored = (name, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
const store = (name, value) => localStorage.setItem(name, JSON.stringify(value));

let quietTimer = 0;
// Says something to everybody; screen readers only, if quiet.
function say(text, quiet = false) {
  $("status").textContent = text;
  $("status").classList.toggle("quiet", quiet);
  clearTimeout(quietTimer);
  if (!quiet) quietTimer = setTimeout(() => ($("status").textContent = ""), 6000);
}

// Asks for the API key, once for all who need it.
let asking = null;
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("quire.key", $("key-input").value.trim());
      asking = null;
      resolve();
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

// fetch() of a path of this server, with the key. Throws an Error with the server's own sentence.
async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem("quire.key");
    const headers = {...options.headers, ...(key ? {Authorization: `Bearer ${key}`} : {})};
    const answer = await fetch(path, {...options, headers});
    if (answer.status === 401) {
      if (key === sessionStorage.getItem("quire.key")) await askForKey();
      continue;
    }
    if (answer.ok) return answer;
    const text = await answer.text();
    let message = text;
    try {
      message = JSON.parse(text).error.message ?? text;
    } catch { /* not JSON: shown as it is */ }
    throw new Error(message || `The server answered ${answer.status}.`);
  }
}

// The data of each server-sent event of an answer, parsed; "[DONE]" is left out.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

let model = "";  // the one that is spoken to and watched
const contexts = new Map();  // the longest sequence of each model
const whenModelChanges = [];

$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  store("quire.theme", document.documentElement.dataset.theme);
  redraw();
});
if (stored("quire.theme", "")) document.documentElement.dataset.theme = stored("quire.theme", "");

function show(view) {
  document.body.dataset.view = view;
  for (const one of ["talk", "compare", "server"]) $(`show-${one}`).setAttribute("aria-pressed", String(one === view));
  if (view === "server") redraw();
}
$("show-talk").addEventListener("click", () => show("talk"));
$("show-compare").addEventListener("click", () => show("compare"));
$("show-server").addEventListener("click", () => show("server"));
$("menu").addEventListener("click", () => {
  $("menu").setAttribute("aria-expanded", String(document.body.classList.toggle("menu")));
});

async function loadModels() {
  const {data} = await (await request("v1/models")).json();
  for (const one of data) contexts.set(one.id, one.max_model_len);
  model = data.some((one) => one.id === stored("quire.model", "")) ? stored("quire.model", "") : data[0].id;
  // A model that was served from a path is named by it, of which the end says most.
  const label = (id) => /^[./~]/.test(id) ? id.replace(/\/+$/, "").split("/").pop() : id;
  $("model").replaceChildren(...data.map((one) => el("option", {value: one.id, selected: one.id === model}, label(one.id))));
  const about = () => {
    const length = contexts.get(model);
    $("about").textContent = length ? `up to ${number(length)} tokens` : "";
  };
  about();
  $("model").addEventListener("change", () => {
    model = $("model").value;
    store("quire.model", model);
    about();
    for (const call of whenModelChanges) call();
  });
}
