// The scores with a slider: those of site.json (schemas/scores.py), and the size of a box.

import { clipScore } from "./html.js";

const SIZE = { setting: "min_side_px", label: "Side in px", column: "side", unit: "px", of: "box", range: [0, 256] };

/** Name of a threshold -> its score, those of boxes first. `column` is that of the index, "" for a share of phrases. */
export const SCORES = new Map();
export const isOfRows = (item) => item.of === "row";
export const isShare = (item) => item.column === "";

export function setScores(scores) {
  for (const item of [...scores.filter((item) => !isOfRows(item)), SIZE, ...scores.filter(isOfRows)])
    SCORES.set(item.setting, item);
}

/** The scores of rows, or of boxes, that are columns, as [column, score]. */
export const columns = (ofRows) =>
  [...SCORES.values()].filter((item) => isOfRows(item) === ofRows && item.column).map((item) => [item.column, item]);

/** A stored number in the unit of the threshold. */
export const inUnit = (item, value) => (item.unit === "CLIPScore" ? clipScore(value) : value);

/** A threshold as it is compared: with float32, as the numbers are stored, or with what is computed from them. */
export const limit = (item, value) => (["px", "CLIPScore"].includes(item.unit) ? value : Math.fround(value));
