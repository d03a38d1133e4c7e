// SPDX-License-Identifier: Apache-2.0
// The live view: numbers, the map of KV pages, the requests and what happened to them, from the events of /live.

const kStates = ["free", "cached", "used", "shared", "host", "disk"];
const kMaxOlder = 512;  // cells for pages in the tiers of which nothing is known
const kFade = 900;  // milliseconds for which a change of a page is marked
let live = null;      // the last event
let cells = [];       // {state, group, owner} for each cell of the map, then {state, group, tier, count} for the tiers
let pooled = 0;       // how many of them are the pool's
let changed = [];     // when each cell changed last
let samples = [];     // {t, generated}, for the rate
let rates = new Array(120).fill(0);  // of the last minute, one per half second
let cursor = 0;       // the cell that the keyboard is at
let lit = null;       // the request whose pages are shown, the others dimmed
let group = null;     // the same for a cache group
let chosen = null;    // the page whose contents are shown: its id, or {tier: id}
const still = matchMedia("(prefers-reduced-motion: reduce)");

const nameOf = (one) => (ownIds.has(one.id) ? "you" : one.id.replace(/^(chatcmpl|cmpl|resp|msg)[-_].*(.{6})$/, "…$2")) + (one.index ? ` #${one.index + 1}` : "");
const sameRequest = (a, b) => a && b && a.key === b.key && a.index === b.index;

function happened(text) {
  const now = new Date();
  $("events").prepend(el("li", {}, el("time", {}, now.toLocaleTimeString("en-GB")), el("span", {}, text)));
  while ($("events").childElementCount > 8) $("events").lastElementChild.remove();
}

// Compares two events and says what happened in between.
function compare(before, after) {
  const old = new Map(before.requests.map((one) => [`${one.key}.${one.index}`, one]));
  for (const one of after.requests) {
    const was = old.get(`${one.key}.${one.index}`);
    old.delete(`${one.key}.${one.index}`);
    const runs = one.state === "prefill" || one.state === "decode";
    if (one.preemptions > (was?.preemptions ?? 0)) {
      happened(`${nameOf(one)} was preempted and gave back ${plural(was?.pages ?? 0, "page")}`);
    } else if (was?.state === "preempted" && runs) {
      happened(`${nameOf(one)} runs again`);
    } else if (runs && (!was || was.state === "waiting")) {
      happened(`${nameOf(one)} began: ${plural(one.prompt, "prompt token")}${one.cached ? `, ${number(one.cached)} of them from shared pages` : ""}`);
    }
  }
  for (const one of old.values()) {
    if (!after.unlisted) happened(`${nameOf(one)} ended and left ${plural(one.pages, "page")}`);
  }
}

function takeLive(event) {
  const before = live;
  live = event;
  if (event.state !== "ready") {
    cells = [];
    $("map-title").textContent = "KV pages · the model is not loaded";
    return redraw();
  }
  if (before?.state === "ready" && before.model === event.model) compare(before, event);
  else samples = [];
  const now = performance.now();
  const next = [];
  const runs = event.pages.cells;
  for (let i = 0; i < runs.length; i += 2) {
    const cell = {state: runs[i] & 3, group: (runs[i] >> 2) & 255, owner: runs[i] >> 10};
    for (let count = runs[i + 1]; count > 0; --count) next.push(cell);
  }
  pooled = next.length;
  next.push(...tierCells(event.pages));
  const same = next.length === cells.length;
  if (!same) changed = new Array(next.length).fill(-kFade);
  for (let i = 0; same && i < next.length; ++i) if (next[i].state !== cells[i].state) changed[i] = now;
  cells = next;
  cursor = Math.min(cursor, Math.max(0, cells.length - 1));
  if (lit) lit = event.requests.find((one) => sameRequest(one, lit)) ?? null;
  samples.push({t: event.t, generated: event.generated, at: now});
  showNumbers();
  showGroups();
  showRequests();
  redraw();
}

