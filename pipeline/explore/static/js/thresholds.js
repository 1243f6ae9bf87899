// Thresholds: the rows and boxes that other settings would keep, by the rules of the score stage.

import { clipScore } from "./html.js";
import { STORED } from "./load.js";

const BOXES = ["min_score", "min_clip_score", "min_side_px"];
/** Thresholds of whole rows, with their columns; absent from an output without values. */
const ROWS = { min_image_similarity: "similarity", min_head_score: "head" };
const SHARE = "min_grounded_share";
export const NAMES = [...BOXES, ...Object.keys(ROWS), SHARE];
/** Lowest and highest value, and step. */
const RANGES = {
  min_score: [0, 1, 0.01],
  min_clip_score: [0, 2.5, 0.01],
  min_side_px: [0, Number.MAX_SAFE_INTEGER, 1],
  min_image_similarity: [-1, 1, 0.01],
  min_head_score: [-Infinity, Infinity, 0.01],
  min_grounded_share: [0, 1, 0.01],
};
const EXAMPLES = 6;

/** The text of a threshold as the job accepts it: within its range, whole pixels; "" for a text that is no number. */
export function accepted(name, text) {
  const value = text.trim() === "" ? NaN : Number(text);
  if (Number.isNaN(value)) return "";
  const [least, most] = RANGES[name],
    whole = name === "min_side_px" ? Math.round(value) : value;
  return String(Math.min(Math.max(whole, least), most));
}

/** The thresholds that an output has values for. */
export const namesOf = (output) =>
  NAMES.filter((name) =>
    name === SHARE
      ? output.rows.asked.some((n) => n > 0)
      : !(name in ROWS) || output.rows[ROWS[name]].some((value) => !Number.isNaN(value)),
  );

/** The ends of a slider and its step; a threshold that is not set is at the lower end. */
export function range(output, name) {
  const [least, most, step] = RANGES[name];
  if (name === "min_side_px") return [least, 256, step];
  if (name !== "min_head_score") return [least, most, step];
  let [low, high] = [Infinity, -Infinity];
  for (const value of output.rows.head) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [Math.floor(low * 100) / 100, Math.ceil(high * 100) / 100, step];
}

const ofShards = (output, name) => {
  const [least] = range(output, name);
  return output.meta.shards.map((shard) => shard.thresholds[name] ?? least);
};

/** The thresholds of the output: of several shards the highest, which all of them have reached. */
export const own = (output) =>
  Object.fromEntries(
    namesOf(output).map((name) => [name, Math.max(...ofShards(output, name))]),
  );

/** True if some shards have other thresholds. */
export const isMixed = (output) =>
  namesOf(output).some((name) => new Set(ofShards(output, name)).size > 1);

/** Of each drop reason: 1 if the score stage judged the row, 2 if a later stage dropped it, 0 if an earlier one did. */
const judged = (output) =>
  Uint8Array.from(output.words.reason, (reason) =>
    reason === "kept"
      ? 1
      : reason.startsWith("write:")
        ? 2
        : reason.startsWith("score:") && reason !== "score:internal_error"
          ? 1
          : 0,
  );

/** A function that tells if a row reaches the thresholds of rows, except `name`; a missing value does. */
function filterOf(rows, t, name) {
  const limits = Object.entries(ROWS)
    .filter(([other]) => other !== name && t[other] !== undefined)
    .map(([other, column]) => [rows[column], Math.fround(t[other])]);
  return (row) => limits.every(([values, least]) => !(values[row] < least));
}

/** A function that gives the kept boxes of a row, and the share of its phrases that have one (NaN: none were asked). */
function judge({ boxes, rows, firstBox }, t) {
  const minScore = Math.fround(t.min_score),
    minClip = t.min_clip_score,
    minSide = t.min_side_px,
    seen = [];
  return (row) => {
    let [kept, grounded] = [0, 0];
    for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1) {
      // A missing CLIPScore is NaN, which is not at least any threshold.
      if (
        boxes.side[box] >= minSide &&
        boxes.score[box] >= minScore &&
        clipScore(boxes.cosine[box]) >= minClip
      ) {
        kept += 1;
        if (seen[boxes.chunk[box]] !== row) grounded += 1;
        seen[boxes.chunk[box]] = row;
      }
    }
    return { kept, share: Math.fround(rows.asked[row] > 0 ? grounded / rows.asked[row] : NaN) };
  };
}

