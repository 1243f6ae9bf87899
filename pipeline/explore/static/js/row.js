// One row, opened: its pictures, boxes, caption, tree and facts.

import { clipScore, count, decimals, html, plural, useEffect, useRef, useState } from "./html.js";
import { MARKS, canMark, slice } from "./marks.js";
import { Picture, colour } from "./picture.js";
import { Tree } from "./tree.js";

const FACTS = [
  "key",
  "id",
  "source",
  "source_row",
  "stage",
  "reason",
  "detail",
  "original_format",
  "sha256",
  "caption_original",
  "extra",
];

function Caption({ details, box }) {
  const caption = details.caption ?? details.caption_original ?? "",
    chunk = details.noun_chunks?.[details.boxes?.[box]?.phrase];
  if (!chunk) return html`<p class="text" dir="auto">${caption}</p>`;
  return html`<p class="text" dir="auto">${slice(caption, 0, chunk.start)}<mark class=${colour(box)}>
    ${slice(caption, chunk.start, chunk.end)}</mark>${slice(caption, chunk.end)}</p>`;
}

function Facts({ details }) {
  const size = (kind) =>
    details[`${kind}width`] ? `${details[`${kind}width`]} × ${details[`${kind}height`]} px` : null;
  const url = details.url,
    isLink = /^https?:\/\//i.test(url ?? "");
  const facts = [
    ["url", isLink ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>` : url],
    ...FACTS.map((name) => [name, details[name]]),
    ["image", size("")],
    ["original image", size("original_")],
    ["image and caption", details.clip_similarity === null ? null : `CLIPScore ${decimals(clipScore(details.clip_similarity))}`],
    ["head", details.head_score === null ? null : details.head_score.toFixed(3)],
  ];
  return html`<dl class="facts">${facts
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The numbers of the boxes of a row in the order of the list: kept ones first. */
export function boxOrder(output, row) {
  const first = output.firstBox[row],
    numbers = [...Array(output.firstBox[row + 1] - first).keys()];
  const kept = numbers.filter((number) => output.boxes.removed[first + number] === 0);
  return { kept, removed: numbers.filter((number) => output.boxes.removed[first + number] !== 0) };
}

/** The measurements of a box as text. */
const measured = ({ boxes }, box) =>
  `score ${decimals(boxes.score[box])} · CLIPScore ${decimals(clipScore(boxes.clip_cosine[box]))} · ` +
  `side ${Math.max(boxes.side[box], 0)} px`;

function Boxes({ output, row, details, box, onBox, marks, onMark, areRemovedShown, onRemoved }) {
  const { kept, removed } = boxOrder(output, row);
  const item = (number) => {
    const at = output.firstBox[row] + number,
      removal = output.removal(at),
      given = marks.get(details.key, number);
    return html`<li key=${number} class=${number === box ? "current" : ""} data-box=${number}
      onMouseEnter=${() => onBox(number)}>
      <span class="swatch ${colour(number)}"></span>
      <b dir="auto">${output.phrase(at)}</b> <span class="soft">${output.label(at)}</span>
      <span class="numbers">${measured(output, at)} ·${" "}
        <span class=${removal ? "less" : "more"}>${removal ?? "kept"}</span></span>
      ${
        canMark(details) &&
        html`<span class="marks">${MARKS.map(
          (mark) => html`<button key=${mark} value=${mark} aria-pressed=${given === mark}
        onClick=${() => onMark(number, given === mark ? "" : mark)}>${mark}</button>`,
        )}</span>`
      }
    </li>`;
  };
  const isOpen = areRemovedShown || removed.includes(box);
  return html`<div class="found"><ol class="boxes">${kept.map(item)}</ol>
    ${
      removed.length > 0 &&
      html`<details open=${isOpen}
        onToggle=${(event) => event.target.open !== isOpen && onRemoved(event.target.open)}>
      <summary>${count(removed.length)} removed</summary><ol class="boxes">${isOpen && removed.map(item)}</ol>
        </details>`
    }
    ${kept.length + removed.length === 0 && html`<p class="soft">No box.</p>`}</div>`;
}

/** A row: its picture and everything that arrow/ holds about it. */
function Row({ output, row, marks, box, onBox, onMark, onDetails }) {
  const [details, setDetails] = useState(null),
    [error, setError] = useState(""),
    [areRemovedShown, showRemoved] = useState(false);
  const at = (number) => number - output.firstBox[row];
  useEffect(() => {
    let isCurrent = true;
    setDetails(null);
    setError("");
    output.detailsOf(row).then(
      (found) => {
        if (isCurrent) {
          setDetails(found);
          onDetails(found);
        }
      },
      (e) => isCurrent && setError(String(e.message)),
    );
    return () => {
      isCurrent = false;
    };
  }, [output, row]);
  return html`<section class="row">
    <${Picture} output=${output} row=${row} least=${400} onBox=${onBox} isClear=${(number) => box === null || at(number) === box}
      isDrawn=${(number) => output.boxes.removed[number] === 0 || at(number) === box || areRemovedShown} />
    ${error && html`<p class="warning">${error}</p>`}
    ${
      details &&
      html`<${Caption} details=${details} box=${box} />
      <${Boxes} output=${output} row=${row} details=${details} box=${box} onBox=${onBox} marks=${marks}
        onMark=${onMark}
        areRemovedShown=${areRemovedShown} onRemoved=${showRemoved} />
      <${Tree} details=${details} /><${Facts} details=${details} />`
    }
  </section>`;
}

/** The opened row: a dialog over the page. `keys` receives the functions that the keyboard calls. */
export function RowView({ output, row, marks, link, place, keys, onClose, onStep }) {
  const [box, setBox] = useState(null),
    [note, setNote] = useState(""),
    [, setVersion] = useState(0),
    [isLinkShown, showLink] = useState(false);
  const details = useRef(null),
    dialog = useRef(null);
  const order = Object.values(boxOrder(output, row)).flat(),
    n = order.length;
  const after = (number, step) => order[(order.indexOf(number) + step + n) % n];
  useEffect(() => {
    details.current = null;
    setBox(null);
    setNote("");
    showLink(false);
    dialog.current.focus();
    dialog.current.scrollTop = 0;
  }, [row]);
  const mark = async (number, value) => {
    if (!details.current || !canMark(details.current)) return;
    try {
      await marks.set(output.place(row), details.current, number, value);
      setNote("");
    } catch (error) {
      setNote(`The mark was not saved: ${error.message}`);
    }
    setVersion((version) => version + 1);
  };
  keys.current = {
    box: (step) => n > 0 && setBox(box === null ? order.at(step > 0 ? 0 : -1) : after(box, step)),
    mark: async (value) => {
      const number = box ?? order[0];
      if (n === 0) return;
      await mark(number, marks.get(details.current?.key, number) === value ? "" : value);
      setBox(number === order.at(-1) ? number : after(number, 1));
    },
  };
  const setDetails = (found) => {
    details.current = found;
  };
  const share = () => {
    showLink(true);
    navigator.clipboard?.writeText(link).catch(() => {});
  };
  return html`<div class="shade" onClick=${(event) => event.target === event.currentTarget && onClose()}>
    <div class="dialog" role="dialog" aria-modal="true" aria-label="Row" tabindex="-1" ref=${dialog}>
      <header><button onClick=${() => onStep(-1)} aria-label="Previous row">←</button><button
        onClick=${() => onStep(1)} aria-label="Next row">→</button>
        <span class="soft">${place}${n > 0 && ` · ${plural(n, "box")}`}</span>
        <button name="share" onClick=${share}>Copy link</button><button name="close" onClick=${onClose}
          aria-label="Close">✕</button></header>
      ${isLinkShown && html`<input class="link" readonly value=${link} aria-label="Link to this row"
        ref=${(input) => input?.select()} />`}
      ${note && html`<p class="warning">${note}</p>`}
      <${Row} output=${output} row=${row} marks=${marks} box=${box} onBox=${setBox} onMark=${mark}
        onDetails=${setDetails} />
    </div></div>`;
}