// The pages below the pool: those that are known, then the others, on disk since an earlier run or for long.
function tierCells({tiers, on_disk, on_host}) {
  const next = [];
  let onDisk = 0, onHost = 0;
  for (let i = 0; i < tiers.length; i += 3) {
    const disk = tiers[i] & 1, host = (tiers[i] >> 1) & 1;
    for (let k = 0; k < tiers[i + 2]; ++k) next.push({state: host ? 4 : 5, group: tiers[i] >> 2, tier: tiers[i + 1] + k, count: 1});
    onDisk += disk * tiers[i + 2];
    onHost += host * tiers[i + 2];
  }
  for (const [state, older] of [[4, on_host - onHost], [5, on_disk - onDisk]]) {
    const per = Math.ceil(older / kMaxOlder);
    for (let left = older; left > 0; left -= per) next.push({state, group: null, tier: 0, count: Math.min(per, left)});
  }
  return next;
}

function showNumbers() {
  $("queue").textContent = `${number(live.running)} / ${number(live.waiting)}`;
  $("ttft").textContent = seconds(live.ttft_p50_s);
  $("itl").textContent = seconds(live.itl_p50_s);
  const {total, free, groups, per_cell, on_disk, on_host} = live.pages;
  const sum = (name) => groups.reduce((all, one) => all + one[name], 0);
  $("map-title").textContent = `KV pages · ${number(sum("used") + sum("shared"))} of ${number(total)} in use`
    + (on_host ? ` · ${number(on_host)} in host memory` : "") + (on_disk ? ` · ${number(on_disk)} on disk` : "");
  $("map").setAttribute("title", per_cell > 1 ? `Each square stands for ${per_cell} pages.` : "");
  const texts = {shared: sum("shared"), cached: sum("cached"), free};
  for (const [name, count] of Object.entries(texts)) {
    const item = document.querySelector(`#key .${name}`).parentElement;
    item.lastChild.textContent = `${name === "shared" ? "shared prefix" : name} ${number(count)}`;
  }
  for (const [name, count, text] of [["host", on_host, "in host memory"], ["disk", on_disk, "on disk"]]) {
    const item = document.querySelector(`#key .${name}`).parentElement;
    item.hidden = !count;
    item.lastChild.textContent = `${text} ${number(count)}`;
  }
}

const shapes = (kind) => (kind === "full" ? "shape" : `shape ${kind}`);
function showGroups() {
  const groups = live.pages.groups;
  if (groups.length < 2) return $("groups").replaceChildren();
  const labels = groups.map((one, index) => {
    const kind = {full: "attention", window: `window of ${number(one.window)}`, state: "recurrent state"}[one.kind];
    return `Group ${index + 1}, ${kind}: ${number(one.used + one.shared)} in use, ${number(one.cached)} cached`;
  });
  if ($("groups").childElementCount !== groups.length) {
    $("groups").replaceChildren(...groups.map((one, index) => el("button", {"aria-pressed": "false", onclick: (event) => {
      group = group === index ? null : index;
      for (const other of $("groups").children) other.setAttribute("aria-pressed", String(other === event.currentTarget && group !== null));
      redraw();
    }}, el("i", {class: shapes(one.kind)}), el("span"))));
  }
  labels.forEach((text, index) => ($("groups").children[index].lastChild.textContent = text));
}

const stateText = (one) => ({
  waiting: "waits",
  preempted: "preempted, again soon",
  prefill: `reads ${number(one.computed)} of ${number(one.prompt)}`,
  decode: `writes · ${number(one.tokens - one.prompt)}`,
})[one.state];

function showRequests() {
  const rows = live.requests.slice(0, 40);
  const most = Math.max(1, ...rows.map((one) => one.pages));
  $("requests").replaceChildren(...rows.map((one, index) => {
    const colour = one.state === "waiting" || one.state === "preempted" ? "off" : `r${one.key % 5}`;
    const fill = el("i");
    fill.style.width = `${(100 * one.pages) / most}%`;
    return el("tr", {class: sameRequest(one, lit) ? "lit" : null, "data-row": index},
      el("td", {}, el("i", {class: `dot ${colour}`}), nameOf(one)),
      el("td", {title: plural(one.pages, "page")}, el("span", {class: "fill"}, fill), el("span", {class: "hidden"}, plural(one.pages, "page"))),
      el("td", {}, stateText(one)));
  }));
  const more = live.requests.length - rows.length + live.unlisted;
  $("none").textContent = rows.length ? (more ? `and ${number(more)} more` : "") : "No requests. Send a message and watch its pages fill.";
}

