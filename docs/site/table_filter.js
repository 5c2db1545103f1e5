/* Add filters to tables with at least 20 rows: a text field, and a list for each column with few different values. */
(function () {
  "use strict";
  const MIN_ROWS = 20;
  const MAX_CHOICES = 8;

  function text(cell) {
    return cell ? cell.textContent.trim() : "";
  }

  function choices(rows, column) {
    return [...new Set(rows.map((row) => text(row.cells[column])))].sort();
  }

  function control(label, element) {
    const box = document.createElement("label");
    box.append(label, element);
    return box;
  }

  function select(values, label) {
    const list = document.createElement("select");
    list.setAttribute("aria-label", label);
    for (const value of ["", ...values]) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = value || "all";
      list.append(option);
    }
    return list;
  }

  function addFilters(table) {
    const rows = [...table.tBodies[0].rows];
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "text in a row";
    const count = document.createElement("output");
    const lists = [...table.tHead.rows[0].cells].flatMap((head, column) => {
      const values = choices(rows, column);
      const few = values.length > 1 && values.length <= MAX_CHOICES;
      return few ? [{ column, head, list: select(values, text(head)) }] : [];
    });

    function update() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const content = row.textContent.toLowerCase();
        const fits =
          words.every((word) => content.includes(word)) &&
          lists.every(({ column, list }) => !list.value || text(row.cells[column]) === list.value);
        row.hidden = !fits;
        shown += fits ? 1 : 0;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    }

    const bar = document.createElement("form");
    bar.className = "table-filter";
    bar.append(control("Filter", search), ...lists.map(({ head, list }) => control(text(head), list)), count);
    bar.addEventListener("input", update);
    bar.addEventListener("submit", (event) => event.preventDefault());
    const frame = document.createElement("div");
    frame.className = "table-tall";
    table.before(bar, frame);
    frame.append(table);
    update();
  }

  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    if (table.tHead && table.tBodies[0].rows.length >= MIN_ROWS) addFilters(table);
  }
})();
