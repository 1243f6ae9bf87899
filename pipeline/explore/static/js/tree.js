// The dependency tree of a caption: words in a line, and an arc from each head to its dependents.

import { html } from "./html.js";
import { slice } from "./marks.js";

const LEVEL = 26,
  GAP = 22,
  CHAR = 8.4;

/** Level of each arc: one above the highest arc within it. */
function levels(arcs) {
  const found = new Map();
  for (const arc of [...arcs].sort((a, b) => a.end - a.start - (b.end - b.start))) {
    let level = 1;
    for (const [other, height] of found)
      if (other.start >= arc.start && other.end <= arc.end) level = Math.max(level, height + 1);
    found.set(arc, level);
  }
  return found;
}

export function Tree({ details }) {
  const tokens = details.tokens ?? [];
  if (tokens.length === 0) return null;
  const words = tokens.map((token) => slice(details.caption, token.start, token.end));
  const widths = tokens.map((token, i) => Math.max(words[i].length, token.pos.length, token.dep.length) * CHAR + GAP),
    x = [];
  widths.reduce((left, width, i) => {
    x[i] = left + width / 2;
    return left + width;
  }, 0);
  const arcs = tokens.flatMap((token, i) =>
    token.head === i || !tokens[token.head]
      ? []
      : [{ start: Math.min(i, token.head), end: Math.max(i, token.head), dep: token.dep, isLeft: i < token.head }],
  );
  const heights = levels(arcs),
    top = Math.max(0, ...heights.values()) * LEVEL + 18,
    width = widths.reduce((a, b) => a + b, 0);
  return html`<div class="tree" tabindex="0"><svg width=${width} height=${top + 40} role="img"
    aria-label="Dependency tree">
    ${[...heights].map(([arc, level]) => {
      const [from, to, y] = [x[arc.start] + 5, x[arc.end] - 5, top - level * LEVEL],
        tip = arc.isLeft ? from : to;
      return html`<g key="${arc.start}-${arc.end}"><path class="arc"
        d="M${from},${top} V${y + 6} Q${from},${y} ${from + 6},${y} H${to - 6} Q${to},${y} ${to},${y + 6} V${top}" />
        <path class="tip" d="M${tip - 3},${top - 5} L${tip + 3},${top - 5} L${tip},${top} Z" />
        <text class="dep" x=${(from + to) / 2} y=${y - 4}>${arc.dep}</text></g>`;
    })}
    ${words.map((word, i) => html`<g key=${i}><text class="word" x=${x[i]} y=${top + 16}>${word}</text><text
      class="pos" x=${x[i]} y=${top + 32}>${tokens[i].pos}</text></g>`)}
  </svg></div>`;
}
