// A picture with its boxes.

import { html } from "./html.js";

/** Class of the colour of a box. */
export const colour = (number) => `c${number % 8}`;

/** The picture of a row. `isDrawn(box)`: draw the box at all; `isClear(box)`: draw it in full strength.
 *
 * A row without kept boxes shows the removed ones. Pictures narrower than `least` px get a margin: they are not blown up. */
export function Picture({ output, row, isDrawn = () => true, isClear = () => true, onBox = null, least = 160 }) {
  const { boxes, rows, firstBox } = output,
    url = output.imageUrl(row);
  const width = rows.width[row] || 4,
    height = rows.height[row] || 3,
    first = firstBox[row],
    margin = Math.max(0, (least - Math.max(width, height)) / 2),
    areAllRemoved = output.keptBoxes(row) === 0,
    drawn = [];
  for (let box = firstBox[row + 1] - 1; box >= first; box -= 1) {
    if (!areAllRemoved && !isDrawn(box)) continue;
    const kind = `${colour(box - first)} ${boxes.removed[box] ? "removed" : ""} ${isClear(box) ? "" : "faint"}`;
    drawn.push(html`<rect key=${box} class="box ${kind}" x=${boxes.x_min[box] * width}
      y=${boxes.y_min[box] * height}
      width=${Math.max(boxes.x_max[box] - boxes.x_min[box], 0) * width}
      height=${Math.max(boxes.y_max[box] - boxes.y_min[box], 0) * height}
      onMouseEnter=${onBox && (() => onBox(box - first))} />`);
  }
  return html`<div class="picture">
    <svg viewBox="${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}" role="img" aria-label=${output.caption(row)}>
      ${url ? html`<image href=${url} width=${width} height=${height} />` : html`<rect class="empty"
        width=${width} height=${height} />`}
      ${drawn}
    </svg>
    ${url ? null : html`<span
      class="no-image">image not ${output.rows.width[row] && output.nImages !== undefined ? "included" : "stored"}
      </span>`}
  </div>`;
}
