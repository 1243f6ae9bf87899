// The state of the page, which the fragment of the address holds, so that it can be shared.

import { FIELDS } from "./filters.js";
import { NAMES, accepted } from "./thresholds.js";

const KEYS = [...FIELDS, ...NAMES, "page", "row"];
export const EMPTY = Object.fromEntries(KEYS.map((name) => [name, ""]));

/** The state in the address. */
export function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = Object.fromEntries(KEYS.map((name) => [name, given.get(name) ?? ""]));
  for (const name of NAMES) state[name] = accepted(name, state[name]);
  return state;
}

/** The number in a text as one of the pages from 0 to the last; 0 for a text that is no number. */
export const pageOf = (text, last) => Math.min(Math.max(Math.trunc(Number(text)) || 0, 0), last);

/** The fragment for a state. */
export function fragment(state) {
  const given = new URLSearchParams(KEYS.filter((name) => state[name] !== "").map((name) => [name, state[name]]));
  return `#${given.toString().replaceAll("%2F", "/")}`;
}

/** Put a state into the address; opening a row can be undone with the browser's button. */
export function writeState(before, state) {
  const address = location.pathname + location.search + fragment(state);
  if (before.row === "" && state.row !== "") history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** The name of a row in the address: letter of the output, shard, key. */
export const rowName = (letter, output, row) => `${letter}/${output.place(row).shard}/${output.key(row)}`;

/** The output and the row that a name, or the key of a row of the first output, refers to; null if there is none. */
export function parseRow(outputs, name) {
  if (!name.includes("/")) {
    const row = outputs[0].findKey(name);
    return row < 0 ? null : { number: 0, row };
  }
  const [letter, shard, ...key] = name.split("/"),
    number = "ab".indexOf(letter),
    output = outputs[number];
  const row = letter && output ? output.find(Number(shard), key.join("/")) : -1;
  return row < 0 ? null : { number, row };
}

/** A link to the page for others. */
export const shareLink = (site, state) =>
  `${location.origin}${location.pathname}${site.token ? `?token=${site.token}` : ""}${fragment(state)}`;
