// Responses: mathematics, order, and tokens coloured by what is stored about them. Whatever a model wrote is put in as text.
"use strict";
(function () {
  const said = document.getElementById("token-said");
  const CHUNK = 300; // tokens that become elements at a time, when they come into view
  const TOP = { logprob: 6, entropy: 4, ratio: 0.7 }; // nats that have the darkest colour; of a ratio its logarithm

  // ── mathematics ──
  const DELIMITERS = [
    { left: "$$", right: "$$", display: true }, { left: "\\[", right: "\\]", display: true },
    { left: "\\(", right: "\\)", display: false }, { left: "$", right: "$", display: false },
  ];
  const OPTIONS = { delimiters: DELIMITERS, trust: false, strict: "ignore", throwOnError: true, maxExpand: 200, maxSize: 20, output: "htmlAndMathml", errorCallback: () => {} };
  const plain = new Map(); // element -> its text
  function typeset(element) {
    if (plain.has(element) || !window.renderMathInElement) return;
    const text = element.textContent;
    if (text.length > 200000) return;
    plain.set(element, text);
    if (element.dataset.math === "answer") {
      const holder = document.createElement("span");
      try { katex.render(text.replace(/^\$|\$$/g, ""), holder, OPTIONS); } catch (_) { return; }
      element.replaceChildren(holder);
    } else renderMathInElement(element, OPTIONS);
  }
  const untypeset = (element) => { if (plain.has(element)) { element.textContent = plain.get(element); plain.delete(element); } };
  let wantsMath = true;
  const watched = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) waiting.add(target);
    if (waiting.size) later(next);
  }, { rootMargin: "100px" });
  // One element at a time, when the browser has nothing else to do: the text is there at once, its formulas a moment later.
  const waiting = new Set();
  const later = window.requestIdleCallback || ((act) => setTimeout(act, 30));
  function next() {
    const [element] = waiting;
    if (!element) return;
    waiting.delete(element);
    if (wantsMath && !element.dataset.heated) typeset(element);
    if (waiting.size) later(next);
  }
  for (const element of document.querySelectorAll("[data-math]")) watched.observe(element);
  const mathButton = document.getElementById("render-math");
  if (mathButton) mathButton.addEventListener("click", () => {
    wantsMath = !wantsMath;
    mathButton.setAttribute("aria-pressed", wantsMath);
    for (const element of document.querySelectorAll("[data-math]")) {
      if (element.dataset.heated) continue;
      untypeset(element);
      watched.unobserve(element); watched.observe(element);
    }
  });

  // ── tokens ──
  const value = (values, by, i) => by in values ? values[by][i] / 10000 : null;
  const bucket = (values, by, i) => Math.max(0, Math.min(8, Math.floor(9 * Math.abs(value(values, by, i)) / TOP[by])));
  const shown = (piece) => JSON.stringify(piece).slice(1, -1) || "(part of a character)";
  function prepare(values, clip) {
    values.peakSet = new Set(values.peak);
    values.clip = clip;
  }
  const ratio = (values, i) => Math.exp(value(values, "ratio", i));
  const isClipped = (values, i) => values.clip && (ratio(values, i) < values.clip[0] || ratio(values, i) > values.clip[1]);
  const isMarked = (values, by, i) => by === "ratio" ? isClipped(values, i) : by === "entropy" && values.peakSet.has(i);
  const look = (values, by, i) => `h${bucket(values, by, i)}${isMarked(values, by, i) ? " peak" : ""}`;
  function describe(values, i) {
    const parts = [`${i}`, `“${shown(values.pieces[i])}”`];
    if ("ids" in values) parts.push(`id ${values.ids[i]}`);
    if ("logprob" in values) parts.push(`log-prob ${value(values, "logprob", i).toFixed(4)}`, `p ${Math.exp(value(values, "logprob", i)).toPrecision(3)}`);
    if ("entropy" in values) parts.push(`entropy ${value(values, "entropy", i).toFixed(4)}${values.peakSet.has(i) ? " (in the peak)" : ""}`);
    if ("ratio" in values) parts.push(`ratio ${ratio(values, i).toFixed(4)}${isClipped(values, i) ? " (clipped)" : ""}`);
    return parts.join("   ");
  }
  class Heat {
    constructor(element, values, by) {
      this.element = element; this.values = values; this.by = by; this.at = -1;
      const fragment = document.createDocumentFragment();
      this.observer = new IntersectionObserver((seen) => {
        for (const { isIntersecting, target } of seen) if (isIntersecting) this.fill(target);
      }, { rootMargin: "300px" });
      for (let start = 0; start < values.pieces.length; start += CHUNK) {
        const chunk = document.createElement("span");
        chunk.textContent = values.pieces.slice(start, start + CHUNK).join("");
        chunk.start = start;
        fragment.append(chunk);
        this.observer.observe(chunk);
      }
      this.body = document.createElement("div");
      this.body.className = "heat";
      this.body.append(fragment);
      element.replaceChildren(this.body);
      this.listeners = new AbortController();
      const listen = (kind, act) => element.addEventListener(kind, act, { signal: this.listeners.signal });
      listen("mouseover", (event) => { const i = event.target.token; if (i !== undefined) said.textContent = describe(values, i); });
      listen("click", (event) => { if (event.target.token !== undefined) this.go(event.target.token); });
      listen("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) { event.preventDefault(); this.go(this.at + by); }
      });
    }
    fill(chunk) {
      if (chunk.filled) return;
      chunk.filled = true;
      const fragment = document.createDocumentFragment();
      const last = Math.min(chunk.start + CHUNK, this.values.pieces.length);
      for (let i = chunk.start; i < last; i++) {
        if (this.values.pieces[i] === "") continue;
        const token = document.createElement("span");
        token.textContent = this.values.pieces[i];
        token.className = look(this.values, this.by, i);
        token.token = i;
        fragment.append(token);
      }
      chunk.replaceChildren(fragment);
    }
    colour(by) {
      this.by = by;
      for (const token of this.body.querySelectorAll("span > span")) token.className = look(this.values, by, token.token);
    }
    go(i) {
      i = Math.max(0, Math.min(this.values.pieces.length - 1, i));
      const chunk = this.body.children[Math.floor(i / CHUNK)];
      this.fill(chunk);
      for (const old of this.element.querySelectorAll(".at")) old.classList.remove("at");
      let token = null;
      for (const other of chunk.children) if (other.token >= i) { token = other; break; }
      this.at = i;
      if (token) { token.classList.add("at"); token.scrollIntoView({ block: "nearest" }); }
      said.textContent = describe(this.values, i);
    }
    end() { this.observer.disconnect(); this.listeners.abort(); }
  }

  // ── one response ──
  const own = document.getElementById("tokens");
  if (own) {
    const { responses: [values], clip } = JSON.parse(own.textContent);
    prepare(values, clip);
    const first = ["logprob", "entropy", "ratio"].find((by) => by in values);
    const heat = new Heat(document.getElementById("heat"), values, first);
    const map = document.getElementById("minimap");
    const paint = () => {
      const width = map.width = map.clientWidth, context = map.getContext("2d"), count = values.pieces.length;
      const ink = getComputedStyle(document.documentElement).getPropertyValue("--heat");
      for (let x = 0; x < width; x++) {
        let most = 0;
        for (let i = Math.floor(x * count / width); i <= Math.min(count - 1, Math.floor((x + 1) * count / width)); i++) most = Math.max(most, bucket(values, heat.by, i));
        context.fillStyle = `rgba(${ink}, ${most / 9})`;
        context.fillRect(x, 0, 1, map.height);
      }
    };
    map.addEventListener("click", (event) => heat.go(Math.floor(event.offsetX / map.clientWidth * values.pieces.length)));
    for (const button of document.querySelectorAll("[data-heat]")) button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-heat]")) other.setAttribute("aria-pressed", other === button);
      heat.colour(button.dataset.heat);
      paint();
    });
    addEventListener("r3-theme", paint);
    new ResizeObserver(paint).observe(map);
    const key = (i) => "logprob" in values ? values.logprob[i] : -values.entropy[i];
    const order = [...values.pieces.keys()].sort((a, b) => key(a) - key(b)).slice(0, 20);
    for (const i of order) {
      const row = document.querySelector("#surprising tbody").insertRow();
      const cells = [String(i), shown(values.pieces[i]), "logprob" in values ? value(values, "logprob", i).toFixed(4) : "–", "logprob" in values ? Math.exp(value(values, "logprob", i)).toPrecision(3) : "–", "entropy" in values ? value(values, "entropy", i).toFixed(4) : "–"];
      if (document.querySelector("#surprising th:nth-child(6)")) cells.push("ratio" in values ? ratio(values, i).toFixed(4) : "–");
      cells.forEach((text, place) => {
        const cell = row.insertCell();
        cell.className = place === 1 ? "" : "r";
        if (place) { const holder = document.createElement(place === 1 ? "code" : "span"); holder.textContent = text; cell.append(holder); return; }
        const button = document.createElement("button");
        button.type = "button"; button.textContent = text;
        button.addEventListener("click", () => { heat.go(i); document.getElementById("heat").focus({ preventScroll: true }); });
        cell.append(button);
      });
    }
    return;
  }

  // ── the responses of a group ──
  const cards = document.getElementById("cards");
  if (!cards) return;
  const all = [...cards.querySelectorAll(".card")];
  for (const button of document.querySelectorAll("[data-order]")) button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-order]")) other.setAttribute("aria-pressed", other === button);
    const by = button.dataset.order;
    const number = (card) => card.dataset[by] === "" ? -Infinity : Number(card.dataset[by]);
    cards.append(...[...all].sort((a, b) => by === "advantage" ? number(b) - number(a) || number(a) : number(a) - number(b)));
  });
  for (const button of document.querySelectorAll("[data-verdict]:is(button)")) button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-verdict]:is(button)")) other.setAttribute("aria-pressed", other === button);
    for (const card of all) card.hidden = button.dataset.verdict !== "" && card.dataset.verdict !== button.dataset.verdict;
  });
  const compare = document.getElementById("compare");
  if (compare) cards.addEventListener("change", () => {
    const picked = [...cards.querySelectorAll("[name=pick]:checked")].map((box) => box.value);
    compare.elements.a.value = picked[0] || ""; compare.elements.b.value = picked[1] || "";
    compare.querySelector("button").disabled = picked.length !== 2;
  });

  let stored = null, heats = [];
  function load() {
    if (cards.dataset.tokens) return fetch(cards.dataset.tokens).then((answer) => answer.json());
    return new Promise((done, failed) => { // from disk: a script beside the page hands its data over
      window.r3Tokens = done;
      const script = document.createElement("script");
      script.src = cards.dataset.tokenFile; script.onerror = failed;
      document.head.append(script);
    });
  }
  for (const button of document.querySelectorAll("[data-heat]")) button.addEventListener("click", async () => {
    for (const other of document.querySelectorAll("[data-heat]")) other.setAttribute("aria-pressed", other === button);
    const by = button.dataset.heat;
    for (const heat of heats) heat.end();
    heats = [];
    if (!by) {
      for (const element of document.querySelectorAll("[data-heated]")) {
        delete element.dataset.heated;
        element.textContent = element.plainText;
        plain.delete(element); watched.unobserve(element); watched.observe(element);
      }
      said.textContent = "";
      return;
    }
    if (!stored) {
      stored = await load();
      for (const values of stored.responses) if (values) prepare(values, stored.clip);
    }
    const why = document.getElementById("why");
    const there = stored.responses.filter((one) => one), without = there.filter((one) => !(by in one)).length;
    const kept = { entropy: "No entropies are kept of the tokens of these responses (logging.token_entropy).", ratio: "Only recalled rollouts have a ratio (logging.token_logprobs).", logprob: "" };
    why.textContent = stored.why || (there.length && without === there.length ? kept[by] : without && by === "ratio" ? kept.ratio : "");
    why.hidden = !why.textContent;
    stored.responses.forEach((values, place) => {
      const element = cards.querySelector(`[data-place="${place}"] .response`);
      if (!values || !element || !(by in values)) return;
      if (!element.dataset.heated) { untypeset(element); element.plainText = element.textContent; element.dataset.heated = "yes"; }
      heats.push(new Heat(element, values, by));
    });
  });
})();
