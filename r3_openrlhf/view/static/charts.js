// The curves of the overview. Data and layout come from the page (#curves) and, while a run trains, from /api/curves.
"use strict";
(function () {
  const place = document.getElementById("charts");
  async function pageOf(address) {
    return new DOMParser().parseFromString(await (await fetch(address)).text(), "text/html");
  }
  // Parts of the page that follow a run. A part that was not there yet (its first step, its first rollouts) makes another page.
  function replaced(fresh) {
    for (const part of fresh.querySelectorAll("[data-live]")) {
      const old = document.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (!old && !part.matches("tr")) return location.reload();
      const links = old ? [...old.querySelectorAll("a")] : [], focused = links.indexOf(document.activeElement);
      if (old) old.replaceChildren(...part.childNodes);
      else document.querySelector("tr[data-live]").parentElement.append(part); // a new run
      if (focused >= 0) (old.querySelectorAll("a")[focused] || old.querySelector("a")).focus({ preventScroll: true });
    }
  }
  if (!place) { // no numbers yet: the first ones make another page, and until then the phase follows
    window.r3News = () => pageOf(location.href).then((fresh) => fresh.getElementById("charts") ? location.reload() : replaced(fresh)).catch(() => {});
    return;
  }
  const root = document.documentElement.dataset.root;
  let data = JSON.parse(document.getElementById("curves").textContent);
  // Choices are in the address, so that a view can be shared.
  const asked = new URLSearchParams(location.search);
  const limit = (name) => asked.has(name) && Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : null;
  const state = { x: asked.get("x") === "tokens" ? "tokens" : "steps", match: asked.get("match") || "", log: asked.has("log"), arms: asked.has("arms"), hidden: new Set(asked.getAll("hide")), smooth: asked.has("smooth"), min: limit("from"), max: limit("to") };
  function remember() {
    const told = { x: state.x === "steps" ? null : state.x, log: state.log ? "1" : null, smooth: state.smooth ? "1" : null, arms: state.arms ? "1" : null, match: state.match || null, from: state.min, to: state.max };
    for (const [name, value] of Object.entries(told)) if (value == null) asked.delete(name); else asked.set(name, typeof value === "number" ? +value.toPrecision(6) : value);
    asked.delete("hide");
    for (const name of state.hidden) asked.append("hide", name);
    const wanted = asked.toString();
    if (wanted !== location.search.slice(1)) history.replaceState(null, "", wanted ? `?${wanted}` : location.pathname);
  }
  const sync = uPlot.sync("r3");
  const HEIGHT = 168; // pixels of a picture
  const WHOLE = Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // distances of steps, or tokens
  let charts = [];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (number) => css(`--c${number % 12}`);
  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const short = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return (value / 1e9).toFixed(2) + " G";
    if (size >= 1e6) return (value / 1e6).toFixed(2) + " M";
    if (size >= 1e4) return (value / 1e3).toFixed(1) + " k";
    if (size >= 100 || Number.isInteger(value)) return String(Math.round(value * 10) / 10);
    return value.toPrecision(3);
  };
  const axis = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
    return String(+value.toPrecision(4));
  };

  // What is drawn: runs, or the means of arms; the colour of each stays when others are hidden.
  const drawnRuns = () => (state.arms ? data.arms : data.runs).map((run, number) => ({ run, number })).filter(({ run }) => !state.hidden.has(run.name));

  // Below three runs an arm has no interval: its runs are drawn, too, as thin lines.
  const withRuns = ({ run, number }) => [{ run, number }, ...(run.runs && run.runs.length < 3 ? data.runs.filter(({ name }) => run.runs.includes(name)).map((one) => ({ run: one, number, thin: true })) : [])];

  // one picture: every (run, series) with its x values, laid over each other
  function lines(chart) {
    const found = [];
    drawnRuns().flatMap(withRuns).forEach(({ run, number, thin }) => {
      chart.series.forEach((series, kind) => {
        if (!(series.key in run.series)) return;
        const at = series.key.startsWith("held_out:") ? run.held_out : run;
        const xs = state.x === "steps" ? at.steps : at.tokens;
        const values = run.series[series.key];
        const known = (column) => xs.map((x, i) => [x, column[i]]).filter(([x], i) => x != null && values[i] != null);
        const xy = known(values);
        const ends = run.low && run.low[series.key] ? [run.low[series.key], run.high[series.key]].map((column) => known(column).map(([, y]) => y)) : null;
        found.push({ thin, ends, run, number, kind, colour: series.colour, label: series.label, xs: xy.map((p) => p[0]), ys: xy.map((p) => p[1]), sparse: at === run.held_out });
      });
    });
    return found;
  }
  function smoothed(ys) {
    const width = Math.max(1, Math.round(ys.length / 40));
    return ys.map((_, i) => {
      const part = ys.slice(Math.max(0, i - width), i + width + 1);
      return part.reduce((a, b) => a + b, 0) / part.length;
    });
  }

  // A figure with its name; what `fill` does is left until it comes into view or the browser has time.
  function frame(chart) {
    const caption = make("figcaption", {}, chart.title, make("small", {}, chart.unit));
    const how = make("details", { class: "how" }, make("summary", { "aria-label": `How ${chart.title} is computed` }, "?"));
    const limits = chart.limits.filter((limit) => limit > 0);
    if (limits.length) how.append(make("p", {}, `Dashed: healthy is ${limits.length > 1 ? `between ${limits.join(" and ")}` : `below ${limits[0]}`}.`));
    if (chart.note) how.append(make("p", {}, chart.note));
    for (const series of chart.series) how.append(make("p", {}, make("code", {}, series.key), series.about ? ` ${series.about}` : ""));
    caption.append(how);
    const legend = make("ul"), area = make("div", {});
    return { figure: make("figure", { class: "chart" }, caption, legend, area), fill: () => draw(chart, legend, area) };
  }
  function draw(chart, legend, area) {
    const found = lines(chart);
    const many = data.runs.length > 1;
    const stacked = chart.stacked && !many && !state.log;
    for (const line of found) line.raw = line.ys;
    if (state.smooth) for (const line of found) if (!line.sparse) line.ys = smoothed(line.ys);
    if (stacked) {
      const sums = new Map();
      for (const line of found) line.ys = line.ys.map((y, i) => { const sum = (sums.get(line.xs[i]) || 0) + y; sums.set(line.xs[i], sum); return sum; });
      found.reverse(); // the highest is painted first, the lower ones over it
    }
    const series = [{}], bands = [];
    for (const line of found) {
      const ink = colour(many ? line.number : line.colour);
      series.push({
        stroke: line.thin ? ink + "77" : ink,
        width: stacked ? 1 : line.thin ? 0.7 : 1.6,
        fill: stacked ? ink + "55" : undefined,
        dash: line.number >= 12 ? [5, 4] : undefined,
        points: { show: !line.thin && (line.sparse || line.xs.length < 40), size: line.sparse ? 6 : 4, fill: ink },
        spanGaps: true,
      });
    }
    if (stacked) for (let i = 1; i + 1 < series.length; i++) bands.push({ series: [i, i + 1] });
    const columns = found.map((line) => [line.xs, line.ys]);
    if (!state.smooth && !state.log) for (const line of found) if (line.ends) {
      const ink = colour(line.number);
      for (const end of line.ends) { columns.push([line.xs, end]); series.push({ stroke: ink + "66", width: 0.6, points: { show: false }, spanGaps: true }); }
      bands.push({ series: [series.length - 1, series.length - 2], fill: ink + "22" });
    }
    const table = found.length ? uPlot.join(columns) : [[], []];
    const values = [], step = make("li", { class: "faint" });
    // one run: a colour per series. Several: the runs have the colours (in the table above), the series the dashes.
    for (const [kind, series] of chart.series.entries()) {
      const mine = found.filter((line) => line.kind === kind && !line.thin);
      if (!mine.length) continue;
      if (many) {
        for (const line of mine.slice(0, 6)) {
          const value = make("b");
          legend.append(make("li", {}, make("span", { class: `key key-${line.number % 12}`, "aria-hidden": "true" }), `${line.run.name} `, value));
          values.push([[line], value]);
        }
        continue;
      }
      const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.borderTopColor = colour(series.colour);
      const value = make("b");
      legend.append(make("li", {}, swatch, `${series.label} `, value));
      values.push([mine, value]);
    }
    legend.append(step);
    const told = (at) => {
      step.textContent = at == null ? "" : `${state.x === "steps" ? "step" : "at"} ${axis(at)}`;
      for (const [mine, value] of values) {
        value.textContent = mine.length > 4 ? "" : mine.map((line) => {
          let i = line.xs.length - 1;
          if (at != null) {
            i = -1;
            let low = 0, high = line.xs.length - 1;
            while (low <= high) { const middle = (low + high) >> 1; if (line.xs[middle] <= at) { i = middle; low = middle + 1; } else high = middle - 1; }
          }
          return i < 0 ? "–" : short(line.raw[i]);
        }).join(" | ");
      }
    };
    told(null);
    area.setAttribute("role", "img");
    area.setAttribute("aria-label", `${chart.title} (${chart.unit}): ` + found.map((line) => `${line.run.name} ${line.label} from ${short(line.raw[0])} to ${short(line.raw[line.raw.length - 1])}`).join("; "));
    const grid = { stroke: css("--line"), width: 1 };
    const plot = new uPlot({
      width: area.clientWidth || 320, height: HEIGHT, series, bands,
      legend: { show: false },
      cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: false, range: (u, low, high) => [state.min ?? low, state.max ?? (high > low ? high : low + 1)] }, y: { distr: state.log ? 3 : 1, range: state.log ? undefined : (u, low, high) => ranged(low, high, stacked, chart.from_zero) } },
      axes: [
        { stroke: css("--faint"), grid: { show: false }, ticks: { ...grid, size: 4 }, size: 26, incrs: WHOLE, font: "11px system-ui, sans-serif", values: (u, all) => all.map(axis) },
        { stroke: css("--faint"), grid, ticks: { show: false }, size: 46, font: "11px system-ui, sans-serif", values: (u, all) => all.map((v) => v == null ? "" : axis(v)) },
      ],
      hooks: {
        draw: [(u) => { // between these lines it is healthy; one that is out of the picture is not drawn
          for (const limit of chart.limits) {
            const at = u.valToPos(limit, "y", true);
            if (limit <= 0 || at < u.bbox.top || at > u.bbox.top + u.bbox.height) continue;
            u.ctx.save();
            u.ctx.strokeStyle = colour(4); u.ctx.setLineDash([6, 4]); u.ctx.beginPath();
            u.ctx.moveTo(u.bbox.left, at); u.ctx.lineTo(u.bbox.left + u.bbox.width, at); u.ctx.stroke();
            u.ctx.restore();
          }
        }],
        setCursor: [(u) => told(u.cursor.idx == null ? null : u.data[0][u.cursor.idx])],
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          state.min = u.posToVal(u.select.left, "x"); state.max = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          zoomed();
        }],
        ready: [(u) => {
          u.over.addEventListener("dblclick", () => { state.min = state.max = null; zoomed(); });
          let down = 0;
          u.over.addEventListener("mousedown", (event) => { down = event.clientX; });
          u.over.addEventListener("click", (event) => {
            if (Math.abs(event.clientX - down) > 4 || u.cursor.idx == null) return;
            visit(nearestRun(u, found), u.data[0][u.cursor.idx]);
          });
        }],
      },
    }, table, area);
    charts.push({ plot, area });
  }
  // Shares and counts begin at 0; a curve that hardly moves is not blown up to the whole height.
  function ranged(low, high, stacked, fromZero) {
    if (low == null || high == null) return [0, 1];
    if (stacked || (fromZero && low >= 0)) return [0, high * 1.05 || 1];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 0.5;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }
  function nearestRun(u, found) {
    let best = null, least = Infinity;
    found.forEach((line, i) => {
      const value = u.data[i + 1] ? u.data[i + 1][u.cursor.idx] : null;
      if (value == null) return;
      const away = Math.abs(u.valToPos(value, "y") - u.cursor.top);
      if (away < least) { least = away; best = line.run; }
    });
    return best || (found[0] && found[0].run);
  }
  function visit(run, x) {
    if (!run || !run.has_rollouts) return;
    let at = 0;
    const xs = state.x === "steps" ? run.steps : run.tokens;
    xs.forEach((value, i) => { if (value != null && Math.abs(value - x) < Math.abs(xs[at] - x)) at = i; });
    const step = run.steps[at];
    location.href = `${root}${encodeURIComponent(run.name)}/step/${step}`;
  }
  function zoomed() {
    remember();
    document.getElementById("unzoom").hidden = state.min == null;
    for (const { plot } of charts) plot.redraw(true, true), plot.setScale("x", { min: state.min ?? undefined, max: state.max ?? undefined });
    for (const { plot } of charts) plot.setData(plot.data);
  }
  function fit() {
    for (const { plot, area } of charts) { const width = area.clientWidth; if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT }); }
  }
  // a browser that is never idle, or never says so, draws them all the same
  const later = window.requestIdleCallback ? (act) => requestIdleCallback(act, { timeout: 50 }) : (act) => setTimeout(act, 16);
  let waiting = new Map(), finished = []; // area -> what draws its picture; called when all are drawn
  const inView = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) drawOne(target);
  }, { rootMargin: "50px" });
  function drawOne(area) {
    const fill = waiting.get(area);
    if (!fill) return;
    waiting.delete(area);
    inView.unobserve(area);
    fill();
    if (!waiting.size) for (const tell of finished.splice(0)) tell();
  }
  // Resolves when every picture is drawn: those in view at once, the others when the browser has time.
  function all() {
    for (const { plot } of charts) plot.destroy();
    charts = [];
    inView.disconnect();
    const parts = [], mine = new Map(), fits = matching();
    for (const section of data.sections) {
      const grid = make("div", { class: "grid" });
      const chosen = section.charts.filter(fits);
      if (!chosen.length || (!state.match && section.title === "Every other key")) continue;
      for (const chart of chosen) {
        const { figure, fill } = frame(chart);
        mine.set(figure.lastChild, fill);
        grid.append(figure);
      }
      parts.push(make("section", {}, make("h2", {}, section.title), grid));
    }
    waiting = mine;
    if (!parts.length) parts.push(make("p", { class: "note" }, `No chart and no key matches ${state.match}.`));
    place.replaceChildren(...parts);
    for (const area of mine.keys()) inView.observe(area);
    const rest = () => {
      if (waiting !== mine || !mine.size) return;
      drawOne(mine.keys().next().value);
      later(rest);
    };
    if (!mine.size) return Promise.resolve();
    return new Promise((done) => { finished.push(done); requestAnimationFrame(() => later(rest)); });
  }
  new ResizeObserver(fit).observe(place);

  // ── every key of metrics.jsonl: asked for when somebody looks for one ──
  const match = document.getElementById("match");
  function matching() {
    if (!state.match) return () => true;
    let wanted = null;
    try { wanted = new RegExp(state.match, "i"); } catch (_) { /* half of an expression: it is still being typed */ }
    match.setAttribute("aria-invalid", wanted == null);
    return (chart) => !wanted || wanted.test(chart.title) || chart.series.some(({ key }) => wanted.test(key));
  }
  let every = false;
  const query = () => new URLSearchParams([...data.runs.map((run) => ["run", run.name]), ...(every ? [["every", "1"]] : [])]);
  async function fetched() { data = await (await fetch(`${root}api/curves?${query()}`)).json(); }
  async function search() {
    state.match = match.value.trim();
    remember();
    if (state.match && !every) { every = true; await fetched(); }
    drawn = all();
  }
  match.value = state.match;
  match.addEventListener("input", search);

  for (const button of document.querySelectorAll("[data-x]")) {
    button.disabled = button.dataset.x === "tokens" && !data.runs.some((run) => run.tokens.some((value) => value != null));
    if (button.disabled && state.x === "tokens") state.x = "steps";
    button.addEventListener("click", () => {
      state.x = button.dataset.x; state.min = state.max = null;
      for (const other of document.querySelectorAll("[data-x]")) other.setAttribute("aria-pressed", other === button);
      document.getElementById("unzoom").hidden = true;
      remember();
      all();
    });
  }
  for (const button of document.querySelectorAll("[data-x]")) button.setAttribute("aria-pressed", button.dataset.x === state.x);
  document.getElementById("unzoom").hidden = state.min == null;
  const chosen = document.getElementById("shown-runs");
  function choose() {
    if (!chosen) return;
    const act = (change) => () => { change(); remember(); choose(); all(); };
    chosen.replaceChildren(...(state.arms ? data.arms : data.runs).map(({ name, runs }, number) => {
      const isShown = !state.hidden.has(name);
      const button = make("button", { type: "button", "aria-pressed": isShown }, make("span", { class: `key key-${number % 12}`, "aria-hidden": "true" }), state.arms ? `${name} (${runs.length} run${runs.length === 1 ? "" : "s"})` : name);
      button.addEventListener("click", act(() => isShown ? state.hidden.add(name) : state.hidden.delete(name)));
      return button;
    }));
    for (const [text, change] of [["all", () => state.hidden.clear()], ["none", () => { for (const { name } of state.arms ? data.arms : data.runs) state.hidden.add(name); }]]) {
      const button = make("button", { type: "button", class: "quiet" }, text);
      button.addEventListener("click", act(change));
      chosen.append(button);
    }
  }
  choose();
  for (const name of ["log", "smooth", "arms"]) {
    const button = document.getElementById(name);
    if (!button) continue;
    button.setAttribute("aria-pressed", state[name]);
    button.addEventListener("click", () => { state[name] = !state[name]; button.setAttribute("aria-pressed", state[name]); remember(); choose(); all(); });
  }
  document.getElementById("unzoom").addEventListener("click", () => { state.min = state.max = null; zoomed(); });
  addEventListener("r3-theme", all);
  let drawn = all();
  if (state.match) search();

  // ── live ──
  let isAsking = false;
  window.r3News = async (now) => {
    if (isAsking) return;
    isAsking = true;
    try { await follow(now); } catch (_) { /* the server has ended, or the tunnel is down: the pictures stay as they are */ }
    isAsking = false;
  };
  // Everything on the page comes from one reading of the runs: no number is of another step than its neighbour.
  let shown = JSON.parse(document.getElementById("state").textContent);
  async function renew() {
    const address = new URL(location.href);
    address.searchParams.set("counted", "1"); // what is counted from the rollouts takes seconds in a long run
    const fresh = await pageOf(address);
    replaced(fresh);
    data = JSON.parse(fresh.getElementById("curves").textContent);
    shown = JSON.parse(fresh.getElementById("state").textContent);
    if (every) await fetched();
    choose();
    drawn = all();
    window.r3Renewed();
  }
  async function follow(now) {
    const followed = document.querySelector("h1[data-all]") ? Object.keys(now) : Object.keys(shown); // all: new runs, too
    const isGrown = followed.some((name) => now[name] && ["metrics", "rollouts", "evaluations", "state"].some((key) => !shown[name] || shown[name][key] !== now[name][key]));
    const hasNoStep = data.runs.length === 1 && !data.runs[0].steps.length; // its phase follows
    if (isGrown || !data.counted || hasNoStep) await renew();
    await drawn;
    place.dataset.seen = Math.max(0, ...data.runs.map((run) => run.steps.at(-1) || 0));
  }
})();
