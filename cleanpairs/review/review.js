"use strict";
const $ = (id) => document.getElementById(id);
const ROW = 48, WINDOW = 100;
const NAMES = { keep: "keep", drop: "drop", rematch_text: "another caption", rematch_image: "another image", recaption: "a caption of your own", quarantine: "quarantine" };
const page = { id: "", opened: 0 };
let list = { name: "", total: 0, rows: new Map(), wanted: new Set() };
let at = -1, shown = null, busy = false, state = {};

async function ask(path, body) {
  const how = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try { answer = await fetch(path, how); } catch { throw new Error("the server does not answer; start cleanpairs review again: nothing that was decided is lost"); }
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(found.error || `the server answered ${answer.status}`), { status: answer.status });
  return found;
}

function make(tag, text, props) {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = text;
  return Object.assign(e, props || {});
}

const say = (text) => { $("said").textContent = text; };
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + " %";
const range = (s) => s ? `${percent(s[0])} (${percent(s[1])} to ${percent(s[2])})` : "unknown";

function progress(found) {
  state = Object.assign(state, found);
  const [flagged, ofFlagged] = state.flagged, [repaired, ofRepaired] = state.repaired;
  $("progress").textContent = `${state.decided} of ${state.pairs} decided; to do: ${flagged} of ${ofFlagged} flagged, ${repaired} of ${ofRepaired} repairs. `
    + `Of the flagged ${range(state.precision)} are mismatched; in the output ${range(state.wrong)}; `
    + (state.rest ? `about ${state.rest} more decisions to get below ${percent(state.goal)}.` : `expected below ${percent(state.goal)}: enough.`)
    + ` Estimated anew in ${state.again}.`;
  $("bar").max = Math.max(state.pairs, 1);
  $("bar").value = state.decided;
}

async function relist(keep) {
  const params = new URLSearchParams({ show: $("show").value, sort: $("sort").value, q: $("query").value });
  const found = await ask("list?" + params);
  list = { name: found.list, total: found.total, rows: new Map(found.rows.map((r, i) => [i, r])), wanted: new Set([0]) };
  $("count").textContent = `${list.total} pairs`;
  for (const id of ["keep-listed", "drop-listed"]) $(id).hidden = !$("query").value.trim() || !list.total;
  $("space").style.height = list.total * ROW + "px";
  if (!keep) { $("list").scrollTop = 0; at = -1; }
  draw();
  if (!keep) await go(0);
}

async function fetchRows(start) {
  if (list.wanted.has(start)) return;
  const mine = list;
  mine.wanted.add(start);
  try {
    const found = await ask(`rows?list=${mine.name}&start=${start}&count=${WINDOW}`);
    found.rows.forEach((r, i) => mine.rows.set(start + i, r));
  } catch (error) {
    mine.wanted.delete(start);
    if (error.status === 410 && mine === list) return relist(true);
    throw error;
  }
  if (mine === list) draw();
}

function draw() {
  const box = $("list"), first = Math.max(0, Math.floor(box.scrollTop / ROW) - 8);
  const last = Math.min(list.total, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 8);
  const rows = [];
  for (let i = first; i < last; i++) {
    const r = list.rows.get(i);
    if (!r) { fetchRows(Math.floor(i / WINDOW) * WINDOW).catch((e) => say(e.message)); continue; }
    const row = make("div", null, { className: "row" + (r.decided ? " done" : ""), id: "row-" + i });
    row.style.top = i * ROW + "px";
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(i === at));
    row.setAttribute("aria-setsize", list.total);
    row.setAttribute("aria-posinset", i + 1);
    row.dataset.at = i;
    row.append(make("span", r.caption || "(empty caption)"), make("small", `${r.score.toFixed(3)} · ${NAMES[r.action]} · pair ${r.pair}, ${r.key}`));
    rows.push(row);
  }
  $("space").replaceChildren(...rows);
  if (at >= first && at < last) box.setAttribute("aria-activedescendant", "row-" + at); else box.removeAttribute("aria-activedescendant");
}

async function go(i) {
  if (!list.total) { show(null); return; }
  at = Math.max(0, Math.min(i, list.total - 1));
  if (!list.rows.has(at)) await fetchRows(Math.floor(at / WINDOW) * WINDOW);
  const box = $("list"), top = at * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  draw();
  const row = list.rows.get(at);
  if (row) await open(row.pair);
}

async function open(pair) {
  const found = await ask("pair/" + pair);
  if (list.rows.get(at)?.pair === pair) show(found);
}

