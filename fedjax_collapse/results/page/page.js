// Sorts a table by the column whose heading is pressed: numbers by size, what has none last. The page works without it.
for (const table of document.querySelectorAll("table.results")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 2) continue;
  const key = (row, i) => {
    const text = row.cells[i].textContent.trim().replaceAll("−", "-"), found = text.match(/^[+-]?[\d.,]+(e[+-]?\d+)?/);
    return [text === "-" || text === "" ? null : found ? parseFloat(found[0].replaceAll(",", "")) : NaN, text];
  };
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    const isNumeric = rows.every((row) => !Number.isNaN(key(row, i)[0]));
    button.onclick = () => {
      const before = head.getAttribute("aria-sort");
      const sign = (before ? before === "descending" : !isNumeric) ? 1 : -1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const compared = ([a, s], [b, t]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (isNumeric ? a - b : s.localeCompare(t, "en", { numeric: true }));
      };
      body.append(...rows.map((row) => [key(row, i), row]).sort((x, y) => compared(x[0], y[0])).map(([, row]) => row));
    };
  });
}
