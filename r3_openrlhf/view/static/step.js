// Filters and order of a table: the groups of a step, the problems of an evaluation. Both are in the address, so that a view can be shared.
"use strict";
(function () {
  const table = document.getElementById("groups");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const texts = new Map(rows.map((row) => [row, row.cells[0].textContent.toLowerCase()])); // before formulas are typeset
  const buttons = [...document.querySelectorAll("[data-filter]")];
  const older = document.getElementById("older"), short = document.getElementById("short"), text = document.getElementById("text");
  const wants = {
    "mixed": (row) => row.state === "mixed",
    "all-right": (row) => row.state === "all-right",
    "all-wrong": (row) => row.state === "all-wrong",
    "left": (row) => row.fate !== "" && !["recalled", "ranked", "reflected"].includes(row.fate),
    "wrong-nothing": (row) => row.state === "all-wrong" && row.recalled === "0",
    "recalled": (row) => row.recalled !== "0",
    "older": (row) => row.recalled !== "0" && Number(row.age) > Number(older.value),
    "reflection": (row) => row.context === "reflection",
    "ranked": (row) => row.ranked !== "0",
    "short": (row) => row.short !== "" && Number(row.short) < Number(short.value),
    "ungraded": (row) => row.ungraded !== "0",
    "cut": (row) => row.cut !== "0",
    "suspicious": (row) => row.suspicious !== "0",
    "never": (row) => row.most === "0.0",
    "always": (row) => row.least === "1.0",
    "rose": (row) => row.first !== "" && Number(row.right) > Number(row.first),
    "fell": (row) => row.first !== "" && Number(row.right) < Number(row.first),
    "marked": (row) => row.marked === "1",
    "right-right": (row) => row.kind === "right-right",
    "right-wrong": (row) => row.kind === "right-wrong",
    "wrong-right": (row) => row.kind === "wrong-right",
    "wrong-wrong": (row) => row.kind === "wrong-wrong",
  };
  let order = { by: "place", down: false };

  function show() {
    const pressed = buttons.filter((button) => button.getAttribute("aria-pressed") === "true").map((button) => button.dataset.filter);
    const part = (text ? text.value : "").trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = pressed.every((name) => wants[name](row.dataset)) && (!part || texts.get(row).includes(part));
      if (row.hidden === fits) row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent = shown;
    const value = (row) => row.dataset[order.by] === "" ? -Infinity : Number(row.dataset[order.by]);
    const sorted = order.by === "fate"
      ? [...rows].sort((a, b) => (a.dataset.fate || "~").localeCompare(b.dataset.fate || "~") || a.dataset.place - b.dataset.place)
      : [...rows].sort((a, b) => value(a) - value(b) || a.dataset.place - b.dataset.place);
    if (order.down) sorted.reverse();
    const now = table.tBodies[0].rows;
    if (sorted.some((row, place) => now[place] !== row)) table.tBodies[0].append(...sorted);
    for (const head of table.tHead.querySelectorAll("[data-sort]")) {
      if (head.dataset.sort === order.by && order.by !== "place") head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const query = new URLSearchParams();
    if (pressed.length) query.set("show", pressed.join(" "));
    if (pressed.includes("older")) query.set("older", older.value);
    if (pressed.includes("short")) query.set("short", short.value);
    if (part) query.set("text", part);
    if (order.by !== "place" || order.down) query.set("sort", (order.down ? "-" : "") + order.by);
    const wanted = query.toString();
    if (wanted !== location.search.slice(1)) history.replaceState(null, "", wanted ? `?${wanted}` : location.pathname);
  }

  // how many rows each filter alone would show
  function count() {
    for (const button of buttons) if (wants[button.dataset.filter]) {
      const mark = button.querySelector(".count") || button.appendChild(Object.assign(document.createElement("span"), { className: "count" }));
      mark.setAttribute("aria-hidden", "true");
      mark.textContent = rows.filter((row) => wants[button.dataset.filter](row.dataset)).length;
    }
  }

  const query = new URLSearchParams(location.search);
  const asked = (query.get("show") || "").split(" ");
  for (const button of buttons) {
    if (asked.includes(button.dataset.filter)) button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      show();
    });
  }
  if (older && query.has("older")) older.value = query.get("older");
  if (short && query.has("short")) short.value = query.get("short");
  if (text && query.has("text")) text.value = query.get("text");
  const by = (query.get("sort") || "place").replace(/^-/, "");
  if (table.tHead.querySelector(`[data-sort="${CSS.escape(by)}"]`)) order = { by, down: (query.get("sort") || "").startsWith("-") };
  for (const input of [older, short, text]) if (input) input.addEventListener("input", () => { count(); show(); });
  for (const head of table.tHead.querySelectorAll("[data-sort]")) {
    head.querySelector("button").addEventListener("click", () => {
      const by = head.dataset.sort;
      order = { by, down: order.by === by ? !order.down : !["place", "fate"].includes(by) };
      show();
    });
  }
  count();
  show();

  // ── formulas in the problems' titles, once the page is drawn ──
  const later = window.requestIdleCallback ? (act) => requestIdleCallback(act, { timeout: 500 }) : (act) => setTimeout(act, 100);
  addEventListener("load", () => later(() => {
    if (!table.querySelector("[data-math]")) return;
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: table.dataset.style });
    const scripts = [table.dataset.katex, table.dataset.typeset].map((src) => Object.assign(document.createElement("script"), { src, async: false }));
    document.head.append(style, ...scripts);
  }));
})();
