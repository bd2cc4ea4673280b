"use strict";
// Tables sort by the column whose heading is pressed; empty cells stay last.
addEventListener("click", event => {
  const heading = event.target.closest("th button")?.parentElement;
  if (!heading) return;
  const table = heading.closest("table");
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const order = row => row.cells[heading.cellIndex].dataset.order;
  const text = row => row.cells[heading.cellIndex].textContent;
  const compare = (one, other) => {
    const [first, second] = [order(one), order(other)];
    if (first === "" || second === "") return (first === "") - (second === "");
    const numbers = first !== undefined && second !== undefined;
    const found = numbers ? first - second : text(one).localeCompare(text(other), "en", {numeric: true});
    return ascending ? found : -found;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare));
});

// Paper shows everything: closed parts are opened, figures get the width of a page.
let opened = [];
const resize = size => document.querySelectorAll(".js-plotly-plot").forEach(plot => {
  Plotly.relayout(plot, size);
});
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach(part => { part.open = true; });
  resize({width: 680});
});
addEventListener("afterprint", () => {
  opened.forEach(part => { part.open = false; });
  resize({width: null, autosize: true});
});