$("requests").addEventListener("mouseover", (event) => light(live.requests[event.target.closest("tr")?.dataset.row]));
$("requests").addEventListener("mouseleave", () => light(null));
function light(one) {
  lit = one ?? null;
  [...$("requests").rows].forEach((row, index) => row.classList.toggle("lit", sameRequest(live.requests[index], lit)));
  redraw();
}

// The size of the map: squares as large as fit into a sensible height. The tiers begin below an empty row.
function layout() {
  const width = $("map").clientWidth, most = Math.max(220, innerHeight * 0.32);
  const rowsOf = (columns) => Math.max(1, Math.ceil(pooled / columns)) + (cells.length > pooled ? 1 + Math.ceil((cells.length - pooled) / columns) : 0);
  let size = Math.min(18, Math.max(3, Math.floor(Math.sqrt((width * most) / Math.max(1, cells.length)))));
  while (size > 3 && rowsOf(Math.floor(width / size)) * size > most) --size;
  const columns = Math.max(1, Math.floor(width / size));
  const below = (Math.ceil(pooled / columns) + 1) * columns;  // the first place of the tiers
  return {size: width / columns, columns, rows: rowsOf(columns), width, below};
}
const placeOf = (index, below) => (index < pooled ? index : below + index - pooled);
function indexAt(place, below) {
  const index = place < below ? place : pooled + place - below;
  return place >= 0 && (place < below ? index < pooled : index < cells.length) ? index : null;
}

let drawing = false;
function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function draw() {
  drawing = false;
  const canvas = $("map");
  if (!canvas.clientWidth) return;
  const {size, columns, rows, width, below} = layout();
  const scale = devicePixelRatio || 1, height = Math.ceil(rows * size);
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const paint = canvas.getContext("2d");
  const colour = (name) => getComputedStyle(document.querySelector(`.swatch.${name}`)).backgroundColor;
  const colours = Object.fromEntries(["free", "cached", "shared", "host", "disk"].map((name) => [name, colour(name)]));
  const owners = [0, 1, 2, 3, 4].map((index) => colour(`r${index}`));
  const mark = getComputedStyle(document.body).color;
  const gap = size > 9 ? 2 : size > 4 ? 1 : 0.5, side = Math.floor(size) - gap, now = performance.now();
  let fading = false;
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  cells.forEach((cell, index) => {
    const place = placeOf(index, below);
    const x = Math.round((place % columns) * size), y = Math.round(Math.floor(place / columns) * size);
    const state = kStates[cell.state];
    const owner = cell.owner ? live.requests[cell.owner - 1] : null;
    paint.fillStyle = state === "used" ? owners[(owner?.key ?? 0) % 5] : colours[state];
    const dim = (lit && !(cell.state >= 2 && sameRequest(owner, lit))) || (group !== null && (cell.group !== group || !cell.state));
    paint.globalAlpha = dim ? 0.18 : 1;
    const kind = cell.state && cell.group !== null ? live.pages.groups[cell.group]?.kind : "full";
    paint.beginPath();
    if (kind === "state") paint.arc(x + side / 2, y + side / 2, side / 2, 0, 7);
    else if (kind === "window") paint.roundRect(x, y + side * 0.2, side, side * 0.6, side / 5);
    else paint.roundRect(x, y, side, side, Math.min(2, side / 4));
    paint.fill();
    const age = now - changed[index];
    if (age < kFade && !still.matches) {
      fading = true;
      paint.globalAlpha = 0.55 * (1 - age / kFade);
      paint.strokeStyle = mark;
      paint.lineWidth = 1.5;
      paint.stroke();
    }
    const picked = index < pooled ? Math.floor((chosen - 1) / live.pages.per_cell) === index : cell.tier > 0 && chosen?.tier === cell.tier;
    if (chosen !== null && picked) outline(paint, x, y, side, mark);
  });
  paint.globalAlpha = 1;
  if (document.activeElement === canvas && cells.length) {
    const place = placeOf(cursor, below);
    outline(paint, (place % columns) * size, Math.floor(place / columns) * size, side, mark);
  }
  if (fading) redraw();
}

