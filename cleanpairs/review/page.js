"use strict";
const $ = (id) => document.getElementById(id);
const DONE = { keep: "belongs", drop: "does not belong", unsure: "cannot say", rematch_text: "another caption", rematch_image: "another image", recaption: "your caption" };
const PLAN = { keep: "keep the pair", drop: "drop the pair", rematch_text: "repair", rematch_image: "repair", recaption: "repair" };
let blind = false, pairs = [], total = 0, answered = new Set(), at = 0, shown = null, busy = false, ended = false;
let listed = {};  // what the pairs were listed by
const undoable = [];  // [name of a decision, the pair that it was made at]

async function ask(path, body) {
  const how = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try { answer = await fetch(path, how); } catch { throw new Error("The server does not answer. Start the command again: all answers are saved."); }
  const text = await answer.text();
  let found = {};
  try { found = JSON.parse(text); } catch { found.error = text; }
  if (!answer.ok) throw new Error(found.error || `the server answered ${answer.status}`);
  return found;
}

function make(tag, text, props) {
  const e = Object.assign(document.createElement(tag), props || {});
  if (text) e.textContent = text;
  return e;
}

const say = (text) => { $($("pair").hidden ? "progress" : "message").textContent = text; };
const percent = (x) => (100 * x).toFixed(1) + " %";
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

function progress() {
  const asked = blind ? total : pairs.length;  // a calibration chooses its pairs as it goes
  $("progress").textContent = `${answered.size} of ${asked} answered` + (total > asked ? ` (the first of ${total})` : "");
  $("bar").max = Math.max(asked, 1);
  $("bar").value = answered.size;
}

async function list() {
  const words = $("words").value.trim(), by = blind ? {} : { show: $("show").value, words };
  const found = await ask("queue?" + new URLSearchParams(by));
  ({ pairs, total } = found);
  listed = by;
  answered = new Set(found.answered);
  if (!blind) tell(found);
  for (const id of ["keep-all", "drop-all"]) $(id).hidden = !words || !total;
  progress();
}

function tell(found) {
  $("rate").textContent = found.mismatched ? `Of ${plural(found.kept, "kept pair")} about ${percent(found.mismatched[0])} (${percent(found.mismatched[1])} to ${percent(found.mismatched[2])}) ${found.counted}.`
    : `Kept: ${plural(found.kept, "pair")}. “cleanpairs audit” measures how many are mismatched.`;
}

async function start() {
  await list();
  $("message").textContent = "";
  const open = pairs.findIndex((i) => !answered.has(i));
  await go(Math.max(open, 0));
  ended = open < 0;
  if (open < 0) say(pairs.length ? "All listed pairs are answered." : "No pair is listed.");
}

async function go(to) {
  ended = false;
  at = Math.max(0, Math.min(to, pairs.length - 1));
  show(pairs.length ? await ask("question/" + pairs[at]) : null);
}

function picture(pair, into, key) {
  into.hidden = false;
  into.alt = `image of pair ${pair}, ${key}`;
  into.onerror = () => { into.hidden = true; if (into === $("image")) $("blank").hidden = false; };
  into.removeAttribute("src");  // else the image of the last pair stays beside the new caption until this one is there
  into.src = "image/" + pair;
}

function marked(caption, words, into) {
  const odd = new Set(words || []);
  into.replaceChildren(...caption.split(/([\p{L}\p{N}_]+)/u).map((part) => odd.has(part.toLowerCase()) ? make("mark", part, { title: "hardly any caption of a similar image has this word" }) : part));
}

function show(question) {
  shown = question;
  $("pair").hidden = !shown;
  $("editor").hidden = true;
  if (!shown) return;
  $("place").textContent = `${at + 1} of ${blind ? total : pairs.length} · pair ${shown.pair}, key ${shown.key}`;
  marked(shown.caption || "(no caption)", shown.unsupported, $("caption"));
  $("blank").hidden = true;
  picture(shown.pair, $("image"), shown.key);
  const given = shown.answer;
  for (const b of $("answers").children) b.setAttribute("aria-pressed", String(given !== null && given.action === b.dataset.action));
  if (at + 1 < pairs.length) new Image().src = "image/" + pairs[at + 1];
  if (blind) return;
  $("planned").textContent = "as planned: " + PLAN[shown.plan];
  $("options").replaceChildren(...shown.options.map((o, k) => {
    const chosen = given !== null && given.action === o.action && (given.donor ?? null) === (o.donor ?? null) && (given.caption === null || given.caption === o.raw);
    const b = make("button", null, { type: "button" });
    b.dataset.key = k + 1;
    b.setAttribute("aria-pressed", String(chosen));
    if (o.action === "rematch_image") { const img = make("img"); picture(o.donor, img, "another image"); b.append(img); }
    b.append(make("kbd", String(k + 1)), make("span", o.action === "rematch_image" ? "this caption, with the image of pair " + o.donor : o.caption), make("small", o.planned ? "the planned repair" : ""));
    return b;
  }));
  if (given !== null && given.action === "recaption") say(`Your caption: “${given.caption}”`);
  $("drop-alike").hidden = shown.alike < 2;
  $("drop-alike").textContent = `Drop all ${shown.alike} pairs with this caption`;
  const evidence = $("evidence");
  evidence.replaceChildren(make("p", `Correspondence ${shown.score.toFixed(3)} (1: caption and image belong together, 0: they do not), ${shown.flagged ? "flagged" : "not flagged"}. Plan: ${PLAN[shown.plan]}${shown.reason ? " (" + shown.reason + ")" : ""}.`));
  if (shown.why) {
    const why = make("p");  // quoted words keep their place, also where they are written from right to left
    why.append(...`Why: ${shown.why}.`.split(/(?<=“)|(?=”)/).map((part, k) => k % 2 ? make("bdi", part) : part));
    evidence.append(why);
  }
  for (const [title, found] of [["Captions of similar images", shown.similar_images], ["Images of similar captions", shown.similar_captions]]) {
    if (!found || !found.length) continue;
    const ul = make("ul");
    for (const n of found) {
      const li = make("li"), img = make("img");
      li.append(img, make("span", n.caption || `(no caption, key ${n.key})`));
      picture(n.pair_id, img, n.key);
      ul.append(li);
    }
    evidence.append(make("h3", title), ul);
  }
}

