// The grid: one card for each row.

import { clipScore, decimals, html, plural } from "./html.js";
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

/** The cards of a page. `found`: the selected rows; `cursor`: place of the current card in `found`. */
export function Grid({ output, found, page, cursor, filters, onOpen }) {
  const test = boxTest(output, filters),
    shown = [...found.subarray(page * PAGE, (page + 1) * PAGE)];
  return html`<div class="grid">${shown.map((row, place) => {
    const at = page * PAGE + place,
      similarity = output.rows.clip_similarity[row]; // none for a row that was dropped before the scorer
    return html`<article key=${row} class=${at === cursor ? "card current" : "card"} data-at=${at}
      onClick=${() => onOpen(at)}>
      <div><${Picture} output=${output} row=${row} isClear=${(box) => !test || test(box)}
        isDrawn=${(box) => output.boxes.removed[box] === 0 || Boolean(test?.(box))} />
        <div class="chips"><${Status} output=${output} row=${row} />
          ${similarity >= -1 && html`<span class="soft" title="CLIPScore of image and caption">CLIPScore ${decimals(clipScore(similarity))}</span>`}</div>
      </div>
      <button class="caption" dir="auto" title="Open the row">${output.caption(row) || "(no caption)"}</button>
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