function outline(paint, x, y, side, colour) {
  paint.globalAlpha = 1;
  paint.strokeStyle = colour;
  paint.lineWidth = 2;
  paint.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
}

const whereOf = (cell) => (cell.state === 4 ? "in host memory" : "on disk");
function describe(index) {
  if (index >= pooled) {
    const cell = cells[index], where = whereOf(cell);
    if (!cell.tier) return `${plural(cell.count, "page")} ${where}, from earlier`;
    const kind = {full: "attention", window: "a window", state: "recurrent state"}[live.pages.groups[cell.group]?.kind];
    return `Stored page ${number(cell.tier)}, ${where}: ${kind}`;
  }
  const cell = cells[index], per = live.pages.per_cell, first = 1 + index * per;
  const last = Math.min(first + per - 1, live.pages.last);
  const owner = cell.owner ? live.requests[cell.owner - 1] : null;
  const who = cell.state === 2 && owner ? `used by ${nameOf(owner)}` : cell.state === 3 ? "shared by several requests" : kStates[cell.state];
  return `${per > 1 ? `Pages ${first} to ${last}, mostly` : `Page ${first},`} ${who}`;
}

const cellAt = (event) => {
  const {size, columns, below} = layout();
  const box = $("map").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / size);
  return column < columns ? indexAt(Math.floor((event.clientY - box.top) / size) * columns + column, below) : null;
};
// Where an arrow key leads: to the next cell, or the next row that has one in this column.
function moved(key) {
  const {columns, rows, below} = layout();
  const last = cells.length - 1;
  const plain = {ArrowLeft: Math.max(0, cursor - 1), ArrowRight: Math.min(last, cursor + 1), Home: 0, End: last}[key];
  const step = {ArrowUp: -columns, ArrowDown: columns}[key];
  if (!step) return plain;
  for (let place = placeOf(cursor, below) + step; place >= 0 && place < rows * columns; place += step) {
    const index = indexAt(place, below);
    if (index !== null) return index;
  }
  return step < 0 ? cursor : last;
}
$("map").addEventListener("mousemove", (event) => {
  const index = cellAt(event);
  if (index === null) return ($("tip").hidden = true);
  tip(describe(index), {left: event.clientX + 10, top: event.clientY, bottom: event.clientY + 10});
});
$("map").addEventListener("mouseleave", () => ($("tip").hidden = true));
$("map").addEventListener("click", (event) => {
  const index = cellAt(event);
  if (index !== null) showPage((cursor = index));
});
$("map").addEventListener("keydown", (event) => {
  if (!cells.length) return;
  const next = moved(event.key);
  if (next !== undefined) {
    event.preventDefault();
    cursor = next;
    say(describe(cursor), true);
    redraw();
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    showPage(cursor);
  } else if (event.key === "Escape") {
    closePage();
  }
});
for (const name of ["focus", "blur"]) $("map").addEventListener(name, redraw);
new ResizeObserver(redraw).observe($("map"));

function closePage() {
  chosen = null;
  $("page").hidden = true;
  redraw();
}

// Asks what the first page of a cell holds.
async function showPage(index) {
  if (index >= pooled) return showStored(cells[index]);
  chosen = 1 + index * live.pages.per_cell;
  redraw();
  const box = $("page");
  box.hidden = false;
  try {
    const page = await (await request(`live/page?id=${chosen}&model=${encodeURIComponent(model)}`)).json();
    if (page.id !== chosen) return;
    const holds = page.end === page.begin ? "nothing yet"
      : page.kind === "state" ? `the state after ${plural(page.end, "token")}` : `positions ${number(page.begin)} to ${number(page.end - 1)}`;
    const whom = page.requests.map(nameOf).join(", ");
    const texts = {free: "free", cached: `cached: ${holds}; no request uses it now`, used: `${holds} of ${whom}`, shared: `${holds}, shared by ${whom}`};
    box.replaceChildren(el("p", {}, el("b", {}, `Page ${number(page.id)}`), ` · ${texts[page.state]}`, " ",
      el("button", {class: "plain", "aria-label": "Close", onclick: closePage}, "×")));
    showTokens(box, page);
  } catch (error) {
    box.replaceChildren(el("p", {class: "error"}, error.message));
  }
}

