// Read an output: its index as typed arrays, and details of single rows.

import { clipScore } from "./html.js";
import { columns } from "./scores.js";

const { tableFromIPC } = globalThis.Arrow;
const CONCURRENCY = 4;
/** Value of `has_image` for a row with a stored image; 2: with a thumbnail only. */
export const STORED = 1;
const ROW_COLUMNS = {
  reason: Int32Array,
  host: Int32Array,
  source: Int32Array,
  width: Int32Array,
  height: Int32Array,
  original_width: Int32Array,
  original_height: Int32Array,
  asked: Int32Array,
  has_image: Uint8Array,
};
const BOX_COLUMNS = {
  row: Int32Array,
  phrase: Int32Array,
  label: Int32Array,
  chunk: Int32Array,
  x_min: Float32Array,
  y_min: Float32Array,
  x_max: Float32Array,
  y_max: Float32Array,
  side: Int32Array,
  removed: Uint8Array,
};
const scoresOf = (ofRows) => Object.fromEntries(columns(ofRows).map(([column]) => [column, Float32Array]));
const pad = (number, digits) => String(number).padStart(digits, "0");

async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response;
}
export const getJson = async (path) => (await get(path)).json();
const getTable = async (path) => tableFromIPC(new Uint8Array(await (await get(path)).arrayBuffer()));

/** Call `work` on each item, a few at a time. */
async function each(items, work) {
  const queue = items.entries();
  const run = async () => {
    for (const [number, item] of queue) await work(item, number);
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, run));
}

const allocate = (columns, n) =>
  Object.fromEntries(Object.entries(columns).map(([name, Kind]) => [name, new Kind(n)]));

function copyInto(columns, table, first) {
  for (const [name, values] of Object.entries(columns)) {
    let at = first;
    for (const chunk of table.getChild(name).data) {
      values.set(chunk.values.subarray(0, chunk.length), at);
      at += chunk.length;
    }
  }
}

/** Start of each line of a text, and its end; every line ends with a line feed. */
function lineStarts(text, n) {
  const starts = new Int32Array(n + 1);
  for (let line = 1; line <= n; line += 1) starts[line] = text.indexOf("\n", starts[line - 1]) + 1;
  return starts;
}

/** An output: `rows` and `boxes` hold a typed array for each column; boxes are in the order of their rows. */
export class Output {
  constructor(entry, meta, words, chunk) {
    Object.assign(this, { name: entry.name, folder: entry.folder, meta, words, chunk, n: meta.rows });
    this.rows = allocate({ ...scoresOf(true), ...ROW_COLUMNS }, meta.rows);
    this.boxes = allocate({ ...scoresOf(false), ...BOX_COLUMNS }, meta.boxes);
    this.firstBox = new Int32Array(meta.rows + 1);
    this.parts = [];
    this.details = new Map();
  }

  /** Position in `meta.shards` of the shard of a row. */
  shardOf(row) {
    let low = 0,
      high = this.meta.shards.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.meta.shards[middle].first <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }
  /** Index of the shard of a row, and the number of the row there. */
  place(row) {
    const { shard, first } = this.meta.shards[this.shardOf(row)];
    return { shard, number: row - first };
  }
  shardEnd(at) {
    return at + 1 < this.meta.shards.length ? this.meta.shards[at + 1].first : this.n;
  }
  partOf(row) {
    return this.parts.find((part) => row < part.first + part.n);
  }
  key(row) {
    const part = this.partOf(row);
    return part.keys.get(row - part.first);
  }
  caption(row) {
    const part = this.partOf(row),
      line = row - part.first;
    return part.text.slice(part.starts[line], part.starts[line + 1] - 1);
  }
  word(column, row) {
    return this.words[column][this.rows[column][row]];
  }
  isKept(row) {
    return this.word("reason", row) === "kept";
  }
  phrase(box) {
    return this.words.phrase[this.boxes.phrase[box]];
  }
  label(box) {
    return this.words.label[this.boxes.label[box]] ?? "";
  }
  clipScore(box) {
    return clipScore(this.boxes.clip_cosine[box]);
  }
  removal(box) {
    return this.meta.removals[this.boxes.removed[box]];
  }
  keptBoxes(row) {
    let n = 0;
    for (let box = this.firstBox[row]; box < this.firstBox[row + 1]; box += 1) n += this.boxes.removed[box] === 0;
    return n;
  }
  imageUrl(row) {
    const { shard, number } = this.place(row);
    return this.rows.has_image[row] ? `${this.folder}/images/${pad(shard, 5)}/${pad(number, 6)}.jpg` : null;
  }
  /** The row of a shard with this key; -1 if there is none. */
  find(shard, key) {
    const at = this.meta.shards.findIndex((item) => item.shard === shard);
    if (at < 0) return -1;
    for (let row = this.meta.shards[at].first; row < this.shardEnd(at); row += 1)
      if (this.key(row) === key) return row;
    return -1;
  }
  /** The last row with this key; -1 if there is none. */
  findKey(key) {
    let row = this.n - 1;
    while (row >= 0 && this.key(row) !== key) row -= 1;
    return row;
  }
  /** Everything that arrow/ holds about a row; a few hundred rows are kept. */
  async detailsOf(row) {
    const { shard, number } = this.place(row);
    const path = `${this.folder}/rows/${pad(shard, 5)}-${pad(Math.floor(number / this.chunk), 5)}.json`;
    if (!this.details.has(path)) {
      if (this.details.size > 8) this.details.clear();
      this.details.set(
        path,
        getJson(path).catch((error) => {
          this.details.delete(path);
          throw error;
        }),
      );
    }
    return (await this.details.get(path))[number % this.chunk];
  }
}

/** Read the index of an output; `onProgress` is called with the share that is read. */
export async function loadOutput(entry, chunk, onProgress) {
  const [meta, words] = await Promise.all([
    getJson(`${entry.folder}/meta.json`),
    getJson(`${entry.folder}/words.json`),
  ]);
  const output = new Output(entry, meta, words, chunk);
  const first = { rows: [0], boxes: [0] };
  for (const part of meta.parts)
    for (const kind of ["rows", "boxes"]) first[kind].push(first[kind].at(-1) + part[kind]);
  let done = 0;
  await each(meta.parts, async (part, number) => {
    const file = (name) => `${entry.folder}/${name}-${pad(number, 5)}`;
    const [rows, boxes, captions] = await Promise.all([
      getTable(`${file("rows")}.arrow`),
      getTable(`${file("boxes")}.arrow`),
      get(`${file("captions")}.txt`),
    ]);
    copyInto(output.rows, rows, first.rows[number]);
    copyInto(output.boxes, boxes, first.boxes[number]);
    const text = await captions.text(),
      lower = text.toLowerCase(),
      starts = lineStarts(text, part.rows);
    const lowerStarts = lower.length === text.length ? starts : lineStarts(lower, part.rows);
    output.parts[number] = {
      first: first.rows[number],
      n: part.rows,
      keys: rows.getChild("key"),
      text,
      starts,
      lower,
      lowerStarts,
    };
    onProgress((done += 1) / meta.parts.length);
  });
  for (const row of output.boxes.row) output.firstBox[row + 1] += 1;
  for (let row = 0; row < output.n; row += 1) output.firstBox[row + 1] += output.firstBox[row];
  if (entry.images !== null) {
    output.nImages = output.rows.has_image.reduce((sum, has) => sum + (has === STORED), 0);
    output.nShown = entry.images.length;
    output.rows.has_image.fill(0);
    for (const row of entry.images) output.rows.has_image[row] = STORED;
  }
  return output;
}
