function sort(heading) {
  const table = heading.closest("table");
  const at = heading.cellIndex;
  const other = { ascending: "descending", descending: "ascending" };
  const way = other[heading.getAttribute("aria-sort")] ?? heading.dataset.first; // the best first
  const sign = way === "ascending" ? 1 : -1;
  const value = (row) => row.cells[at].dataset.value;
  table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", way);
  const sorted = Array.from(table.tBodies[0].rows).sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    // A row without a value is last, whichever way.
    if (left === "" || right === "") return (left === "") - (right === "");
    return sign * (heading.classList.contains("right") ? left - right : left.localeCompare(right));
  });
  table.tBodies[0].append(...sorted);
}

for (const heading of document.querySelectorAll("th")) {
  heading.querySelector("button").addEventListener("click", () => sort(heading));
}
