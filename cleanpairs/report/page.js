(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const page = document.documentElement;
  for (const part of document.querySelectorAll(".script[hidden]")) part.hidden = false;

  // -- dark and light: the system's, unless somebody chose ------------------------------------------------------------
  const isDark = () => (page.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "")) === "dark";
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch (error) { /* for this visit then */ } };
  try {
    const kept = localStorage.getItem("cleanpairs-theme");
    if (kept === "dark" || kept === "light") page.dataset.theme = kept;
  } catch (error) { /* a browser may forbid it for files */ }
  function turn() {
    page.dataset.theme = isDark() ? "light" : "dark";
    remember("cleanpairs-theme", page.dataset.theme);
  }
  $("theme").addEventListener("click", turn);

  // -- cards: filter and sort -----------------------------------------------------------------------------------------
  const sections = Array.from(document.querySelectorAll(".gallery")).map((node) => ({
    none: node.querySelector(".none"),
    box: node.querySelector(".cards"),
    cards: Array.from(node.querySelectorAll(".card")).map((card, place) => ({
      node: card,
      place,
      kind: card.dataset.kind,
      pair: Number(card.dataset.pair),
      score: "score" in card.dataset ? Number(card.dataset.score) : NaN,
      repair: "repair" in card.dataset ? Number(card.dataset.repair) : NaN,
      text: Array.from(card.querySelectorAll(".caption, .key, .verdict"), (p) => p.textContent).join(" ").toLocaleLowerCase(),
      caption: card.querySelector(".caption").textContent.trim(),
    })),
  }));

  const compare = (a, b, by) => {  // what has no such number comes last
    const down = by.startsWith("-"), name = down ? by.slice(1) : by;
    if (name === "caption") return a.caption.localeCompare(b.caption) || a.place - b.place;
    const x = a[name], y = b[name];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.place - b.place;
    return (down ? y - x : x - y) || a.place - b.place;
  };

  function apply() {
    const words = $("query").value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    const kind = $("kind").value, order = $("order").value;
    const bound = (id, otherwise) => ($(id).value === "" ? otherwise : Number($(id).value));
    const least = bound("least", -Infinity), most = bound("most", Infinity);
    const ranged = least > -Infinity || most < Infinity;
    let shown = 0, all = 0;
    for (const section of sections) {
      let here = 0;
      for (const card of section.cards) {
        const inside = Number.isNaN(card.score) ? !ranged : card.score >= least && card.score <= most;
        const fits = inside && (!kind || card.kind === kind) && words.every((word) => card.text.includes(word));
        card.node.hidden = !fits;
        here += fits;
      }
      const sorted = section.cards.slice().sort((a, b) => (order ? compare(a, b, order) : a.place - b.place));
      section.box.append(...sorted.map((card) => card.node));
      section.none.hidden = here > 0;
      shown += here;
      all += section.cards.length;
    }
    $("shown").textContent = shown === all ? `all ${all} cards` : `${shown} of ${all} cards`;
  }
  const controls = ["query", "kind", "least", "most", "order"];
  if ($("query")) {
    for (const id of controls) $(id).addEventListener("input", apply);
    $("reset").addEventListener("click", () => {
      for (const id of controls) $(id).value = "";
      apply();
    });
    apply();
  }

  // -- tables: sort by a heading --------------------------------------------------------------------------------------
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = Array.from(table.tHead.rows[0].cells);
    const value = (row, at) => {
      const cell = row.cells[at];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);  // a dash is NaN: last
    };
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = at === 0 || typeof value(body.rows[0], at) === "string" ? "ascending" : "descending";
        const now = head.getAttribute("aria-sort");
        const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        body.append(...Array.from(body.rows).sort((a, b) => {
          const x = value(a, at), y = value(b, at);
          if (typeof x === "string") return sign * x.localeCompare(y);
          if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
          return sign * (x - y);
        }));
      });
    });
  }

  // -- keys -----------------------------------------------------------------------------------------------------------
  const dialog = $("keys");
  $("help").addEventListener("click", () => dialog.showModal());
  $("close").addEventListener("click", () => dialog.close());
  function move(step) {
    const cards = Array.from(document.querySelectorAll(".card")).filter((card) => !card.hidden);
    const at = cards.indexOf(document.activeElement.closest(".card"));
    const next = at < 0 ? cards[step > 0 ? 0 : cards.length - 1] : cards[at + step];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "center" });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/" && $("query")) $("query").focus();
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "t") turn();
    else return;
    event.preventDefault();
  });
})();
