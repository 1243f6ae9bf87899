// Sortable tables, enlarged pictures and charts, and keys to copy. The page is complete without this script.
"use strict";

const number = (cell) => {
  const text = cell.dataset.value ?? cell.textContent.trim().replaceAll(",", "");
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
};

function sort(header) {
  const table = header.closest("table"), index = header.cellIndex, body = table.tBodies[0];
  const ascending = header.getAttribute("aria-sort") === "descending";
  const rows = [...body.rows].map((row, i) => ({ row, i, n: number(row.cells[index]), text: row.cells[index].textContent }));
  rows.sort((a, b) => {
    const order = a.n !== null && b.n !== null ? a.n - b.n : a.text.localeCompare(b.text);
    return (ascending ? order : -order) || a.i - b.i;
  });
  body.append(...rows.map(({ row }) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

for (const header of document.querySelectorAll("table.sortable th")) {
  const button = document.createElement("button");
  button.append(...header.childNodes);
  button.addEventListener("click", () => sort(header));
  header.append(button);
}

const dialog = document.createElement("dialog");
dialog.addEventListener("click", () => dialog.close());
document.body.append(dialog);

function enlarge(source) {
  const copy = source.cloneNode(true);
  for (const attribute of ["role", "tabindex", "aria-label"]) copy.removeAttribute(attribute);
  const box = source.getBoundingClientRect(), ratio = box.width / box.height;
  const width = Math.floor(Math.min(window.innerWidth * 0.96, window.innerHeight * 0.92 * ratio));
  copy.style.width = `${width}px`;
  copy.style.height = `${Math.floor(width / ratio)}px`;
  dialog.className = source.dataset.chart ?? "";
  dialog.replaceChildren(copy);
  dialog.showModal();
}

for (const source of document.querySelectorAll(".frame, .chart svg")) {
  source.setAttribute("tabindex", "0");
  source.setAttribute("role", "button");
  source.setAttribute("aria-label", source.getAttribute("aria-label") ?? "Enlarge the picture");
  source.addEventListener("click", () => enlarge(source));
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      enlarge(source);
    }
  });
}

for (const element of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.title = `copy ${element.dataset.copy}`;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(element.dataset.copy);
      button.textContent = "copied";
    } catch {
      button.textContent = element.dataset.copy;
    }
  });
  element.append(" ", button);
}
