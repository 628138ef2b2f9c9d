// Responses: mathematics, order, and tokens coloured by what is stored about them. Whatever a model wrote is put in as text.
"use strict";
(function () {
  const said = document.getElementById("token-said");
  const CHUNK = 300; // tokens that become elements at a time, when they come into view
  const FIRST = 2400; // characters of a response that are laid out at once: more than fit into its box
  const TOP = { logprob: 6, entropy: 4, ratio: 0.7, teacher: 5 }; // nats that have the darkest colour; of a ratio its logarithm

  // ── long responses ──
  // Layout takes a long response tens of milliseconds. What is out of its box has the class `later`, and is laid out when somebody
  // points at the response, scrolls it or goes to it, or when the browser has nothing else to do.
  const entire = new WeakSet(); // responses of which everything is laid out
  const isLater = (element, at) => at >= FIRST && element.classList.contains("response") && !entire.has(element);
  const part = (text, later) => {
    const span = document.createElement("span");
    span.textContent = text;
    if (later) span.className = "later";
    return span;
  };
  function put(element, text) {
    if (isLater(element, text.length)) {
      const cut = FIRST + /[\ud800-\udbff]/.test(text[FIRST - 1]); // not within a character
      element.replaceChildren(text.slice(0, cut), part(text.slice(cut), true));
    } else element.textContent = text;
  }
  function reveal(element) {
    if (!element || entire.has(element)) return;
    entire.add(element);
    for (const one of element.querySelectorAll(".later")) one.classList.remove("later");
  }
  for (const kind of ["pointerover", "focusin", "scroll"]) document.addEventListener(kind, ({ target }) => {
    if (target.closest) reveal(target.closest(".response"));
  }, { capture: true, passive: true });

  // ── mathematics ──
  // A text is there at once. What is in view is typeset a formula at a time, when the browser has nothing else to do: a long
  // response has hundreds of them. A formula that is none stays as it was written.
  const OPTIONS = { trust: false, strict: "ignore", throwOnError: true, maxExpand: 200, maxSize: 20, output: "htmlAndMathml" };
  const CLOSING = { "$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$" };
  const BLOCK = 800; // characters that are typeset together
  const MAX_FORMULA = 2000; // characters
  // [begin, end, tex, display] of each formula. Every character is looked at a few times at most, whatever a model wrote.
  function formulas(text) {
    const found = [], nearest = {}, opening = /\\\\|\\\$|\$\$|\\\[|\\\(|\$/g;
    let budget = 8 * text.length + 10000;
    for (let match; budget > 0 && (match = opening.exec(text));) {
      const open = match[0], close = CLOSING[open], from = match.index + open.length;
      if (!close) continue; // an escape
      if (!(nearest[open] >= from)) nearest[open] = (text.indexOf(close, from) + 1 || Infinity) - 1;
      if (nearest[open] - from > MAX_FORMULA) continue; // a beginning that nothing ends
      let at = from, depth = 0, end = -1;
      for (const last = Math.min(text.length, from + MAX_FORMULA); at < last; at++) {
        if (depth <= 0 && text.startsWith(close, at)) { end = at; break; }
        if (text[at] === "\\") at++;
        else if (text[at] === "{") depth++;
        else if (text[at] === "}") depth--;
      }
      budget -= at - from + 1;
      if (end < 0) continue;
      const after = end + close.length;
      if (text.slice(from, end).trim()) found.push([match.index, after, text.slice(from, end), close === "$$" || close === "\\]"]);
      opening.lastIndex = after;
    }
    return found;
  }
  // Pieces of a text that no formula crosses: [begin, end, its formulas].
  function blocksOf(text) {
    const blocks = [];
    let begin = 0, mine = [];
    const cut = (end) => { if (end > begin) { blocks.push([begin, end, mine]); begin = end; mine = []; } };
    const whole = (at) => /[\ud800-\udbff]/.test(text[at - 1]) ? at + 1 : at; // not within a character
    const plainUntil = (end) => { while (end - begin > 2 * BLOCK) cut(whole(begin + BLOCK)); if (end - begin > BLOCK) cut(end); };
    for (const formula of formulas(text)) {
      plainUntil(formula[0]);
      mine.push(formula);
      if (formula[1] - begin > BLOCK) cut(formula[1]);
    }
    plainUntil(text.length);
    cut(text.length);
    return blocks;
  }
  function rendered(tex, displayMode) {
    const holder = document.createElement("span");
    try { katex.render(tex, holder, { ...OPTIONS, displayMode }); return holder; } catch (_) { return null; } // not TeX, or too deep
  }
  function* typeset(block, text, begin, end, found) {
    const fragment = document.createDocumentFragment();
    for (const [from, to, tex, display] of found) {
      fragment.append(text.slice(begin, from), rendered(tex, display) || text.slice(from, to));
      begin = to;
      yield;
    }
    fragment.append(text.slice(begin, end));
    block.replaceChildren(fragment);
  }
  function* typesetAnswer(element, text) {
    const tex = text.replace(/^\$|\$$/g, "");
    const found = tex.length <= MAX_FORMULA && rendered(tex, false);
    if (found) element.replaceChildren(found);
    yield;
  }
  const plain = new Map(); // element -> its text
  const jobs = new Map(); // element or block -> its typesetting, as far as it is
  // a browser that is never idle, or never says so, does it all the same, for 8 ms at a time
  const later = window.requestIdleCallback ? (act) => requestIdleCallback(act, { timeout: 50 }) : (act) => setTimeout(() => act({ didTimeout: true }), 16);
  let isWaiting = false;
  function work(deadline) {
    isWaiting = false;
    const end = performance.now() + 8;
    const left = () => deadline.didTimeout ? end - performance.now() : deadline.timeRemaining();
    for (const [target, job] of jobs) {
      for (;;) {
        if (left() < 1) return wait();
        if (job.next().done) { jobs.delete(target); break; }
      }
    }
  }
  function wait() { if (!isWaiting && jobs.size) { isWaiting = true; later(work); } }
  const inside = new WeakMap(); // block -> [text, begin, end, formulas]
  const seenBlocks = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      seenBlocks.unobserve(target);
      jobs.set(target, typeset(target, ...inside.get(target)));
    }
    wait();
  }, { rootMargin: "200px" });
  function begin(element) {
    if (plain.has(element) || !window.katex) return;
    const text = element.textContent;
    plain.set(element, text);
    if (element.dataset.math === "answer") { jobs.set(element, typesetAnswer(element, text)); return wait(); }
    const blocks = blocksOf(text);
    if (!blocks.some(([, , found]) => found.length)) return;
    element.replaceChildren(...blocks.map(([from, to, found]) => {
      const block = part(text.slice(from, to), isLater(element, from));
      if (found.length) { inside.set(block, [text, from, to, found]); seenBlocks.observe(block); }
      return block;
    }));
  }
  function untypeset(element) {
    if (!plain.has(element)) return;
    for (const target of [element, ...element.children]) { jobs.delete(target); seenBlocks.unobserve(target); }
    put(element, plain.get(element));
    plain.delete(element);
  }
  let wantsMath = true;
  const watched = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting && wantsMath && !target.dataset.heated) begin(target);
  }, { rootMargin: "100px" });
  const watch = (element) => { watched.unobserve(element); watched.observe(element); };
  for (const element of document.querySelectorAll("[data-math]")) watch(element);
  const mathButton = document.getElementById("render-math");
  if (mathButton) mathButton.addEventListener("click", () => {
    wantsMath = !wantsMath;
    mathButton.setAttribute("aria-pressed", wantsMath);
    for (const element of document.querySelectorAll("[data-math]")) {
      if (element.dataset.heated) continue;
      untypeset(element);
      watch(element);
    }
  });

  const unseen = [...document.querySelectorAll(".response")].reverse(); // of which something may be laid out later
  function revealNext() {
    if (!jobs.size) reveal(unseen.pop());
    if (unseen.length) later(revealNext);
    else document.documentElement.dataset.laidOut = "yes";
  }
  if (document.readyState === "complete") later(revealNext);
  else addEventListener("load", () => later(revealNext));

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
  const isDoubted = (values, i) => value(values, "teacher", i) <= -Math.log(2); // the teacher finds it half as likely, or less
  const marks = { ratio: isClipped, teacher: isDoubted, entropy: (values, i) => values.peakSet.has(i) };
  const isMarked = (values, by, i) => by in marks && marks[by](values, i);
  const look = (values, by, i) => `h${bucket(values, by, i)}${isMarked(values, by, i) ? " peak" : ""}`;
  function describe(values, i) {
    const parts = [`${i}`, `“${shown(values.pieces[i])}”`];
    if ("ids" in values) parts.push(`id ${values.ids[i]}`);
    if ("logprob" in values) parts.push(`log-prob ${value(values, "logprob", i).toFixed(4)}`, `p ${Math.exp(value(values, "logprob", i)).toPrecision(3)}`);
    if ("entropy" in values) parts.push(`entropy ${value(values, "entropy", i).toFixed(4)}${values.peakSet.has(i) ? " (in the peak)" : ""}`);
    if ("ratio" in values) parts.push(`ratio ${ratio(values, i).toFixed(4)}${isClipped(values, i) ? " (outside the clip range)" : ""}`);
    if ("teacher" in values) parts.push(`teacher ${value(values, "teacher", i) > 0 ? "+" : ""}${value(values, "teacher", i).toFixed(4)}`);
    return parts.join("   ");
  }
  class Heat {
    constructor(element, values, by) {
      this.element = element; this.values = values; this.by = by; this.at = -1;
      const fragment = document.createDocumentFragment();
      let length = 0;
      this.observer = new IntersectionObserver((seen) => {
        for (const { isIntersecting, target } of seen) if (isIntersecting) this.fill(target);
      }, { rootMargin: "300px" });
      for (let start = 0; start < values.pieces.length; start += CHUNK) {
        const text = values.pieces.slice(start, start + CHUNK).join("");
        const chunk = part(text, isLater(element, length));
        length += text.length;
        chunk.start = start;
        fragment.append(chunk);
        this.observer.observe(chunk);
      }
      if (fragment.firstChild) this.fill(fragment.firstChild);
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
      if (this.by === by) return;
      this.by = by;
      for (const token of this.body.querySelectorAll("span > span")) token.className = look(this.values, by, token.token);
    }
    go(i) {
      i = Math.max(0, Math.min(this.values.pieces.length - 1, i));
      reveal(this.element);
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
    const first = ["logprob", "entropy", "ratio", "teacher"].find((by) => by in values);
    const heat = new Heat(document.getElementById("heat"), values, first);
    const map = document.getElementById("minimap");
    const ends = document.querySelectorAll(".scale > span");
    const paint = () => {
      const scales = { ratio: ["ratio 1", "far from it"], teacher: ["the teacher agrees", "it does not"] };
      [ends[0].textContent, ends[1].textContent] = scales[heat.by] || ["sure", "surprised"];
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
      if ("ratio" in values) cells.push(ratio(values, i).toFixed(4));
      if ("teacher" in values) cells.push(value(values, "teacher", i).toFixed(4));
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
  // Choices are in the address, so that a view can be shared.
  const chosen = new URLSearchParams(location.search);
  function remember(name, choice, usual) {
    if (choice === usual) chosen.delete(name); else chosen.set(name, choice);
    const wanted = chosen.toString();
    if (wanted !== location.search.slice(1)) history.replaceState(null, "", (wanted ? `?${wanted}` : location.pathname) + location.hash);
  }
  function again(name, usual) {
    const button = document.querySelector(`button[data-${name}="${CSS.escape(chosen.get(name) ?? usual)}"]`);
    if (button && chosen.has(name)) button.click();
  }
  for (const button of document.querySelectorAll("[data-order]")) button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-order]")) other.setAttribute("aria-pressed", other === button);
    const by = button.dataset.order;
    remember("order", by, "advantage");
    const number = (card) => card.dataset[by] === "" ? -Infinity : Number(card.dataset[by]);
    cards.append(...[...all].sort((a, b) => by === "advantage" ? number(b) - number(a) || number(a) : number(a) - number(b)));
  });
  for (const button of document.querySelectorAll("[data-verdict]:is(button)")) button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-verdict]:is(button)")) other.setAttribute("aria-pressed", other === button);
    remember("verdict", button.dataset.verdict, "");
    for (const card of all) card.hidden = button.dataset.verdict !== "" && card.dataset.verdict !== button.dataset.verdict;
  });

  // ── the values of tokens, of the responses that come into view ──
  const heats = new Map(), stored = new Map(); // element -> Heat; place -> its values, null without any
  const inView = new Set();
  let by = "", asked = new Set();
  const why = document.getElementById("why");
  const textOf = (element) => plain.has(element) ? plain.get(element) : element.textContent;
  const placeOf = (element) => Number(element.closest("[data-place]").dataset.place);
  function load(places) {
    return fetch(`${cards.dataset.tokens}?${new URLSearchParams(places.map((place) => ["place", place]))}`).then((answer) => answer.json());
  }
  async function ask() {
    const places = [...inView].map(placeOf).filter((place) => !stored.has(place) && !asked.has(place));
    if (places.length) {
      for (const place of places) asked.add(place);
      let found;
      try { found = await load(places); } catch (_) { asked = new Set(); return tell("The values of the tokens cannot be had: the server has ended, or the tunnel is down."); }
      for (const place of places) stored.set(place, null);
      for (const values of found.responses) if (values) {
        prepare(values, found.clip);
        stored.set(values.place, values);
      }
      stored.why = found.why || stored.why;
    }
    for (const element of inView) paint(element);
    const there = [...stored.values()].filter((one) => one);
    const kept = { entropy: "No entropies are kept of the tokens of these responses (logging.token_values).", ratio: "Log-probs of this step's policy are kept of recalled responses, and with logging.token_values=all of fresh ones.", logprob: "" };
    const lacking = there.filter((one) => !(by in one)).length;
    tell(!by ? "" : stored.why || (there.length && lacking === there.length ? kept[by] : lacking && by === "ratio" ? kept.ratio : ""));
  }
  function tell(text) { why.textContent = text || ""; why.hidden = !text; }
  function paint(element) {
    const values = by && stored.get(placeOf(element)), heat = heats.get(element);
    if (values && by in values) {
      if (heat) heat.colour(by);
      else {
        untypeset(element);
        element.plainText = element.textContent; element.dataset.heated = "yes";
        heats.set(element, new Heat(element, values, by));
      }
    } else if (heat) {
      heat.end();
      heats.delete(element);
      delete element.dataset.heated;
      put(element, element.plainText);
      watch(element);
    }
  }
  const viewed = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) inView.add(target); else inView.delete(target);
    if (by) ask();
  }, { rootMargin: "100px" });
  for (const element of cards.querySelectorAll(".response")) viewed.observe(element);
  for (const button of document.querySelectorAll("[data-heat]")) button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-heat]")) other.setAttribute("aria-pressed", other === button);
    by = button.dataset.heat;
    remember("heat", by, "");
    if (by) return ask();
    for (const element of [...heats.keys()]) paint(element);
    said.textContent = "";
    tell("");
  });
  for (const [name, usual] of [["order", "advantage"], ["verdict", ""], ["heat", ""]]) again(name, usual);
})();
