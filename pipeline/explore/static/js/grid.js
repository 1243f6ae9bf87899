// The grid: one card for each row, or for each pair of rows of two outputs.

import { decimals, html, plural } from "./html.js";
import { boxTest } from "./filters.js";
import { Picture } from "./picture.js";
import { pageOf } from "./state.js";

export const PAGE = 60;

function Status({ output, row }) {
  const reason = output.word("reason", row),
    isKept = reason === "kept";
  return html`<span class="chip ${isKept ? "kept" : "dropped"}">
    ${isKept ? plural(output.keptBoxes(row), "box") : reason}</span>`;
}

function Side({ output, row, letter, test }) {
  if (row < 0) return html`<div class="side"><div class="picture missing">not in ${letter}</div></div>`;
  const similarity = output.rows.similarity[row]; // none for a row that was dropped before the scorer
  return html`<div class="side">
    <${Picture} output=${output} row=${row} isClear=${(box) => !test || test(box)}
      isDrawn=${(box) => output.boxes.removed[box] === 0 || Boolean(test?.(box))} />
    <div class="chips">${letter && html`<b class="letter">${letter}</b>`}<${Status} output=${output} row=${row} />
      ${similarity >= -1 && html`<span class="soft" title="cosine of image and caption">cos ${decimals(similarity)}</span>`}</div>
  </div>`;
}

/** The cards of a page. `found`: selected pairs; `cursor`: place of the current card in `found`. */
export function Grid({ outputs, pairs, found, page, cursor, filters, onOpen }) {
  const tests = outputs.map((output) => boxTest(output, filters)),
    [a, b] = outputs;
  const shown = [...found.subarray(page * PAGE, (page + 1) * PAGE)];
  return html`<div class="grid ${b ? "two" : ""}">${shown.map((pair, place) => {
    const left = pairs.left[pair],
      right = b ? pairs.right[pair] : -1,
      at = page * PAGE + place;
    const caption = left >= 0 ? a.caption(left) : b.caption(right);
    return html`<article key=${pair} class=${at === cursor ? "card current" : "card"} data-at=${at}
      onClick=${() => onOpen(at)}>
      <div class="sides"><${Side} output=${a} row=${left} letter=${b && "A"} test=${tests[0]} />
        ${b && html`<${Side} output=${b} row=${right} letter="B" test=${tests[1]} />`}</div>
      <button class="caption" dir="auto" title="Open the row">${caption || "(no caption)"}</button>
    </article>`;
  })}</div>`;
}

/** Links to the other pages of the grid. */
export function Pages({ n, page, onPage }) {
  const last = Math.max(Math.ceil(n / PAGE) - 1, 0);
  return html`<nav class="pages" aria-label="Pages">
    <button disabled=${page === 0} onClick=${() => onPage(page - 1)}>Previous</button>
    <label>Page <input type="number" min="1" max=${last + 1} value=${page + 1}
      onChange=${(event) => onPage(pageOf(event.target.value - 1, last))} /> of ${last + 1}
        </label>
    <button disabled=${page >= last} onClick=${() => onPage(page + 1)}>Next</button>
  </nav>`;
}