function picture(pair, key, into) {
  const blank = into === $("image") ? $("blank") : null;
  if (blank) { blank.hidden = true; into.hidden = false; }
  into.alt = `image of pair ${pair}, ${key}`;
  into.onload = () => into.classList.toggle("small", into.naturalWidth < 300);
  into.onerror = () => { into.hidden = true; if (blank) { blank.hidden = false; blank.textContent = "There is no picture in the data, or it cannot be read. Look it up by its key."; } };
  into.src = "image/" + pair;
}

function marked(caption, words, into) {
  const odd = new Set(words || []);
  for (const part of caption.split(/([\p{L}\p{N}_]+)/u)) into.append(odd.has(part.toLowerCase()) ? make("mark", part, { title: "hardly any caption of a similar image says this" }) : part);
}

function option(value, caption, note, checked, odd) {
  const label = make("label", null, { className: "option" }), text = make("span");
  const radio = make("input", null, { type: "radio", name: "option", value: String(value), checked });
  radio.addEventListener("change", () => preview());
  marked(caption || "(empty caption)", odd, text);
  text.append(make("small", note));
  label.append(radio, text);
  $("options").append(label);
}

function preview() {
  const chosen = shown && shown.options[choice() - 1];
  if (shown) picture(chosen && chosen.action === "rematch_image" ? chosen.donor : shown.pair, shown.key, $("image"));
}

const choice = () => +(document.querySelector("[name=option]:checked")?.value ?? 0);

function neighbours(title, found, odd) {
  if (!found || !found.length) return;
  const ul = make("ul");
  for (const n of found) {
    const li = make("li"), img = make("img");
    li.append(img, make("span", n.caption || "(empty caption)"), make("small", n.similarity.toFixed(2), { title: "cosine" }));
    picture(n.pair_id, n.key, img);
    ul.append(li);
  }
  $("evidence").append(make("h2", title), ul);
}

function show(p) {
  shown = p;
  $("editor").hidden = true;
  $("one").hidden = !p;
  $("options").replaceChildren($("options").firstElementChild);
  $("evidence").replaceChildren();
  for (const b of document.querySelectorAll("#actions button, #drop-alike")) b.disabled = !p && b.dataset.key !== "u";
  if (!p) { say("No pair is to be shown here: choose others, or write the plan."); return; }
  $("key").textContent = `pair ${p.pair}, ${p.key} · ${at + 1} of ${list.total}`;
  const planned = p.options.length && p.options[0].planned, decided = p.decision;
  let first = planned ? 1 : 0;
  if (decided) first = decided.action === "keep" || decided.action === "drop" ? 0 : 1 + p.options.findIndex((o) => o.action === decided.action && (o.donor ?? null) === (decided.donor ?? null));
  option(0, p.caption, "its own caption", first === 0, p.unsupported);
  p.options.forEach((o, k) => option(k + 1, o.action === "rematch_image" ? p.caption : o.caption, (o.planned ? "the plan's repair: " : "") + NAMES[o.action] + (o.donor == null ? "" : `, of pair ${o.donor}`), first === k + 1));
  preview();
  const held = decided ? `Decided: ${NAMES[decided.action]}${decided.caption ? " “" + decided.caption + "”" : ""}.` : `Planned: ${NAMES[p.plan]}${p.reason ? " (" + p.reason + ")" : ""}.`;
  $("state").textContent = `${held} Correspondence ${p.score.toFixed(3)}, ${p.flagged ? "flagged" : "not flagged"}; probability of being matched by the answers so far ${p.matched.toFixed(2)}.`;
  $("drop-alike").textContent = `Drop all ${p.alike} with this caption`;
  $("drop-alike").disabled = p.alike < 1;
  if (p.why !== undefined) $("evidence").append(make("h2", "Why"), make("p", p.why));
  neighbours("What captions of similar images say", p.similar_images);
  neighbours("Which images similar captions have", p.similar_captions);
  new Image().src = !list.rows.get(at + 1) ? "data:," : "image/" + list.rows.get(at + 1).pair;
}

let running = Promise.resolve();
async function act(work, later) {
  if (busy && !later) return; // a key is about the pair that was seen
  const before = running;
  running = (async () => {
    await before;
    busy = true;
    try { await work(); } catch (error) { say(error.message); } finally { busy = false; }
  })();
  await running;
}