async function act(work) {
  if (busy) return;  // a key is about the pair that was seen
  busy = true;
  try { await work(); } catch (error) { say(error.message); } finally { busy = false; }
}

async function answer(action, more) {
  if (!shown) return;
  const pair = shown.pair;
  const made = await ask("decide", { pair, action, ...more });
  undoable.push([made.name, pair]);
  answered.add(pair);
  progress();
  if (made.rate) tell(made.rate);
  if (blind && answered.size >= pairs.length) await list();
  let next = at + 1;
  while (next < pairs.length && answered.has(pairs[next])) next++;
  const left = next < pairs.length ? next : pairs.findIndex((i) => !answered.has(i));
  await go(left < 0 ? at : left);
  ended = left < 0;
  say(`Pair ${pair}: ${DONE[action]}.` + (left < 0 ? " All listed pairs are answered." + ` Press “${$("finish").textContent}”.` : ""));
}

async function answerAll(what, action) {
  const pair = shown && shown.pair, made = await ask("decide_all", { ...what, action });
  if (made.name) undoable.push([made.name, pair]);
  await start();
  say(`${plural(made.changed, "pair")}: ${DONE[action]}.` + (made.name ? " Press z to undo." : ""));
}

async function undo() {
  if (!undoable.length) return say("There is nothing to undo since the page was opened. Go back to the pair and answer again.");
  const [name, pair] = undoable.pop(), { pairs: back } = await ask("undo", { name });
  await list();
  const place = pairs.indexOf(pair);
  if (place >= 0) await go(place); else show(await ask("question/" + pair));
  say(back.length > 1 ? `Undone: ${back.length} answers.` : `Undone: the answer about pair ${pair}.`);
}

function edit() {
  $("typed").value = shown.answer?.caption ?? shown.raw;
  $("editor").hidden = false;
  $("typed").focus();
}

function press(typed) {
  const button = [...document.querySelectorAll("main [data-key]")].find((b) => b.dataset.key.toLowerCase() === typed.toLowerCase() && b.checkVisibility());
  if (!button) return false;
  const key = button.dataset.key;
  act(() => {
    if (ended && !["ArrowLeft", "ArrowRight", "z", "e"].includes(key)) return say("All listed pairs are answered. To change an answer, press z, ← or → first.");
    if (button.dataset.action) return answer(button.dataset.action);
    if (key === "ArrowLeft") return go(at - 1);
    if (key === "ArrowRight") return go(at + 1);
    if (key === "z") return undo();
    if (key === "e") return edit();
    const o = shown.options[key - 1];
    return answer(o.action, { donor: o.donor, caption: o.raw });
  });
  return true;
}

function close() { $("editor").hidden = true; $("pair").focus(); }

document.addEventListener("keydown", (event) => {
  if (event.target.id === "typed" && event.key === "Escape") return close();
  if (event.target.id === "typed" && event.key === "Enter" && event.ctrlKey) { event.preventDefault(); return $("editor").requestSubmit(); }
  if (event.target.matches("input, textarea, select") || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (press(event.key)) event.preventDefault();
});
document.querySelector("main").addEventListener("click", (event) => { const button = event.target.closest("[data-key]"); if (button) press(button.dataset.key); });
$("editor").addEventListener("submit", (event) => { event.preventDefault(); act(async () => { await answer("recaption", { caption: $("typed").value }); close(); }); });
$("cancel").addEventListener("click", close);
$("tools").addEventListener("submit", (event) => event.preventDefault());
let waiting = 0;
function relist(after) {  // an answer may be on its way
  clearTimeout(waiting);
  waiting = setTimeout(() => { if (busy) relist(50); else act(start); }, after);
}
$("show").addEventListener("change", () => relist(0));
$("words").addEventListener("input", () => relist(200));
$("drop-alike").addEventListener("click", () => act(() => answerAll({ alike: shown.pair }, "drop")));
for (const action of ["keep", "drop"]) $(action + "-all").addEventListener("click", () => act(() => answerAll(listed, action)));
$("finish").addEventListener("click", () => act(async () => {
  const { text } = await ask("write", {});
  $("result").hidden = false;
  $("result").textContent = text;
  $("result").scrollIntoView();
}));

act(async () => {
  const state = await ask("state");
  blind = state.blind;
  document.title = $("title").textContent = state.title;
  $("tools").hidden = $("more").hidden = blind;
  for (const small of $("answers").querySelectorAll("small")) small.hidden = blind;
  if (blind) $("rate").textContent = "The scores are hidden, so that they do not influence you.";
  $("finish").textContent = blind ? "Show the result" : "Write the plan";
  await start();
  if (state.damaged) say(`Left out of the file of answers: ${plural(state.damaged, "damaged line")}.`);
});