/** For each row that changed thresholds keep, the number of its kept boxes plus 1; 0 for the others.
 *  `changed` maps names to numbers; shards keep their own thresholds of other names. */
export function keptBoxes(output, changed) {
  const { rows, meta } = output,
    kinds = judged(output),
    kept = new Uint16Array(output.n);
  meta.shards.forEach((shard, at) => {
    const t = { ...shard.thresholds, ...changed },
      end = output.shardEnd(at),
      least = Math.fround(t[SHARE] ?? 0),
      passes = filterOf(rows, t),
      of = judge(output, t);
    for (let row = shard.first; row < end; row += 1) {
      if (kinds[rows.reason[row]] !== 1 || !passes(row)) continue;
      const found = of(row);
      if ((found.kept > 0 || meta.keeps_pairs) && !(found.share < least)) kept[row] = found.kept + 1;
    }
  });
  return kept;
}

/** The numbers of kept rows and boxes, in all rows and in those of the mask. */
export function sum(kept, mask) {
  const total = { rows: 0, boxes: 0, selectedRows: 0, selectedBoxes: 0 };
  for (let row = 0; row < kept.length; row += 1) {
    if (kept[row] === 0) continue;
    total.rows += 1;
    total.boxes += kept[row] - 1;
    if (mask[row]) {
      total.selectedRows += 1;
      total.selectedBoxes += kept[row] - 1;
    }
  }
  return total;
}

/** The EXAMPLES items with the lowest `rank`, in its order. `limit` is the rank that a new item must be below. */
class Nearest {
  constructor() {
    this.items = [];
    this.limit = Infinity;
  }
  add(item, rank) {
    const place = this.items.findIndex((other) => rank < other.rank);
    this.items.splice(place < 0 ? this.items.length : place, 0, { ...item, rank });
    if (this.items.length > EXAMPLES) this.items.pop();
    if (this.items.length === EXAMPLES) this.limit = this.items.at(-1).rank;
  }
}

/** The boxes of the mask's rows nearest to a threshold that pass the others: `above` those that pass it too. For a
 *  threshold of rows these are rows, without a box. */
export function examples(output, changed, name, mask) {
  const { boxes, rows, firstBox, meta } = output,
    kinds = judged(output),
    above = new Nearest(),
    below = new Nearest();
  meta.shards.forEach((shard, at) => {
    const t = { ...shard.thresholds, ...changed },
      end = output.shardEnd(at);
    t.min_score = Math.fround(t.min_score);
    const [minScore, minClip, minSide] = BOXES.map((other) => (other === name ? -Infinity : t[other])),
      border = t[name] ?? -Infinity;
    const passes = filterOf(rows, t, name),
      of = judge(output, t),
      least = Math.fround(t[SHARE] ?? 0);
    const add = (row, box, value) => {
      const distance = value - border;
      if (distance >= 0) {
        if (distance < above.limit) above.add({ row, box, value }, distance);
      } else if (-distance < below.limit) below.add({ row, box, value }, -distance);
    };
    for (let row = shard.first; row < end; row += 1) {
      if (!mask[row] || rows.has_image[row] !== STORED || kinds[rows.reason[row]] !== 1) continue;
      if (!passes(row) || (name in ROWS && of(row).share < least)) continue;
      if (name in ROWS || name === SHARE) {
        const value = name === SHARE ? of(row).share : rows[ROWS[name]][row];
        if (!Number.isNaN(value)) add(row, -1, value);
        continue;
      }
      for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1) {
        const score = boxes.score[box],
          side = boxes.side[box],
          clip = clipScore(boxes.cosine[box]);
        // A missing CLIPScore is NaN, which is not at least any threshold.
        if (score < minScore || side < minSide || !(clip >= minClip)) continue;
        add(row, box, name === "min_score" ? score : name === "min_side_px" ? side : clip);
      }
    }
  });
  return { above: above.items, below: below.items };
}

const quoted = (text) => (/^[\w./:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that applies changed thresholds. */
export function command(output, changed) {
  const settings = NAMES.filter((name) => name in changed).map((name) => `score.${name}=${changed[name]}`);
  const source = output.name.replace(/\/+$/, "");
  return [
    "hypergrit rewrite",
    `source=${quoted(source)}`,
    `output=${quoted(`${source}_refiltered`)}`,
    ...settings,
  ].join(" ");
}
