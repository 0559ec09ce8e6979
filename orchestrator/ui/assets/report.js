"use strict";
// The page says everything without this; it adds a switch of themes, faster hints, and a filter of ranks.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("mousemove", (event) => {
    const bar = event.target.closest ? event.target.closest("i.b") : null;
    tip.hidden = !bar;
    if (!bar) return;
    if (bar.title) {
      bar.dataset.hint = bar.title;
      bar.removeAttribute("title");
    }
    tip.textContent = bar.dataset.hint;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
  });

  for (const input of document.querySelectorAll("input[data-filter]")) {
    input.hidden = false;
    const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row, index) => { row.hidden = !words.every((word) => texts[index].includes(word)); });
    });
  }
})();
