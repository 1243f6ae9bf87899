// Marks of boxes: written to a file by the server, or kept in this browser and downloaded.

import { clipScore } from "./html.js";
import { getJson } from "./load.js";

export const MARKS = ["right", "wrong", "unsure"];
/** Stages whose dropped rows hypergrit quality accepts. */
const STAGES = [null, "parse", "ground", "score"];
export const canMark = (details) => STAGES.includes(details.stage) && Boolean(details.caption);

/** The text between two offsets in code points. */
export const slice = (text, start, end) =>
  /[\ud800-\udfff]/.test(text) ? [...text].slice(start, end).join("") : text.slice(start, end);

export class Marks {
  constructor(site) {
    this.file = site.marks;
    this.form = site.form;
    // The folder has the hash of the output: another one may have been at this address.
    this.place = `hypergrit-marks:${location.pathname}:${site.output.folder}`;
    this.lines = new Map();
  }
  async load() {
    if (this.file !== null)
      for (const [key, box, mark] of await getJson("marks")) this.lines.set(`${key}:${box}`, { mark });
    else
      try {
        this.lines = new Map(JSON.parse(localStorage.getItem(this.place)) ?? []);
      } catch {
        this.lines = new Map();
      }
  }
  get(key, box) {
    return this.lines.get(`${key}:${box}`)?.mark ?? "";
  }
  counts() {
    const counts = Object.fromEntries(MARKS.map((mark) => [mark, 0]));
    for (const { mark } of this.lines.values()) if (mark) counts[mark] += 1;
    return counts;
  }
  /** Set the mark of a box, or remove it with "". Raises Error if the server cannot write it. */
  async set(place, details, box, mark) {
    const name = `${details.key}:${box}`;
    if (this.file !== null) {
      const response = await fetch("marks", { method: "POST", body: JSON.stringify({ ...place, box, mark }) });
      if (!response.ok) throw new Error(await response.text());
      this.lines.set(name, { mark });
      return;
    }
    if (mark) this.lines.set(name, { mark, line: this.line(details, box, mark) });
    else this.lines.delete(name);
    try {
      localStorage.setItem(this.place, JSON.stringify([...this.lines]));
    } catch {
      /* private windows have no storage */
    }
  }
  /** The line of a box in the CSV, as pipeline.explore.marks writes it. */
  line(details, number, mark) {
    const box = details.boxes[number],
      cosine = details.box_scores[number].clip_cosine;
    const { start, end } = details.noun_chunks[box.phrase],
      fixed = (value) => value.toFixed(4);
    const values = {
      key: details.key,
      box: number,
      phrase: this.safe(slice(details.caption, start, end)),
      mark,
      score: fixed(box.score),
      clip_score: cosine === null ? "" : fixed(clipScore(cosine)),
      caption: this.safe(details.caption),
      ...Object.fromEntries(["x_min", "y_min", "x_max", "y_max"].map((name) => [name, fixed(box[name])])),
    };
    return this.form.columns.map((name) => String(values[name] ?? ""));
  }
  /** Spreadsheets would compute texts that begin like a formula. */
  safe(text) {
    return text.replace(new RegExp(this.form.formula, "g"), "$1'");
  }
  download() {
    const cell = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = [this.form.columns, ...[...this.lines.values()].map((item) => item.line)];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(
      new Blob([lines.map((line) => `${line.map(cell).join(",")}\n`).join("")], { type: "text/csv" }),
    );
    link.download = "explore.csv";
    link.click();
  }
}
