// The Poincaré disk: points of the selected rows in the space of one or two models.

import { decimals, html, plural, useMemo, useState } from "./html.js";

const KINDS = { image: "images", text: "captions", box_image: "boxes", box_text: "phrases" };
const kindClass = (kind) => `c${Object.keys(KINDS).indexOf(kind)}`;

/** The points of each disk with their rows in place of the keys; without those of rows that the output lacks. */
function placePoints(disks, output) {
  const rows = new Map(disks.flatMap((disk) => disk.points.map(([key]) => [key, -1])));
  for (let row = 0; row < output.n; row += 1) {
    const key = output.key(row);
    if (rows.has(key)) rows.set(key, row);
  }
  return disks.map((disk) =>
    disk.points.map(([key, ...point]) => [rows.get(key), ...point]).filter(([row]) => row >= 0),
  );
}

/** A disk, enlarged to the outermost point. */
function Disk({ disk, points, mask, hidden, row, onRow, onOpen }) {
  const limit = useMemo(
    () => Math.min(1.02, 1.08 * points.reduce((most, point) => Math.max(most, Math.hypot(point[3], point[4])), 0.01)),
    [points],
  );
  const shown = points.filter(([row, kind]) => mask[row] && !hidden.includes(kind));
  const circle = ([row, kind, text, x, y], at) => html`<circle key=${at} class="point ${kindClass(kind)}"
    data-row=${row} cx=${x} cy=${-y} r=${limit * 0.011}><title>${text}</title></circle>`;
  // The same node again is not compared: hovering draws only the points of the row.
  const all = useMemo(() => html`<g>${shown.map(circle)}</g>`, [points, mask, hidden]);
  const rowOf = (event) => Number(event.target.dataset?.row ?? -1);
  return html`<figure><figcaption>${disk.model} <span class="soft">${disk.projection} ·
      ${" "}${plural(shown.length, "point")} · radius ${decimals(limit)}</span></figcaption>
    <svg class="disk" viewBox="${-limit} ${-limit} ${2 * limit} ${2 * limit}" role="img"
      aria-label="Poincaré disk of ${disk.model}" onMouseOver=${(event) => onRow(rowOf(event))}
      onClick=${(event) => rowOf(event) >= 0 && onOpen(rowOf(event))}>
      <circle class="edge" r="1" /><path class="edge" d="M-1 0H1M0 -1V1" />
      ${all}<g class="current">${shown.filter((point) => point[0] === row).map(circle)}</g>
    </svg></figure>`;
}

/** The disks side by side. `mask`: rows that the filters select. */
export function Disks({ disks, output, mask, onOpen }) {
  const [row, setRow] = useState(-1),
    [hidden, setHidden] = useState([]);
  const points = useMemo(() => placePoints(disks, output), [disks, output]);
  const toggle = (kind) => setHidden(hidden.includes(kind) ? hidden.filter((other) => other !== kind) : [...hidden, kind]);
  return html`<div class="panel"><div class="bar">${Object.entries(KINDS).map(
    ([kind, name]) => html`<button key=${kind} name=${kind} aria-pressed=${!hidden.includes(kind)}
      onClick=${() => toggle(kind)}><span class="swatch ${kindClass(kind)}"></span>${name}</button>`,
  )}</div><p class="line soft">${row >= 0 && output.caption(row)}</p>
    <div class="disks">${disks.map(
      (disk, at) => html`<${Disk} key=${at} disk=${disk} points=${points[at]} mask=${mask} hidden=${hidden}
        row=${row} onRow=${setRow} onOpen=${onOpen} />`,
    )}</div></div>`;
}
