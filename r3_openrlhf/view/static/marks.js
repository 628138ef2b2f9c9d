// Marks of problems, kept in this browser, and what is shown as JSON Lines.
"use strict";
(function () {
  const table = document.getElementById("groups");
  if (!table) return;
  const key = `r3 marks ${table.dataset.run}`;
  const rows = [...table.tBodies[0].rows];
  let marked = new Set();
  try { marked = new Set(JSON.parse(localStorage.getItem(key) || "[]")); } catch (_) { /* storage is off: marks last as long as the page */ }
  for (const row of rows) {
    const box = row.querySelector("input[type=checkbox]");
    box.checked = marked.has(row.dataset.uid);
    row.dataset.marked = box.checked ? "1" : "0";
    box.addEventListener("change", () => {
      row.dataset.marked = box.checked ? "1" : "0";
      if (box.checked) marked.add(row.dataset.uid); else marked.delete(row.dataset.uid);
      try { localStorage.setItem(key, JSON.stringify([...marked])); } catch (_) { /* as above */ }
    });
  }
  const number = (text) => text === "" ? null : Number(text);
  document.getElementById("export").addEventListener("click", () => {
    const lines = [...table.tBodies[0].rows].filter((row) => !row.hidden).map(({ dataset: d }) => JSON.stringify({
      uid: d.uid, problem: d.problem, reference: d.reference, visits: Number(d.visits), first_share: number(d.first),
      last_share: number(d.right), last_success: number(d.success), reasons: d.reasons, marked: d.marked === "1",
    }));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/x-ndjson" }));
    link.download = `${table.dataset.run}_problems.jsonl`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
})();
