// What every page has: keys, the theme, help, and news of runs that go on.
"use strict";
(function () {
  const $ = (query) => document.querySelector(query);
  const root = document.documentElement.dataset.root;
  const help = $("#help");
  $("#theme").addEventListener("click", window.r3ToggleTheme);
  $("#keys").addEventListener("click", () => help.showModal());

  // ── keys ──
  const items = () => [...document.querySelectorAll("[data-item]")].filter((item) => !item.hidden);
  const handle = (item) => item.querySelector("a, [tabindex]") || item;
  function move(by) {
    const all = items();
    if (!all.length) return;
    const now = all.findIndex((item) => item.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    handle(next).focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
  const follow = (query) => { const link = $(query); if (link) link.click(); };
  const actions = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("a[rel=next]"),
    p: () => follow("a[rel=prev]"),
    u: () => { const path = [...document.querySelectorAll(".path a:not([aria-current])")]; (path.pop() || $(".brand")).click(); },
    t: window.r3ToggleTheme,
    "?": () => help.showModal(),
    "/": () => { const find = $("#find") || $("#text"); if (find) find.focus(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = actions[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  const go = $("form[data-go]");
  if (go) go.addEventListener("submit", (event) => {
    event.preventDefault();
    const step = go.elements.step.value.trim();
    if (/^\d+$/.test(step)) location.href = `${go.dataset.go}/${step}`;
  });

  // ── tables that sort by any column: by the last number of a cell, or by its text ──
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const worth = (row, column) => {
      const text = row.cells[column].textContent.trim().replace("−", "-").replace(/,/g, "");
      const numbers = text.match(/-?\d+(\.\d+)?/g);
      return numbers && column ? Number(numbers[numbers.length - 1]) : text;
    };
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const compared = (a, b) => typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? 1 : -1;
        body.append(...[...body.rows].sort((a, b) => sign * compared(worth(a, column), worth(b, column))));
      });
    });
  }

  // ── news ──
  const page = $("h1[data-step]");
  let before = null;
  window.r3Renewed = () => { // a page that follows is as new as the files
    before = null;
    $("#news").replaceChildren();
  };
  async function look() {
    if (document.visibilityState === "visible") {
      try {
        const now = await (await fetch(`${root}api/state`)).json();
        if (before) tell(before, now);
        before = before || now;
        if (window.r3News) window.r3News(now);
      } catch (_) { /* the server has ended, or the tunnel is down: the page stays as it is */ }
    }
    setTimeout(look, 2000);
  }
  function tell(old, now) {
    const part = decodeURIComponent(location.pathname.slice(root.length).split("/")[0]);
    const name = page ? page.dataset.run : part in now ? part : null;
    let fresh = 0;
    for (const run of Object.keys(now)) {
      if (name && run !== name) continue;
      fresh += Math.max(0, now[run].rollouts - (old[run] ? old[run].rollouts : 0));
    }
    const news = $("#news");
    if (!fresh) return;
    const count = `${fresh} new step${fresh === 1 ? "" : "s"}`;
    const text = page ? count : `${name && old[name] ? `as of step ${old[name].rollouts}, ` : ""}${count}`;
    if (news.textContent === text) return;
    news.replaceChildren();
    const link = document.createElement("a"); // a step leads to the newest one, any other page to itself
    link.href = page ? `${root}${encodeURIComponent(name)}/step/${now[name].rollouts}` : location.href;
    link.textContent = text;
    news.append(link);
  }
  look();
})();
