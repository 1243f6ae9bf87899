// The keyboard.

import { html } from "./html.js";

const MARKS = { r: "right", w: "wrong", u: "unsure" };
const HELP = [
  ["/", "search captions"],
  ["j k ← →", "next and previous row"],
  ["[ ]", "previous and next page"],
  ["Enter", "open the row"],
  ["↑ ↓", "choose a box of the opened row"],
  ["r w u", "mark the box as right, wrong or unsure, and go to the next; again removes the mark"],
  ["Esc", "close"],
  ["?", "this help"],
];

/** Call the action of a key, unless it is typed into a field. */
export function onKey(event, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isOpen = actions.isOpen(),
    key = event.key;
  const run = (action, ...values) => {
    event.preventDefault();
    action(...values);
  };
  if (key === "/" && !isOpen) run(actions.search);
  else if (key === "j" || key === "ArrowRight") run(actions.move, 1);
  else if (key === "k" || key === "ArrowLeft") run(actions.move, -1);
  else if (key === "[" || key === "]") run(actions.turn, key === "]" ? 1 : -1);
  else if (isOpen && (key === "ArrowDown" || key === "ArrowUp")) run(actions.box, key === "ArrowDown" ? 1 : -1);
  else if (isOpen && key in MARKS) run(actions.mark, MARKS[key]);
  else if (key === "Enter" && !event.target.matches("button, summary, a")) run(actions.open);
  else if (key === "Escape") run(actions.close);
  else if (key === "?") run(actions.help);
}

export function Help({ onClose }) {
  return html`<div class="shade" onClick=${onClose}><div class="dialog help" role="dialog" aria-label="Help"
    tabindex="-1">
    <header><h2>Keys</h2><button onClick=${onClose} aria-label="Close">✕</button></header>
    <dl>${HELP.map(([key, text]) => html`<div key=${key}><dt>${key.split(" ").map((name) => html`<kbd key=${name}>
      ${name}</kbd>`)}</dt><dd>${text}</dd></div>`)}</dl>
    <p class="soft">A box is right if it encloses what its phrase names and shares at least half of the area
      with the best box. Colours tell the boxes of a picture apart; dashed boxes were removed by a filter, faint ones
      do not match the filters of the page.</p>
  </div></div>`;
}
