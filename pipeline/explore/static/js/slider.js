// The preview of other thresholds: sliders, counts, the command, and boxes on either side of the border.

import { count, html, plural, useMemo, useState } from "./html.js";
import { Picture } from "./picture.js";
import { SCORES } from "./scores.js";
import { accepted, command, examples, isMixed, keptBoxes, namesOf, own, range, sum } from "./thresholds.js";

function Example({ output, name, item, onOpen }) {
  const value = name === "min_side_px" ? item.value : item.value.toFixed(3);
  const text = item.box < 0 ? output.caption(item.row) : output.phrase(item.box);
  return html`<button class="example" title=${text} onClick=${() => onOpen(item.row)}>
    <${Picture} output=${output} row=${item.row} isDrawn=${(box) => box === item.box} /><span dir="auto">
      ${value} ${text}</span></button>`;
}

const amount = (rows, boxes) => `${plural(rows, "row")}, ${plural(boxes, "box")}`;

function Difference({ now, then }) {
  const sign = then > now ? "+" : "−";
  return then === now
    ? null
    : html` <span class=${then > now ? "more" : "less"}>(${sign}${count(Math.abs(then - now))})</span>`;
}

/** The panel. `state` holds the changed thresholds as text, "" for unchanged ones; `mask`: the selected rows. */
export function Sliders({ output, state, mask, isFiltered, onChange, onOpen }) {
  const base = useMemo(() => own(output), [output]);
  const names = useMemo(() => namesOf(output), [output]);
  const ranges = useMemo(() => Object.fromEntries(names.map((name) => [name, range(output, name)])), [output]);
  const [last, setLast] = useState(() => names.find((name) => state[name] !== "") ?? names[0]);
  const texts = names.map((name) => state[name]).join(" ");
  const changed = Object.fromEntries(
    names.filter((name) => state[name] !== "" && Number(state[name]) !== base[name]).map((name) => [
      name,
      Number(state[name]),
    ]),
  );
  const unchanged = useMemo(() => keptBoxes(output, {}), [output]);
  const kept = useMemo(
    () => (Object.keys(changed).length === 0 ? unchanged : keptBoxes(output, changed)),
    [output, texts],
  );
  const before = useMemo(() => sum(unchanged, mask), [unchanged, mask]),
    after = useMemo(() => sum(kept, mask), [kept, mask]);
  const border = useMemo(() => examples(output, changed, last, mask), [output, mask, texts, last]);
  const canLower = output.meta.keep_all,
    set = (name) => (event) => {
      setLast(name);
      onChange(name, accepted(name, event.target.value));
    };
  const isTooLow = !canLower && names.some((name) => name in changed && changed[name] < base[name]);
  const strip = (items, title) => html`<div class="strip"><h3>${title}</h3>
    ${items.length === 0 && html`<p class="soft">nothing with a picture</p>`}
    <div>${items.map((item) => html`<${Example} key=${`${item.row} ${item.box}`} output=${output} name=${last} item=${item}
      onOpen=${onOpen} />`)}</div></div>`;
  const threshold = changed[last] ?? base[last];
  return html`<section class="panel sliders" aria-label="Thresholds">
    <h2>Other thresholds</h2>
    <div class="controls">${names.map(
      (name) => html`<label key=${name} class="slider"><span>${SCORES.get(name).label}</span>
      <input type="range" name=${name} min=${canLower ? ranges[name][0] : base[name]}
        max=${Math.max(ranges[name][1], base[name])} step=${ranges[name][2]}
        value=${state[name] === "" ? base[name] : state[name]} onInput=${set(name)} />
      <input type="number" name="${name}_value" min=${canLower ? ranges[name][0] : base[name]} max=${ranges[name][1]}
        step=${name === "min_side_px" ? "1" : "any"}
        aria-label="${SCORES.get(name).label}: value"
        value=${state[name] === "" ? base[name] : state[name]} onChange=${set(name)} /></label>`,
    )}
      <button type="button" name="thresholds"
        onClick=${() => onChange(...[...SCORES.keys()].flatMap((name) => [name, ""]))}>Reset</button></div>
    ${
      !isTooLow &&
      html`<p id="kept" data-rows=${after.rows} data-boxes=${after.boxes}>Keeps <b>${plural(after.rows, "row")}
        </b><${Difference} now=${before.rows} then=${after.rows} />
      ${" and "}<b>${plural(after.boxes, "box")}</b><${Difference} now=${before.boxes} then=${after.boxes} />.
      ${isFiltered && ` Of the selected rows: ${amount(after.selectedRows, after.selectedBoxes)}.`}</p>`
    }
    ${isTooLow && html`<p class="warning">The job did not compare boxes below its own thresholds with their phrases.
        Lower ones need a job with score.keep_all=true.</p>`}
    ${!canLower && html`<p class="soft">Thresholds can be raised. With score.keep_all=true, the job also allows a
      preview of lower ones.</p>`}
    ${isMixed(output) && html`<p class="soft">The shards have several thresholds; unchanged ones stay.</p>`}
    ${Object.keys(changed).length > 0 && !isTooLow && html`<pre id="command">${command(output, changed)}</pre>`}
    <div class="border">${strip(border.below, `${SCORES.get(last).label} below ${threshold}`)}
      ${strip(border.above, `From ${threshold}`)}</div>
  </section>`;
}
