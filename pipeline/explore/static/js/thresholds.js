// Thresholds: the rows and boxes that other settings would keep, by the rules of the score stage.

import { STORED } from "./load.js";
import { SCORES, columns, inUnit, isOfRows, isShare, limit } from "./scores.js";

const EXAMPLES = 6;

/** The text of a threshold as the job accepts it: within its range, whole pixels; "" for a text that is no number. */
export function accepted(name, text) {
  const value = text.trim() === "" ? NaN : Number(text);
  if (Number.isNaN(value)) return "";
  const { range, unit } = SCORES.get(name);
  if (unit === "px") return String(Math.min(Math.max(Math.round(value), 0), Number.MAX_SAFE_INTEGER));
  const [least, most] = range ?? [-Infinity, Infinity];
  return String(Math.min(Math.max(value, least), most));
}

/** The thresholds that an output has values for. */
export const namesOf = (output) =>
  [...SCORES.values()]
    .filter((item) =>
      isShare(item)
        ? output.rows.asked.some((n) => n > 0)
        : (isOfRows(item) ? output.rows : output.boxes)[item.column].some((value) => !Number.isNaN(value)),
    )
    .map((item) => item.setting);

/** The ends of a slider and its step; a threshold that is not set is at the lower end. */
export function range(output, name) {
  const item = SCORES.get(name);
  if (item.range) return [...item.range, item.unit === "px" ? 1 : 0.01];
  let [low, high] = [Infinity, -Infinity];
  for (const value of (isOfRows(item) ? output.rows : output.boxes)[item.column]) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [Math.floor(low * 100) / 100, Math.ceil(high * 100) / 100, 0.01];
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

/** A function that tells if a row or box reaches the thresholds of stored scores, except `name`. A missing value does,
 *  but not that of the crop of a box that an earlier filter removed: nobody knows it. */
function filterOf(output, ofRows, t, name) {
  const stored = ofRows ? output.rows : output.boxes;
  const limits = columns(ofRows)
    .filter(([, { setting }]) => setting !== name && t[setting] !== undefined)
    .map(([column, item]) => ({ item, values: stored[column], least: limit(item, t[item.setting]) }));
  return (at) => {
    for (const { item, values, least } of limits) {
      const value = inUnit(item, values[at]);
      if (Number.isNaN(value) ? item.of === "crop" && output.boxes.removed[at] !== 0 : value < least) return false;
    }
    return true;
  };
}

/** A function that gives the kept boxes of a row, the share of its phrases that have one (NaN: none were asked), and
 *  whether that is too low. */
function judge(output, t) {
  const { boxes, rows, firstBox } = output,
    passes = filterOf(output, false, t),
    least = Math.fround(t[[...SCORES.values()].find(isShare).setting] ?? 0),
    seen = [];
  return (row) => {
    let [kept, grounded] = [0, 0];
    for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1) {
      if (!passes(box)) continue;
      kept += 1;
      if (seen[boxes.chunk[box]] !== row) grounded += 1;
      seen[boxes.chunk[box]] = row;
    }
    const share = Math.fround(rows.asked[row] > 0 ? grounded / rows.asked[row] : NaN);
    return { kept, share, isLow: share < least };
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
      passes = filterOf(output, true, t),
      of = judge(output, t);
    for (let row = shard.first; row < end; row += 1) {
      if (kinds[rows.reason[row]] !== 1 || !passes(row)) continue;
      const found = of(row);
      if ((found.kept > 0 || meta.keeps_pairs) && !found.isLow) kept[row] = found.kept + 1;
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
    item = SCORES.get(name),
    kinds = judged(output),
    above = new Nearest(),
    below = new Nearest();
  meta.shards.forEach((shard, at) => {
    const t = { ...shard.thresholds, ...changed },
      end = output.shardEnd(at),
      border = limit(item, t[name] ?? -Infinity),
      passes = filterOf(output, true, t, name),
      boxPasses = filterOf(output, false, t, name),
      of = judge(output, t);
    const add = (row, box, value) => {
      if (Number.isNaN(value)) return;
      const distance = value - border;
      if (distance >= 0) {
        if (distance < above.limit) above.add({ row, box, value }, distance);
      } else if (-distance < below.limit) below.add({ row, box, value }, -distance);
    };
    for (let row = shard.first; row < end; row += 1) {
      if (!mask[row] || rows.has_image[row] !== STORED || kinds[rows.reason[row]] !== 1 || !passes(row)) continue;
      if (isOfRows(item)) {
        const { share, isLow } = of(row);
        if (isShare(item)) add(row, -1, share);
        else if (!isLow) add(row, -1, inUnit(item, rows[item.column][row]));
        continue;
      }
      for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1)
        if (boxPasses(box)) add(row, box, inUnit(item, boxes[item.column][box]));
    }
  });
  return { above: above.items, below: below.items };
}

const quoted = (text) => (/^[\w./:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that applies changed thresholds. */
export function command(output, changed) {
  const settings = [...SCORES.keys()].filter((name) => name in changed).map((name) => `score.${name}=${changed[name]}`);
  const source = output.name.replace(/\/+$/, "");
  return [
    "hypergrit rewrite",
    `source=${quoted(source)}`,
    `output=${quoted(`${source}_refiltered`)}`,
    ...settings,
  ].join(" ");
}
