// Filters: which rows and boxes of an output the fields of the panel select.

import { clipScore } from "./html.js";

export const BOX_FIELDS = [
  "phrase",
  "label",
  "box",
  "score_min",
  "score_max",
  "clip_min",
  "clip_max",
  "side_min",
  "side_max",
];
export const ROW_FIELDS = ["q", "status", "reason", "host", "source", "image_min", "image_max"];
export const FIELDS = [...ROW_FIELDS, ...BOX_FIELDS];

/** The terms of a search: words, and "several words" in quotes, in lower case. */
export const terms = (query) =>
  [...query.toLowerCase().matchAll(/"([^"]+)"?|([^\s"]+)/g)].map((match) => match[1] ?? match[2]);

/** Clear the mask for rows whose caption lacks a term. */
function search(output, term, mask) {
  for (const { first, n, lower, lowerStarts } of output.parts) {
    const found = new Uint8Array(n);
    let row = 0;
    for (let at = lower.indexOf(term); at >= 0; at = lower.indexOf(term, lowerStarts[row + 1])) {
      while (lowerStarts[row + 1] <= at) row += 1;
      found[row] = 1;
      if (row + 1 >= n) break;
    }
    for (row = 0; row < n; row += 1) mask[first + row] &= found[row];
  }
}

/** One flag for each word: those equal to the text or, if there are none or `inside`, those that contain it. */
export function matching(words, text, inside = false) {
  const wanted = text.trim().toLowerCase(),
    lower = words.map((word) => word.toLowerCase());
  const isExact = !inside && lower.includes(wanted);
  return Uint8Array.from(lower, (word) => (isExact ? word === wanted : word.includes(wanted)));
}

const least = (text) => (text === "" ? -Infinity : Number(text));
const most = (text) => (text === "" ? Infinity : Number(text));

/** A function that tells whether the filters of boxes select a box; null without such filters. */
export function boxTest(output, f) {
  if (!BOX_FIELDS.some((name) => f[name])) return null;
  const { boxes, words, meta } = output;
  const phrases = f.phrase && matching(words.phrase, f.phrase, true),
    labels = f.label && matching(words.label, f.label);
  const removed = f.box === "kept" ? 0 : meta.removals.indexOf(f.box);
  // Scores are float32: without rounding, 0.9 as a number would be below the stored 0.9.
  const [minScore, maxScore] = [Math.fround(least(f.score_min)), Math.fround(most(f.score_max))];
  const [minClip, maxClip, minSide, maxSide] = [
    least(f.clip_min),
    most(f.clip_max),
    least(f.side_min),
    most(f.side_max),
  ];
  const needsClip = f.clip_min !== "" || f.clip_max !== "";
  return (box) => {
    if (phrases && !phrases[boxes.phrase[box]]) return false;
    if (labels && !labels[boxes.label[box]]) return false;
    if (f.box && (f.box === "removed" ? !boxes.removed[box] : boxes.removed[box] !== removed)) return false;
    if (boxes.score[box] < minScore || boxes.score[box] > maxScore) return false;
    if (boxes.side[box] < minSide || boxes.side[box] > maxSide) return false;
    const clip = clipScore(boxes.clip_cosine[box]);
    return !needsClip || (clip >= minClip && clip <= maxClip);
  };
}

/** One flag for each row: 1 if the filters of rows select it, and those of boxes select one of its boxes. */
export function select(output, f) {
  const { rows, words, n, firstBox } = output;
  const mask = new Uint8Array(n).fill(1);
  for (const term of terms(f.q)) search(output, term, mask);
  const reasons = words.reason.map(
    (reason) => (!f.status || (reason === "kept") === (f.status === "kept")) && (!f.reason || reason === f.reason),
  );
  const hosts = f.host && matching(words.host, f.host),
    sources = f.source && matching(words.source, f.source);
  const [minImage, maxImage] = [least(f.image_min), most(f.image_max)],
    hasSize = f.image_min !== "" || f.image_max !== "";
  const test = boxTest(output, f);
  for (let row = 0; row < n; row += 1) {
    if (!mask[row]) continue;
    let is =
      reasons[rows.reason[row]] && (!hosts || hosts[rows.host[row]]) && (!sources || sources[rows.source[row]]);
    if (is && hasSize) {
      const side = Math.min(rows.original_width[row], rows.original_height[row]);
      is = side > 0 && side >= minImage && side <= maxImage;
    }
    if (is && test) {
      is = false;
      for (let box = firstBox[row]; box < firstBox[row + 1] && !is; box += 1) is = test(box);
    }
    if (!is) mask[row] = 0;
  }
  return mask;
}

/** The rows of a mask in ascending order. */
export function rowsOf(mask) {
  const found = new Int32Array(mask.length);
  let n = 0;
  for (let row = 0; row < mask.length; row += 1) {
    if (!mask[row]) continue;
    found[n] = row;
    n += 1;
  }
  return found.subarray(0, n);
}

/** The place in the ascending `found` before (step -1) or after (1) a row, which the filters may not select. */
export function beside(found, row, step) {
  const at = found.findIndex((other) => other >= row),
    place = at < 0 ? found.length : at;
  return found[place] === row || step < 0 ? place + step : place;
}
