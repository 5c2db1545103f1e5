const all = (selector, root = document) => [...root.querySelectorAll(selector)];

const everything = document.getElementById("everything");

// A menu shows the child of its target element that is selected.
all("select[data-target]").forEach(s => s.addEventListener("change", () =>
  {
  [...document.getElementById(s.dataset.target).children].forEach((c, i) => { c.hidden = i !== s.selectedIndex; });
  place();
}));

// Links open folded sections, and on paper all sections are open.
const open = address => {
  const details = address.length > 1 && document.querySelector(`${address}.findings > details, ${address} > details`);
  if (details) details.open = true;
};
all('a[href^="#"]').forEach(a => a.addEventListener("click", () => open(a.hash)));
open(location.hash);
addEventListener("beforeprint", () => all("section > details, .findings > details").forEach(d => { d.open = true; }));

// Sort tables by a click on a heading; the first click puts the best value first.
all("table.sortable").forEach(t => {
  const heads = [...t.tHead.rows[t.tHead.rows.length - 1].cells];
  heads.forEach(h => h.addEventListener("keydown", e => { if (e.key === "Enter") h.click(); }));
  heads.forEach((h, i) => h.addEventListener("click", () => {
    if (everything) everything.checked = true;  // the best of a column may be folded
    const before = h.getAttribute("aria-sort");
    const up = before ? before !== "ascending" : h.dataset.better !== "higher";
    heads.forEach(x => x.removeAttribute("aria-sort"));
    h.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = r => i ? parseFloat(r.cells[i].dataset.v) : r.cells[0].textContent;
    const order = (a, b) => i ? (isNaN(a) - isNaN(b) || (up ? a - b : b - a)) : (up ? 1 : -1) * a.localeCompare(b);
    [...t.tBodies[0].rows].sort((a, b) => order(value(a), value(b))).forEach(r => t.tBodies[0].append(r));
  }));
});

// Filter detectors whose names contain one of the words, as shown or as in code. Columns of grids are hidden cell by cell.
const plain = text => text.toLowerCase().replaceAll("+", "plus").replace(/[^\p{L}\p{N}]/gu, "");
const filter = document.getElementById("filter"), count = document.getElementById("filtered");
const apply = () => {
  const words = filter.value.split(/[\s,]+/).map(plain).filter(Boolean);
  const shown = name => !words.length || words.some(word => plain(name).includes(word));
  document.body.classList.toggle("filtering", words.length > 0);
  all("main [data-d]").forEach(e => { e.hidden = !shown(e.dataset.d); });
  all("table.by-detector").forEach(t => {
    const hidden = [...t.tHead.rows[0].cells].map(h => "d" in h.dataset && !shown(h.dataset.d));
    [...t.tBodies[0].rows].forEach(r => [...r.cells].forEach((c, i) => { c.hidden = hidden[i]; }));
  });
  const rows = all("tbody tr", document.querySelector("table.detectors") || filter), left = rows.filter(r => !r.hidden).length;
  count.textContent = words.length && rows.length ? `${left} of ${rows.length}` : "";
  hint();
};
if (filter) filter.addEventListener("input", apply);

// Selected curves have one of six colors; a seventh takes the color of the first.
all(".roc").forEach(box => {
  const buttons = all("button", document.getElementById(box.dataset.names)), svg = box.querySelector("svg");
  const lines = Object.fromEntries(all(".line", svg).map(g => [g.dataset.d, g]));
  const order = buttons.filter(b => b.dataset.colour);
  const paint = (b, colour) => [b, lines[b.dataset.d]].forEach(e => {
    if (colour === undefined) { delete e.dataset.colour; } else { e.dataset.colour = colour; }
    if (e === b) { b.setAttribute("aria-pressed", colour !== undefined); } else { e.parentNode.insertBefore(e, cursor); }
  });
  const cursor = svg.querySelector(".cursor"), readout = box.nextElementSibling;
  buttons.forEach(b => b.addEventListener("click", () => {
    if (order.includes(b)) { order.splice(order.indexOf(b), 1); paint(b); return; }
    if (order.length === 6) paint(order.shift());
    const taken = order.map(o => o.dataset.colour);
    paint(b, ["0", "1", "2", "3", "4", "5"].find(c => !taken.includes(c)));
    order.push(b);
  }));
  // Where a line crosses the height of the pointer.
  const at = (g, y) => {
    const points = g.querySelector("path").getAttribute("d").slice(1).match(/[\d.]+/g).map(Number);
    for (let i = 2; i < points.length; i += 2) {
      const [x0, y0, x1, y1] = points.slice(i - 2, i + 2);
      if (y1 <= y) return y0 === y1 ? x1 : x0 + (x1 - x0) * (y0 - y) / (y0 - y1);
    }
    return 886;
  };
  svg.addEventListener("pointermove", e => {
    const y = new DOMPoint(e.clientX, e.clientY).matrixTransform(cursor.getScreenCTM().inverse()).y;
    if (y < 8 || y > 388) return;
    cursor.setAttribute("y1", y); cursor.setAttribute("y2", y); cursor.setAttribute("visibility", "visible");
    const fpr = g => 100 * ((at(g, y) - 46) / 840) ** 2;
    readout.textContent = `${(100 - 100 * ((y - 8) / 380) ** 2).toFixed(1)} % of ID images kept; OOD images accepted: ` +
      order.map(b => `${b.dataset.d} ${fpr(lines[b.dataset.d]).toFixed(1)} %`).join(", ");
  });
});

