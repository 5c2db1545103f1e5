document.querySelectorAll("select[data-target]").forEach(s => s.addEventListener("change", () =>
  [...document.getElementById(s.dataset.target).children].forEach((c, i) => { c.hidden = i !== s.selectedIndex; })));
document.querySelectorAll("table.sortable").forEach(t => {
  const heads = [...t.tHead.rows[1].cells];
  heads.forEach(h => h.addEventListener("keydown", e => { if (e.key === "Enter") h.click(); }));
  heads.forEach((h, i) => h.addEventListener("click", () => {
    const up = h.getAttribute("aria-sort") !== "ascending";
    heads.forEach(x => x.removeAttribute("aria-sort"));
    h.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = r => i ? parseFloat(r.cells[i].dataset.v) : r.cells[0].textContent;
    const order = (a, b) => i ? (isNaN(a) - isNaN(b) || (up ? a - b : b - a)) : (up ? 1 : -1) * a.localeCompare(b);
    [...t.tBodies[0].rows].sort((a, b) => order(value(a), value(b))).forEach(r => t.tBodies[0].append(r));
  }));
});
