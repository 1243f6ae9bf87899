// The panel: one control for each filter.

import { count, html, useEffect, useRef, useState } from "./html.js";

const SUGGESTIONS = 200;
const DELAY_MS = 60;

/** A field of text that reports its value when typing pauses. */
export function TextField({ name, label, value, list, placeholder, onChange }) {
  const [text, setText] = useState(value),
    timer = useRef(0);
  useEffect(() => {
    clearTimeout(timer.current);
    setText(value);
  }, [value]);
  const change = (event) => {
    const now = event.target.value;
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(name, now), DELAY_MS);
  };
  return html`<label class="field"><span>${label}</span>
    <input name=${name} type=${name === "q" ? "search" : "text"} value=${text} list=${list}
      placeholder=${placeholder}
      autocomplete="off" spellcheck=${false} onInput=${change} /></label>`;
}

function Choice({ name, label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span>
    <select name=${name} value=${value} onChange=${(event) => onChange(name, event.target.value)}>
      ${options.map(([option, text]) => html`<option key=${option} value=${option} selected=${option === value}>
        ${text}</option>`)}
    </select></label>`;
}

function Range({ name, label, state, step, onChange }) {
  const bound = (end, text) => html`<input name="${name}_${end}" type="number" step=${step} placeholder=${text}
    aria-label="${label}: ${text}" value=${state[`${name}_${end}`]}
    onInput=${(event) => onChange(`${name}_${end}`, event.target.value)} />`;
  return html`<div class="field range"><span>${label}</span><div>${bound("min", "from")}${bound("max", "to")}
    </div></div>`;
}

/** Counts of each word of a column, most frequent first. */
export function frequencies(words, column) {
  const counts = new Int32Array(words.length);
  for (const number of column) if (number >= 0) counts[number] += 1;
  return [...words.keys()].sort((a, b) => counts[b] - counts[a]).map((number) => [words[number], counts[number]]);
}

/** The options of the panel, which do not change. */
export function panelOptions(output) {
  const reasons = frequencies(output.words.reason, output.rows.reason).filter(([reason]) => reason !== "kept");
  const top = (kind, name) =>
    frequencies(output.words[name], output[kind][name])
      .slice(0, SUGGESTIONS)
      .map(([word]) => word);
  return {
    reasons,
    lists: {
      host: top("rows", "host"),
      source: top("rows", "source"),
      phrase: top("boxes", "phrase"),
      label: top("boxes", "label"),
    },
    removals: output.meta.removals.filter(Boolean),
  };
}

/** The filters. `onChange(name, value)` changes one of them. */
export function Panel({ options, state, onChange, onReset }) {
  const text = (name, label, placeholder) => html`<${TextField} name=${name} label=${label} value=${state[name]}
    list="list-${name}" placeholder=${placeholder} onChange=${onChange} />`;
  return html`<form class="panel filters" onSubmit=${(event) => event.preventDefault()}>
    <h2>Rows</h2>
    <${Choice} name="status" label="Status" value=${state.status} onChange=${onChange}
      options=${[
        ["", "all"],
        ["kept", "kept"],
        ["dropped", "dropped"],
      ]} />
    <${Choice} name="reason" label="Drop reason" value=${state.reason} onChange=${onChange}
      options=${[["", "all"], ...options.reasons.map(([reason, n]) => [reason, `${reason} (${count(n)})`])]} />
    ${text("host", "Host", "example.org")}${text("source", "Input file", "")}
    <${Range} name="image" label="Original image, shorter side in px" state=${state} step="1"
      onChange=${onChange} />
    <h2>Boxes</h2>
    ${text("phrase", "Phrase contains", "red")}${text("label", "Label (head noun)", "apple")}
    <${Choice} name="box" label="Result" value=${state.box} onChange=${onChange}
      options=${[["", "all"], ...["kept", "removed", ...options.removals].map((name) => [name, name])]} />
    <${Range} name="score" label="Grounding score" state=${state} step="0.01" onChange=${onChange} />
    <${Range} name="clip" label="CLIPScore" state=${state} step="0.01" onChange=${onChange} />
    <${Range} name="side" label="Side in px" state=${state} step="1" onChange=${onChange} />
    <button type="button" name="reset" onClick=${onReset}>Reset filters</button>
    ${Object.entries(options.lists).map(
      ([name, words]) => html`<datalist key=${name} id="list-${name}">
      ${words.map((word) => html`<option key=${word} value=${word} />`)}</datalist>`,
    )}
  </form>`;
}