async function decide(action, more) {
  if (!shown) return;
  const sort = $("query").value.trim() ? "" : $("sort").value, round = state.round, pair = shown.pair;
  const found = await ask("decide", { pair, action, page: page.id, sort, ...more });
  list.rows.set(at, found.rows[0]);
  progress(found);
  say(`Pair ${pair}: ${NAMES[action]}.` + (found.round !== round ? " Estimated anew." : ""));
  if (found.round !== round && $("sort").value === "asked") await relist(false);
  else if (at + 1 < list.total) await go(at + 1);
  else { draw(); await relist(false); }
}

async function batch(what, action) {
  const found = await ask("batch", { ...what, action, page: page.id });
  progress(found);
  await relist(false);
  say(`${found.changed} pairs: ${action}. u takes it back.`);
}

async function undo() {
  const found = await ask("undo", { page: page.id, opened: page.opened });
  progress(found);
  if (!found.changed) { say("This page has nothing to undo."); return; }
  const back = found.rows[0], there = [...list.rows].find(([, r]) => r.pair === back.pair);
  if (found.changed > 1 || !there) await relist(true);
  if (there && found.changed === 1) { list.rows.set(there[0], back); await go(there[0]); } else { show(await ask("pair/" + back.pair)); }
  say(found.changed > 1 ? `Taken back: ${found.changed} pairs.` : `Taken back: pair ${back.pair}.`);
}

function edit() {
  if (!shown) return;
  const chosen = shown.options[choice() - 1];
  $("typed").value = chosen && chosen.action !== "rematch_image" ? chosen.caption : shown.raw;
  $("editor").hidden = false;
  $("typed").focus();
}

const KEYS = {
  a: () => { const o = shown && shown.options[choice() - 1]; return o ? decide(o.action, { donor: o.donor, caption: o.action === "recaption" ? o.raw : null }) : decide("keep"); },
  d: () => decide("drop"),
  e: () => edit(),
  j: () => go(at + 1),
  k: () => go(at - 1),
  u: () => undo(),
};

document.addEventListener("keydown", (event) => {
  const inside = event.target.matches("input:not([type=radio]), textarea, select");
  if (event.target.id === "typed" && event.key === "Escape") { $("editor").hidden = true; $("one").focus(); return; }
  if (event.target.id === "typed" && event.key === "Enter" && event.ctrlKey) { event.preventDefault(); $("editor").requestSubmit(); return; }
  if (inside || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.target.id === "list" ? { ArrowDown: "j", ArrowUp: "k" }[event.key] || event.key : event.key;
  if (/^[0-9]$/.test(key)) { const radio = document.querySelector(`[name=option][value="${key}"]`); if (radio) { radio.checked = true; preview(); } return; }
  if (KEYS[key]) { event.preventDefault(); act(KEYS[key]); }
});
for (const b of document.querySelectorAll("#actions button")) b.addEventListener("click", () => act(KEYS[b.dataset.key]));
$("editor").addEventListener("submit", (event) => { event.preventDefault(); act(async () => { await decide("recaption", { caption: $("typed").value }); $("one").focus(); }); });
$("cancel").addEventListener("click", () => { $("editor").hidden = true; $("one").focus(); });
$("tools").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["show", "sort"]) $(id).addEventListener("change", () => act(() => relist(false), true));
let waiting = 0;
$("query").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => act(() => relist(false), true), 150); });
$("list").addEventListener("scroll", () => requestAnimationFrame(draw));
$("list").addEventListener("click", (event) => { const row = event.target.closest(".row"); if (row) act(() => go(+row.dataset.at)); });
$("drop-alike").addEventListener("click", () => act(() => batch({ alike: shown.pair }, "drop")));
$("keep-listed").addEventListener("click", () => act(() => batch({ list: list.name }, "keep")));
$("drop-listed").addEventListener("click", () => act(() => batch({ list: list.name }, "drop")));
$("write").addEventListener("click", () => act(async () => {
  const found = await ask("write", {});
  $("written").textContent = `Written: ${found.plan}${found.labels ? " and " + found.labels : ""} (${found.kept} kept, ${found.repaired} repaired, ${found.dropped} dropped).`;
}));
window.addEventListener("resize", () => requestAnimationFrame(draw));

act(async () => {
  const found = await ask("state");
  const known = JSON.parse(sessionStorage.getItem("page") || "null");
  Object.assign(page, known || { id: crypto.randomUUID(), opened: found.opened });
  sessionStorage.setItem("page", JSON.stringify(page));
  document.title = $("title").textContent = found.title;
  progress(found);
  if (found.damaged) say(`${found.damaged} lines of the log cannot be used and were left out.`);
  await relist(false);
});
