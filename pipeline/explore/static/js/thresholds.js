// Thresholds: the rows and boxes that other settings would keep, by the rules of the score stage.

export const NAMES = ["min_score", "min_clip_score", "min_side_px"];
export const RANGES = { min_score: [1, 0.01], min_clip_score: [2.5, 0.01], min_side_px: [256, 1] };
const EXAMPLES = 6;

/** The text of a threshold as the job accepts it: within its range, whole pixels; "" for a text that is no number. */
export function accepted(name, text) {
  const value = text.trim() === "" ? NaN : Number(text);
  if (Number.isNaN(value)) return "";
  const most = name === "min_side_px" ? Number.MAX_SAFE_INTEGER : RANGES[name][0],
    whole = name === "min_side_px" ? Math.round(value) : value;
  return String(Math.min(Math.max(whole, 0), most));
}

/** The thresholds of the output: of several shards the highest, which all of them have reached. */
export const own = (output) =>
  Object.fromEntries(
    NAMES.map((name) => [name, Math.max(...output.meta.shards.map((shard) => shard.thresholds[name]))]),
  );

/** True if some shards have other thresholds. */
export const isMixed = (output) =>
  NAMES.some((name) => output.meta.shards.some((shard) => shard.thresholds[name] !== own(output)[name]));

/** Of each drop reason: 1 if the score stage judged the row, 2 if a later stage dropped it, 0 if an earlier one did. */
const judged = (output) =>
  Uint8Array.from(output.words.reason, (reason) =>
    reason === "kept"
      ? 1
      : reason.startsWith("write:")
        ? 2
        : reason.startsWith("score:") && !["score:internal_error", "score:low_head_score"].includes(reason)
          ? 1
          : 0,
  );

/** The number of boxes of each row that changed thresholds keep; 0 for rows that an earlier or a later stage dropped.
 *  `changed` maps names to numbers; shards keep their own thresholds of other names. */
export function keptBoxes(output, changed) {
  const { boxes, rows, firstBox, meta } = output,
    kinds = judged(output),
    kept = new Uint16Array(output.n);
  meta.shards.forEach((shard, at) => {
    const t = { ...shard.thresholds, ...changed },
      end = output.shardEnd(at);
    const minScore = Math.fround(t.min_score),
      minClip = t.min_clip_score,
      minSide = t.min_side_px,
      minImage = Math.fround(t.min_image_similarity ?? -Infinity);
    for (let row = shard.first; row < end; row += 1) {
      if (kinds[rows.reason[row]] !== 1 || rows.similarity[row] < minImage) continue;
      for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1) {
        // A missing CLIPScore is NaN, which is not at least any threshold.
        if (
          boxes.side[box] >= minSide &&
          boxes.score[box] >= minScore &&
          2.5 * Math.max(boxes.cosine[box], 0) >= minClip
        )
          kept[row] += 1;
      }
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
    total.boxes += kept[row];
    if (mask[row]) {
      total.selectedRows += 1;
      total.selectedBoxes += kept[row];
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

/** The boxes of the mask's rows nearest to a threshold that pass the two others: `above` those that pass it too. */
export function examples(output, changed, name, mask) {
  const { boxes, rows, firstBox, meta } = output,
    kinds = judged(output),
    above = new Nearest(),
    below = new Nearest();
  meta.shards.forEach((shard, at) => {
    const t = { ...shard.thresholds, ...changed },
      end = output.shardEnd(at);
    t.min_score = Math.fround(t.min_score);
    const [minScore, minClip, minSide] = NAMES.map((other) => (other === name ? -Infinity : t[other])),
      border = t[name];
    for (let row = shard.first; row < end; row += 1) {
      if (!mask[row] || !rows.has_image[row] || kinds[rows.reason[row]] !== 1) continue;
      for (let box = firstBox[row]; box < firstBox[row + 1]; box += 1) {
        const score = boxes.score[box],
          side = boxes.side[box],
          clip = 2.5 * Math.max(boxes.cosine[box], 0);
        // A missing CLIPScore is NaN, which is not at least any threshold.
        if (score < minScore || side < minSide || !(clip >= minClip)) continue;
        const value = name === "min_score" ? score : name === "min_side_px" ? side : clip,
          distance = value - border;
        if (distance >= 0) {
          if (distance < above.limit) above.add({ row, box, value }, distance);
        } else if (-distance < below.limit) below.add({ row, box, value }, -distance);
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