// A sample of images by falling score; the slider moves the threshold, with numbers and rates of all images.
all(".look").forEach(box => {
  const data = JSON.parse(box.dataset.look), [detector, set] = all("select", box), slider = box.querySelector("input");
  const add = (parent, tag, text, name = "") => parent.appendChild(Object.assign(document.createElement(tag), {textContent: text, className: name}));
  const draw = () => {
    const own = data.detectors[detector.selectedIndex], k = set.selectedIndex, step = Number(slider.value), id = data.sets.length - 1;
    const rates = data.sets.map((s, i) => {
      const n = own.accepted[i][step], rate = (100 * n / Math.max(s.n, 1)).toFixed(1);
      return i === id ? `keeps ${n} of ${s.n} images of ${s.name} (TPR ${rate} %)` : `accepts ${n} of ${s.n} images of ${s.name} (FPR ${rate} %)`;
    });
    box.querySelector("output").textContent = `${detector.value} with threshold ${own.thresholds[step]}: ${[rates[id], ...rates.slice(0, id)].join(", ")}.`;
    slider.setAttribute("aria-valuetext", `keeps ${data.shares[step]} of the ID images`);
    const grid = document.createElement("div");
    own.order[k].forEach((place, i) => {
      const [name, prediction, shot, path, near] = data.sets[k].images[place], rejected = own.steps[k][i] > step;
      if (rejected && !(own.steps[k][i - 1] > step)) add(grid, "p", "rejected", "cut");
      const figure = add(grid, "figure", "", rejected ? "rejected" : "");
      figure.title = path;
      if (shot) { const picture = add(figure, "div", "", `shot ${shot}`); picture.setAttribute("role", "img"); picture.ariaLabel = path; }
      add(figure, "b", name);
      if (prediction) { figure.append(" taken for "); add(figure, "b", prediction); }
      const from = data.shares[own.steps[k][i]];
      figure.append(document.createElement("br"));
      add(figure, "span", from ? `from ${from} TPR` : "never accepted", "soft");
      if (near.length) add(add(figure, "details", ""), "summary", "nearest");
      near.forEach(([label, picture, about]) => {
        const row = add(figure.lastChild, "div", "");
        row.title = about;
        if (picture) add(row, "i", "", `icon ${picture}`);
        row.append(label);
      });
    });
    box.querySelector(".thumbs").replaceChildren(...grid.childNodes);
  };
  box.querySelector(".controls").hidden = false;
  [detector, set, slider].forEach(control => control.addEventListener("input", draw));
  draw();
});

// On a narrow screen, names of points go to the side with room, or are left out.
const place = () => all(".points").forEach(svg => {
  const frame = svg.getBoundingClientRect(), taken = [];
  const fits = own => own.left >= frame.left && own.right <= frame.right &&
    !taken.some(t => own.left < t.right && t.left < own.right && own.top + 2 < t.bottom && t.top + 2 < own.bottom);
  if (frame.width) all("g > text", svg).forEach(name => {
    name.style.display = "";
    const is = name.dataset.side ||= name.getAttribute("text-anchor");
    const found = [is, is === "start" ? "end" : "start"].some(side => {
      name.setAttribute("text-anchor", side);
      name.setAttribute("dx", side === "start" ? 8 : -8);
      return fits(name.getBoundingClientRect());
    });
    if (found) taken.push(name.getBoundingClientRect()); else name.style.display = "none";
  });
});
addEventListener("resize", place);
document.addEventListener("toggle", place, true);
place();

// Mark elements wider than the screen until they are scrolled to the end.
const hint = () => all(".scroll, .scrolls").forEach(s => {
  s.classList.toggle("more", s.scrollWidth - s.clientWidth - s.scrollLeft > 2);
});
all(".scroll, .scrolls").forEach(s => s.addEventListener("scroll", hint, {passive: true}));
addEventListener("resize", hint);
hint();