function showTokens(box, page) {
  if (page.tokens.length) {
    box.append(el("div", {class: "held"}, ...page.tokens.map((token) => el("span", {title: `token ${token.id}`}, token.text))));
  } else if (!page.readable && page.end > page.begin) {
    box.append(el("p", {}, "Its tokens are not shown to you: they belong to another API key, or this server is open to others."));
  }
}

// The same of a page below the pool.
async function showStored(cell) {
  const box = $("page");
  const title = (name, text) => box.replaceChildren(el("p", {}, el("b", {}, name), ` · ${text}`, " ",
    el("button", {class: "plain", "aria-label": "Close", onclick: closePage}, "×")));
  chosen = {tier: cell.tier};
  redraw();
  box.hidden = false;
  if (!cell.tier) {
    return title(plural(cell.count, "stored page"), `${whereOf(cell)}; what they hold is known when a prompt asks for them`);
  }
  try {
    const page = await (await request(`live/page?tier=${cell.tier}&model=${encodeURIComponent(model)}`)).json();
    if (chosen?.tier !== page.tier) return;
    const holds = page.kind === "state" ? `the state after ${plural(page.end, "token")}` : `positions ${number(page.begin)} to ${number(page.end - 1)}`;
    const where = [page.on_host && "in host memory", page.on_disk && "on disk"].filter(Boolean).join(" and ");
    title(`Stored page ${number(page.tier)}`, where ? `${where}: ${holds}` : "deleted meanwhile");
    showTokens(box, page);
  } catch (error) {
    box.replaceChildren(el("p", {class: "error"}, error.message));
  }
}

// The rate over the last second, and its curve over the last minute.
function showRate() {
  const now = performance.now();
  while (samples.length > 2 && samples[1].at < now - 1000) samples.shift();
  const first = samples[0], last = samples.at(-1);
  const span = last ? Math.max(last.t - first.t, (now - first.at) / 1000) : 0;
  const rate = span > 0.05 ? (last.generated - first.generated) / span : 0;
  rates = [...rates.slice(-119), rate];
  $("rate").textContent = rate > 0 && rate < 10 ? rate.toFixed(1) : number(rate);
  const most = Math.max(1, ...rates) * 1.08;
  const points = rates.map((value, index) => `${(index + 120 - rates.length).toFixed(0)} ${(39 - (38 * value) / most).toFixed(1)}`);
  $("line").setAttribute("d", `M${points.join("L")}`);
  $("area").setAttribute("d", `M${120 - rates.length} 40L${points.join("L")}L119 40Z`);
}

// Listens while the page is visible; connects again when the connection is lost.
let listening = null;
async function listen() {
  listening?.abort();
  if (document.hidden) return;
  const controller = (listening = new AbortController());
  for (let wait = 500; !controller.signal.aborted; wait = Math.min(wait * 2, 10000)) {
    try {
      const answer = await request(`live?model=${encodeURIComponent(model)}`, {signal: controller.signal});
      for await (const event of events(answer)) {
        wait = 500;
        if (!controller.signal.aborted) takeLive(event);
      }
    } catch (error) {
      if (controller.signal.aborted) return;
      say(error.message, true);
    }
    if (!controller.signal.aborted) $("map-title").textContent = "KV pages · connecting again…";
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

document.addEventListener("visibilitychange", listen);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
whenModelChanges.push(() => {
  live = null;
  closePage();
  listen();
});

listConversations();
showAll();
$("ask").focus();
loadModels().then(() => {
  listen();
  setInterval(showRate, 500);
}).catch((error) => say(error.message));
