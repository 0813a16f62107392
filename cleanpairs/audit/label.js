"use strict";
(() => {
  const root = document.querySelector(".audit");
  if (!root) return;
  const cards = Array.from(root.querySelectorAll("article"));
  const whole = root.dataset.whole !== undefined;  // the page is this sheet, so its keys need no focus
  let unsaved = false;

  function show(card) {
    for (const button of card.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.value === card.dataset.label));
    }
  }

  function count() {
    root.querySelector("output").textContent = cards.filter((c) => c.dataset.label !== "").length;
  }

  function label(card, value) {
    card.dataset.label = value;
    show(card);
    count();
    unsaved = true;
    try {  // so that a closed window loses nothing; a browser may forbid it for files
      const all = Object.fromEntries(cards.map((c) => [c.dataset.pair, c.dataset.label]));
      localStorage.setItem(root.dataset.storage, JSON.stringify(all));
    } catch (error) { /* the CSV is what counts */ }
  }

  function focusOn(card) {
    if (card) {
      card.focus({ preventScroll: true });
      card.scrollIntoView({ block: "start" });
    }
  }

  function nextOpen(card) {
    const at = cards.indexOf(card);
    return cards.slice(at + 1).find((c) => c.dataset.label === "") || cards[at + 1];
  }

  function field(text) {
    const safe = /^[=+\-@\t\r']/.test(text) ? "'" + text : text;
    return '"' + safe.replaceAll('"', '""') + '"';
  }

  function save() {
    const lines = cards.map((c) =>
      [c.dataset.pair, c.dataset.label, field(c.dataset.key), field(c.dataset.stratum)].join(","));
    const text = "\ufeff" + ["pair_id,matched,key,stratum", ...lines].join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "labels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    unsaved = false;
  }

  root.querySelector(".save").addEventListener("click", save);
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-value]");
    const card = event.target.closest("article");
    if (button) {
      label(card, button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.value);
    } else if (card) {
      card.focus({ preventScroll: true });
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const focused = document.activeElement.closest("article");
    const card = cards.includes(focused) ? focused : whole ? cards[0] : undefined;
    if (!card) return;
    const at = cards.indexOf(card);
    const value = { m: "1", n: "0", u: "?" }[event.key.toLowerCase()];
    if (value !== undefined) {
      label(card, value);
      focusOn(nextOpen(card));
    } else if (event.key === "ArrowDown") {
      focusOn(cards[at + 1]);
    } else if (event.key === "ArrowUp") {
      focusOn(cards[at - 1]);
    } else if (event.key === "Backspace") {
      label(card, "");
    } else {
      return;
    }
    event.preventDefault();
  });
  window.addEventListener("beforeunload", (event) => {
    if (unsaved) event.preventDefault();
  });

  try {
    const kept = JSON.parse(localStorage.getItem(root.dataset.storage) || "{}");
    for (const card of cards) {
      if (["1", "0", "?"].includes(kept[card.dataset.pair])) card.dataset.label = kept[card.dataset.pair];
    }
  } catch (error) { /* none kept */ }
  cards.forEach(show);
  count();
  if (whole && cards.length) cards[0].focus({ preventScroll: true });
})();
