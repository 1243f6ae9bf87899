// The state of the page, which the fragment of the address holds, so that it can be shared.

import { FIELDS } from "./filters.js";
import { SCORES } from "./scores.js";
import { accepted } from "./thresholds.js";

const keys = () => [...FIELDS, ...SCORES.keys(), "page", "row"];

/** The state in the address. */
export function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = Object.fromEntries(keys().map((name) => [name, given.get(name) ?? ""]));
  for (const name of SCORES.keys()) state[name] = accepted(name, state[name]);
  return state;
}

/** The number in a text as one of the pages from 0 to the last; 0 for a text that is no number. */
export const pageOf = (text, last) => Math.min(Math.max(Math.trunc(Number(text)) || 0, 0), last);

/** The fragment for a state. */
export function fragment(state) {
  const given = new URLSearchParams(keys().filter((name) => state[name]).map((name) => [name, state[name]]));
  return `#${given.toString().replaceAll("%2F", "/")}`;
}

/** Put a state into the address; opening a row can be undone with the browser's button. */
export function writeState(before, state) {
  const address = location.pathname + location.search + fragment(state);
  if (before.row === "" && state.row !== "") history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** The name of a row in the address: shard and key. */
export const rowName = (output, row) => `${output.place(row).shard}/${output.key(row)}`;

/** The row that a name, or a key alone, refers to; -1 if there is none. */
export function parseRow(output, name) {
  if (!name.includes("/")) return output.findKey(name);
  const [shard, key] = name.split("/");
  return output.find(Number(shard), key);
}

/** A link to the page for others. */
export const shareLink = (site, state) =>
  `${location.origin}${location.pathname}${site.token ? `?token=${site.token}` : ""}${fragment(state)}`;
