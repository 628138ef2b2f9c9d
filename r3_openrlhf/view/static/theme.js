// Before anything is painted: the theme that was chosen last, else the system's.
"use strict";
(function () {
  let chosen = null;
  try { chosen = localStorage.getItem("r3-theme"); } catch (_) { /* a page from disk may have no storage */ }
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = chosen || (system.matches ? "dark" : "light"); };
  apply();
  system.addEventListener("change", () => { apply(); dispatchEvent(new Event("r3-theme")); });
  window.r3ToggleTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("r3-theme", chosen); } catch (_) { /* then it lasts for this page */ }
    apply();
    dispatchEvent(new Event("r3-theme"));
  };
})();
